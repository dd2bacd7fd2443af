"""Several edits together, and what keeps a view whole after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item, Kind, Place
from longturn.errors import ConfigError


def applied(items: Sequence[Item], edits: Iterable[Edit]) -> list[Item]:
    """The items after `edits`, in order, as the view will have them. Raises ConfigError as the edits do."""
    result = list(items)
    for edit in edits:
        result = edit.apply(result)
    return mended(result)


def mended(items: list[Item]) -> list[Item]:
    """A reference to what is no longer sent whole would tell the model nothing: the first such is whole again, and
    those after it refer to that one."""
    if all(item.shape != "reference" for item in items):
        return items
    whole: dict[str, Place] = {}
    places: set[Place] = set()
    result = []
    for item in items:
        if item.shape == "reference" and item.refers_to not in places:
            if (other := whole.get(item.content)) is not None:
                item = msgspec.structs.replace(item, refers_to=other)
            else:
                item = made_whole(item)
        if item.shape == "whole" and item.kind == "result":
            whole.setdefault(item.content, item.at)
            places.add(item.at)
        result.append(item)
    return result


def made_whole(item: Item) -> Item:
    """The item as it was said."""
    return msgspec.structs.replace(item, shape="whole", tokens=item.whole_tokens, refers_to=None, cut=None)


def with_changed(
    items: Sequence[Item], places: Iterable[Place], kinds: tuple[Kind, ...], how: Callable[[Item], Item | None]
) -> list[Item]:
    """The items, with `how` done to those of `kinds` at `places`; None drops one. Raises ConfigError where there is
    none of them."""
    wanted = set(places)
    found = {item.at: how(item) for item in items if item.at in wanted and item.kind in kinds}
    if missing := sorted(wanted - found.keys()):
        raise ConfigError(
            f"parts {missing} are no {' or '.join(kinds)} of the view: make edits of what is sent, as it is sent"
        )
    changed = (found[item.at] if item.at in found and item.kind in kinds else item for item in items)
    return [item for item in changed if item is not None]


def without_halves(items: list[Item]) -> list[Item]:
    """The items less results whose call is not among them, and calls whose result is not: providers refuse halves.

    Calls that still wait are kept: only those at the end, behind which nothing but results came.
    """
    last = max((n for n, item in enumerate(items) if item.kind != "result" and item.kind != "call"), default=-1)
    open_calls: dict[str | None, int] = {}
    paired: set[int] = set()
    for number, item in enumerate(items):
        if item.kind == "call":
            open_calls[item.call] = number
        elif item.kind == "result" and (call := open_calls.pop(item.call, None)) is not None:
            paired |= {call, number}
    waiting = {number for number in open_calls.values() if number > last}
    return [
        item
        for number, item in enumerate(items)
        if item.kind not in ("call", "result") or number in paired or number in waiting
    ]
