"""`longturn explain`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from longturn.explain import Verdict


class Provider(StrEnum):
    """Whose dialect the requests are in."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OPENAI_CHAT = "openai-chat"


def explain(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="The earlier request.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The later one.", show_default=False)],
    provider: Annotated[
        Provider | None, typer.Option(help="Whose dialect they are in.", show_default="by their fields")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell why the second of two requests could not reuse the cached prefix of the first.

    A file holds a request's body, or {"request": body, "usage": object, "time": seconds or text}.
    The provider's usage and the time tell expiry, routing, cold starts and double counts.
    """
    import msgspec

    from longturn.dialects.segments import recognised
    from longturn.explain import explain as explained

    earlier, later = _read(a), _read(b)
    name = provider.value if provider else recognised(_body(later))
    verdict = explained(earlier, later, name)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(verdict.to_dict())).decode())
    else:
        _show(verdict)


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


def _show(verdict: Verdict) -> None:
    """The verdict for a person."""
    from rich.console import Console
    from rich.text import Text

    from longturn.explain.told import told

    console = Console(highlight=False)
    heading, *lines = told(verdict)
    console.print(Text(heading, "bold"))
    for line in lines:
        changed = {"- ": "red", "+ ": "green"}.get(line[:2])
        console.print(Text(line, changed or ""), soft_wrap=changed is not None)
    for lint in verdict.lints:
        if lint.mechanism != verdict.mechanism:
            console.print(
                Text(f"\nAlso in the later request: {lint.mechanism}: {lint.message} ({lint.path})", "yellow")
            )
