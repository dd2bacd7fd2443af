"""What /window, /spent and /view show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longturn.conversation.meters import Reading, Spent
    from longturn.conversation.view.fold import View
    from longturn.ledger import TokenUse

SHOWN = 80


def window_report(reading: Reading, *, known: bool) -> str:
    """How full the window will be with the next request, and of what. known: whether its size is more than a guess."""
    window = reading.window
    lines = [
        f"the next request has about {reading.expected:,} tokens: {reading.usable:.0%} of the {window.usable:,} that "
        f"are usable, {reading.raw:.0%} of the whole {window.context:,}"
    ]
    if not known:
        lines[0] += " (nobody tells the model's window: this one is assumed, --context gives it)"
    if reading.reported is not None:
        lines.append(f"the latest request and its answer had {reading.reported:,}, as reported")
    if reading.error is not None:
        lines.append(f"it was estimated beforehand with an error of {reading.error:+.1%}")
    width = max(map(len, reading.parts), default=0)
    lines += [f"  {name:<{width}}  {tokens:>9,}" for name, tokens in reading.parts.items()]
    return "\n".join(lines)


def spent_report(spent: Spent) -> str:
    """What the session has taken."""
    lines = [f"{spent.requests:,} requests: {_counts(spent.use)}"]
    if len(spent.purposes) > 1:
        lines += [f"  {purpose}: {_counts(use)}" for purpose, use in spent.purposes.items()]
    money, unpriced = spent.money()
    if spent.requests - spent.uncounted > unpriced:
        lines.append(f"${money:.4f}")
    if unpriced:
        lines.append(f"{unpriced:,} of them have no price")
    if spent.uncounted:
        lines.append(f"{spent.uncounted:,} of them were stopped or reported no usage, and are not counted")
    return "\n".join(lines)


def view_report(view: View) -> str:
    """What the next request sends, a line for each part."""
    lines = [
        f"epoch {view.epoch.number} ({view.epoch.reason}): {len(view.items):,} parts, about {view.tokens:,} tokens"
    ]
    for item in view.items:
        tool = f" {item.tool}" if item.tool else ""
        shape = "" if item.shape == "whole" else f", {item.shape} of {item.whole_tokens:,}"
        text = view.texts.get(item.at) or _text(view, item.message, item.part)
        lines.append(f"{item.message:>5}  {item.role} {item.kind}{tool}: {item.tokens:,}{shape}  {_first(text)}")
    return "\n".join(lines)


def _counts(use: TokenUse) -> str:
    return (
        f"{use.logical:,} logical = {use.cached_total:,} cached + {use.computed:,} computed; "
        f"{use.output:,} output, {use.reasoning:,} of them reasoning; {use.written:,} written to a cache"
    )


def _text(view: View, message: int, part: int) -> str:
    said = view.messages[message].parts[part] if part >= 0 else None
    return str(getattr(said, "text", None) or getattr(said, "arguments", ""))


def _first(text: str) -> str:
    line = " ".join(text[: 4 * SHOWN].split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
