"""`fold`: from the entries of a history to the view, one entry after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from longturn.conversation.edits.apply import applied
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.item import Item, Place
from longturn.conversation.parts import File, Message, Text, Tools
from longturn.conversation.view.epochs import Epoch, only_grew
from longturn.conversation.view.estimate import Estimate
from longturn.conversation.view.items import interrupted, items_of
from longturn.errors import ConfigError

if TYPE_CHECKING:
    from longturn.conversation.view.render import Rendered


@dataclass(slots=True)
class View:
    """What the next request sends. Not to be changed: `fold` makes new ones.

    items: in the order in which they are sent; messages: all of the history, by number, whether they are sent or not;
    epochs: from the first to the present one; turn: of the newest user message, -1 before it; texts: of items that
    edits have added; waiting: calls at the end whose results are not there yet, by id; places: the items by their
    place; new_tools: a set of tools that waits for the next epoch; rendered: what `render` remembers.
    """

    estimate: Estimate
    items: list[Item] = field(default_factory=list)
    messages: dict[int, Message] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = (Epoch(0, 0, "the conversation began"),)
    turn: int = -1
    texts: dict[Place, str] = field(default_factory=dict)
    waiting: dict[str, Item] = field(default_factory=dict)
    places: dict[Place, Item] = field(default_factory=dict)
    new_tools: Item | None = None
    rendered: Rendered | None = None

    @property
    def tokens(self) -> int:
        """Of all items, as estimated."""
        return sum(item.tokens for item in self.items)

    @property
    def epoch(self) -> Epoch:
        """The present one."""
        return self.epochs[-1]


def fold(entries: Iterable[Entry], estimate: Estimate | None = None, onto: View | None = None) -> View:
    """The view after `entries`. onto: a view of the entries before them, which stays as it is; its estimate counts.

    Where an entry before them was taken back in between, fold them all anew. Raises ConfigError for edits that name
    what is not in the view.
    """
    if onto is None:
        view = View(estimate or Estimate())
    else:
        view = replace(
            onto,
            items=list(onto.items),
            messages=dict(onto.messages),
            texts=dict(onto.texts),
            waiting=dict(onto.waiting),
            places=dict(onto.places),
        )
    for entry in entries:
        if isinstance(entry, Said):
            _say(view, entry)
        elif not entry.undone:
            _edit(view, entry)
    return view


def _say(view: View, said: Said) -> None:
    message = said.message
    view.messages[said.seq] = message
    if message.role == "user" and any(
        isinstance(part, File) or (isinstance(part, Text) and part.text and not part.synthetic)
        for part in message.parts
    ):
        view.turn += 1
    new = items_of(said.seq, message, max(view.turn, 0), view.waiting, view.estimate)
    if any(isinstance(part, Tools) for part in message.parts):
        new = _take_tools(view, new)
    if said.born:
        if not all(edit.at_birth for edit in said.born):
            raise ConfigError(f"message {said.seq} was born with edits that begin an epoch: make them afterwards")
        for edit in said.born:
            new = edit.apply(new)
        for item in new:
            if item.refers_to is not None and item.refers_to not in view.places:
                raise ConfigError(f"message {said.seq} refers to part {item.refers_to}, which is not in the view")
    results = [item for item in new if item.kind == "result"]
    others = [item for item in new if item.kind != "result"]
    for result in results:
        view.waiting.pop(str(result.call), None)
    if others:
        results += [interrupted(call, view.estimate) for call in view.waiting.values()]
        view.waiting = {str(item.call): item for item in others if item.kind == "call"}
    _append(view, results + others)


def _take_tools(view: View, new: list[Item]) -> list[Item]:
    """Tools are sent before everything else, so a new set waits for the next epoch once anything was sent."""
    view.new_tools = [item for item in new if item.kind == "tools"][-1]
    if all(item.fixed for item in view.items):
        _start_with_tools(view)
    return [item for item in new if item.kind != "tools"]


def _start_with_tools(view: View) -> None:
    if view.new_tools is not None:
        view.items = [view.new_tools, *(item for item in view.items if item.kind != "tools")]
        view.places[view.new_tools.at] = view.new_tools
        view.new_tools, view.rendered = None, None


def _append(view: View, items: list[Item]) -> None:
    view.items += items
    view.places.update((item.at, item) for item in items)


def _edit(view: View, edited: Edited) -> None:
    items = applied(view.items, edited.edits)
    for edit in edited.edits:
        view.texts.update(edit.texts())
    begins = not edited.edits or not only_grew(view.items, items)
    view.items = items
    # An extract has the place of what it is cut from, which may be sent as well.
    view.places = {item.at: item for item in items if item.shape != "extract"}
    if begins:
        view.epochs += (Epoch(view.epoch.number + 1, edited.seq, edited.reason),)
        view.rendered = None
        _start_with_tools(view)
