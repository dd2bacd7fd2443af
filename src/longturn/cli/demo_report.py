"""What `longturn demo` says about its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longturn.ledger import RequestLine

if TYPE_CHECKING:
    from rich.table import Table

TIERS = ("device", "host", "disk")


@dataclass(frozen=True)
class Turn:
    """One turn as it was answered, and its line in the ledger. after_restart: the first one of a new server."""

    answer: str
    line: RequestLine
    after_restart: bool = False

    @property
    def ttft_ms(self) -> float:
        """Milliseconds to the first token."""
        return self.line.ttft_ms or 0.0

    @property
    def cached(self) -> str:
        """The cached tokens by tier, for people."""
        return ", ".join(f"{n:,} {tier}" for tier, n in self.line.use.cached.items()) or "none"

    def __str__(self) -> str:
        use = self.line.use
        return (
            f"logical {use.logical:,} · cached {self.cached} · computed {use.computed:,} · TTFT {self.ttft_ms:,.0f} ms"
        )

    def to_dict(self) -> dict[str, Any]:
        """The turn as a JSON object."""
        use = self.line.use
        return {
            "logical": use.logical,
            "cached": {tier: use.cached.get(tier, 0) for tier in TIERS},
            "computed": use.computed,
            "output": use.output,
            "ttft_ms": round(self.ttft_ms, 1),
            "after_restart": self.after_restart,
        }


def totals(turns: Sequence[Turn], plain: Sequence[Turn]) -> dict[str, Any]:
    """Sums of both runs, and how many times more the one without a cache took."""
    computed, plain_computed = (sum(turn.line.use.computed for turn in run) for run in (turns, plain))
    ttft, plain_ttft = (sum(turn.ttft_ms for turn in run) for run in (turns, plain))
    return {
        "logical": sum(turn.line.use.logical for turn in turns),
        "computed": computed,
        "computed_without_cache": plain_computed,
        "computed_ratio": round(plain_computed / computed, 2),
        "ttft_ms": round(ttft, 1),
        "ttft_ms_without_cache": round(plain_ttft, 1),
        "ttft_ratio": round(plain_ttft / ttft, 2),
        "same_answers": sum(turn.answer == other.answer for turn, other in zip(turns, plain, strict=True)),
    }


def table(turns: Sequence[Turn], plain: Sequence[Turn]) -> Table:
    """Both runs side by side, turn by turn, with their sums."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, show_footer=True)
    sums = totals(turns, plain)
    columns = {
        "turn": "all",
        "logical": f"{sums['logical']:,}",
        "cached": "",
        "computed": f"{sums['computed']:,}",
        "TTFT ms": f"{sums['ttft_ms']:,.0f}",
        "computed,\nno cache": f"{sums['computed_without_cache']:,}",
        "TTFT ms,\nno cache": f"{sums['ttft_ms_without_cache']:,.0f}",
    }
    for header, footer in columns.items():
        shown.add_column(header, footer, justify="right", no_wrap=True)
    for number, (turn, other) in enumerate(zip(turns, plain, strict=True), 1):
        if turn.after_restart:
            shown.add_row("restart")
        shown.add_row(
            str(number),
            f"{turn.line.use.logical:,}",
            turn.cached,
            f"{turn.line.use.computed:,}",
            f"{turn.ttft_ms:,.0f}",
            f"{other.line.use.computed:,}",
            f"{other.ttft_ms:,.0f}",
        )
    return shown


def summary(turns: Sequence[Turn], plain: Sequence[Turn]) -> str:
    """The last words."""
    sums = totals(turns, plain)
    text = (
        f"Tokens computed: {sums['computed']:,} with the cache, {sums['computed_without_cache']:,} without"
        f" ({sums['computed_ratio']:.1f} times as many).\n"
        f"Time to first token, all turns: {sums['ttft_ms'] / 1000:.1f} s with the cache,"
        f" {sums['ttft_ms_without_cache'] / 1000:.1f} s without ({sums['ttft_ratio']:.1f} times as long).\n"
        f"The answer is the same in {sums['same_answers']} of {len(turns)} turns."
    )
    if sums["same_answers"] < len(turns):
        text += (
            " In 16 bits, sums are rounded differently in batches of different shapes, and then of two tokens that are"
            " nearly as likely another may win: `longturn doctor` shows how far logits are apart."
        )
    return text
