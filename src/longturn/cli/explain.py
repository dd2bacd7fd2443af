"""`longturn explain`."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from longturn.explain import Exchange, Verdict


class Step(NamedTuple):
    """From one request to the next. usd: what was lost, None where no price is known."""

    verdict: Verdict
    usd: Decimal | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self.verdict.to_dict(), "lost_usd": None if self.usd is None else float(self.usd)}


class Provider(StrEnum):
    """Whose dialect the requests are in."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OPENAI_CHAT = "openai-chat"


def explain(
    files: Annotated[
        list[Path], typer.Argument(metavar="REQUEST.json", help="Requests in their order.", show_default=False)
    ],
    provider: Annotated[
        Provider | None, typer.Option(help="Whose dialect they are in.", show_default="by their fields")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell why a request could not reuse the cached prefix of the one before it, and what that has cost.

    A file holds a request's body, or {"request": body, "usage": object, "time": seconds or text}.
    The provider's usage and the time tell expiry, routing, cold starts and double counts.
    Of more than two requests, a whole conversation, each is compared with the one before it.
    """
    from itertools import pairwise

    from longturn.dialects.segments import recognised
    from longturn.errors import ConfigError
    from longturn.explain import Exchange

    if len(files) < 2:
        raise ConfigError("one request alone has no prefix to lose: name at least two files, in their order")
    given = [_read(path) for path in files]
    name = provider.value if provider else recognised(_body(given[-1]))
    steps = [_step(*pair) for pair in pairwise(Exchange.read(each, name) for each in given)]
    if json:
        _print(steps, files)
        return
    for (earlier, later), step in zip(pairwise(files), steps, strict=True):
        if len(steps) > 1:
            typer.echo(f"{earlier} -> {later}")
        _show(step)
        if len(steps) > 1:
            typer.echo()
    if len(steps) > 1:
        typer.echo(_sum(steps))


def _read(path: Path) -> Any:
    """The JSON in a file, its keys in the given order. Raises ConfigError where there is none."""
    import json

    from longturn.errors import ConfigError

    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _body(given: Any) -> Any:
    """The body inside a request file; whether it is one is checked where it is read."""
    body = given.get("request", given) if isinstance(given, dict) else {}
    return body if isinstance(body, dict) else {}


def _step(earlier: Exchange, later: Exchange) -> Step:
    from longturn.explain import explain_exchanges
    from longturn.explain.money import lost_usd

    verdict = explain_exchanges(earlier, later)
    return Step(verdict, lost_usd(later, verdict.lost_tokens))


def _print(steps: list[Step], files: list[Path]) -> None:
    """One object: the verdict of two requests, or all of a conversation's with their sums."""
    import msgspec

    told: dict[str, Any] = steps[0].to_dict()
    if len(steps) > 1:
        usd = _usd(steps)
        told = {
            "lost_tokens": sum(step.verdict.lost_tokens for step in steps),
            "lost_usd": None if usd is None else float(usd),
            "steps": [
                {"earlier": str(a), "later": str(b), **step.to_dict()}
                for a, b, step in zip(files, files[1:], steps, strict=False)
            ],
        }
    typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


def _sum(steps: list[Step]) -> str:
    """What all of it has cost."""
    from longturn.explain.money import dollars

    lost, usd = sum(step.verdict.lost_tokens for step in steps), _usd(steps)
    moved = sum(step.verdict.mechanism != "none" for step in steps)
    cost = "" if usd is None else f", for {dollars(usd)}"
    return f"A cause was found in {moved} of {len(steps)} steps: about {lost:,} tokens computed anew{cost}."


def _usd(steps: list[Step]) -> Decimal | None:
    """What all steps have cost; None where one of them has no known price."""
    priced = [step.usd for step in steps if step.usd is not None]
    return sum(priced, Decimal(0)) if len(priced) == len(steps) else None


def _show(step: Step) -> None:
    """A verdict for a person."""
    from rich.console import Console
    from rich.text import Text

    from longturn.explain.told import told

    console = Console(highlight=False)
    verdict = step.verdict
    heading, *lines = told(verdict, step.usd)
    console.print(Text(heading, "bold"))
    for line in lines:
        changed = {"- ": "red", "+ ": "green"}.get(line[:2])
        console.print(Text(line, changed or ""), soft_wrap=changed is not None)
    for lint in verdict.lints:
        if lint.mechanism != verdict.mechanism:
            console.print(
                Text(f"\nAlso in the later request: {lint.mechanism}: {lint.message} ({lint.path})", "yellow")
            )
