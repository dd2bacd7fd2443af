"""Two meters that are never mixed: how full the window will be, and what the session has spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

import msgspec

from longturn.conversation.item import Item
from longturn.conversation.parts import Tools
from longturn.conversation.view.estimate import Calibration
from longturn.conversation.view.fold import View
from longturn.conversation.view.items import tool_name
from longturn.conversation.window import Window
from longturn.ledger import NO_USE, RequestLine, TokenUse
from longturn.ledger.prices import price_of

BUILT_IN = "built in"
SERVER_MARK = "__"
"""Between the name of an MCP server and that of its tool."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the window meter stands.

    expected: tokens of the next request, estimated ahead. reported: of the latest request and its answer, by the
    provider's count; None before the first of an epoch. parts: tokens of `expected` by what they are; tools by server
    as `tools: NAME`. error: by how much the latest estimate was wrong, as a share of what was reported.
    """

    window: Window
    expected: int
    reported: int | None
    parts: Mapping[str, int] = field(hash=False)
    error: float | None = None

    @property
    def usable(self) -> float:
        """Share of the usable window; over 1 when the longest answer no longer fits."""
        return self.expected / self.window.usable

    @property
    def raw(self) -> float:
        """Share of the whole window."""
        return self.expected / self.window.context


class WindowMeter:
    """Estimates each request before it is sent, and learns from what was reported. Of one model's conversation."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.reported: int | None = None
        self.error: float | None = None
        self._calibration = Calibration()
        self._known = 0
        self._epoch = 0

    def expected(self, view: View) -> int:
        """Tokens of a request of `view`."""
        return self._expected(view.items, view.epoch.number)

    def learn(self, sent: Sequence[Item], known: int, epoch: int, use: TokenUse) -> None:
        """A request of the items `sent` was reported to have `use`.

        known: how many items the view has with its answer; epoch: its number.
        """
        expected = self._expected(sent, epoch)
        self.error = (expected - use.logical) / use.logical if use.logical else None
        self._calibration = self._calibration.with_request(use.logical, sum(item.tokens for item in sent))
        self.reported = use.logical + use.output
        self._known = known
        self._epoch = epoch

    def _expected(self, items: Sequence[Item], epoch: int) -> int:
        if self.reported is None or epoch != self._epoch:
            return self._calibration.expected(items)
        return self._calibration.expected(items, self._known, self.reported)

    def forget(self) -> None:
        """An edit has changed what was reported; how many bytes a token has stays known."""
        self.reported = None

    def reading(self, view: View) -> Reading:
        """Where it stands for the next request."""
        expected = self.expected(view)
        parts = breakdown(view)
        scale = expected / max(1, sum(parts.values()))
        scaled = {name: round(tokens * scale) for name, tokens in parts.items()}
        reported = self.reported if view.epoch.number == self._epoch else None
        return Reading(self.window, expected, reported, MappingProxyType(scaled), self.error)


def breakdown(view: View) -> dict[str, int]:
    """Tokens of a view's items by what they are, as estimated; the largest first."""
    found: Counter[str] = Counter()
    for item in view.items:
        if item.kind == "tools":
            found.update(_by_server(view, item))
        else:
            found[_label(item)] += item.tokens
    return dict(found.most_common())


def _label(item: Item) -> str:
    match item.kind:
        case "system" | "reasoning" | "summary":
            return item.kind
        case "result":
            return "tool results"
        case _:
            return item.role


def _by_server(view: View, item: Item) -> Counter[str]:
    part = view.messages[item.message].parts[item.part]
    assert isinstance(part, Tools)
    found: Counter[str] = Counter()
    for definition in part.definitions:
        server, mark, _ = tool_name(definition).partition(SERVER_MARK)
        size = len(msgspec.json.encode(definition))
        found[f"tools: {server if mark else BUILT_IN}"] += view.estimate.tokens("tools", size)
    return found


@dataclass(slots=True)
class Spent:
    """What requests have taken: `use` of all, and by purpose.

    uncounted: requests of which no usage was reported, so that they are in no sum at all.
    """

    use: TokenUse = NO_USE
    purposes: dict[str, TokenUse] = field(default_factory=dict)
    requests: int = 0
    uncounted: int = 0
    _lines: list[RequestLine] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[RequestLine]) -> Spent:
        """The sum over lines."""
        spent = cls()
        for line in lines:
            spent.add(line)
        return spent

    def add(self, line: RequestLine) -> None:
        """Count one more request, whatever it was for."""
        self.requests += 1
        if line.use == NO_USE:
            self.uncounted += 1
            return
        self.use += line.use
        self.purposes[line.purpose] = self.purposes.get(line.purpose, NO_USE) + line.use
        self._lines.append(line)

    def money(self) -> tuple[Decimal, int]:
        """US dollars, and of how many requests nobody knows the price, so that they are not in it.

        Looked up now, request by request: some models cost more from a certain size on.
        """
        prices = [price_of(line) for line in self._lines]
        known = [price for price in prices if price is not None]
        return sum(known, Decimal(0)), len(prices) - len(known)
