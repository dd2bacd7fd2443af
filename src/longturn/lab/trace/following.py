"""Which request goes on from which, where a trace does not say so, and what that shows of the answer before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from longturn.lab.trace.form import TraceRequest

LOOK_AHEAD = 1 << 14
"""Requests that are held back to see their answers in a later prompt."""
OPEN_ENDS = 1 << 20
"""Ends of prompts that a later request may go on from."""

ANSWERS_SHOWN = (
    "Answers are known where the next request of the conversation repeats them, as far as whole blocks go; the first "
    "block holds the prompt's end and the answer's beginning."
)


def with_answer(request: TraceRequest, following: TraceRequest, unit: int) -> TraceRequest:
    """The request with the whole blocks of its answer that the `following` prompt repeats.

    Unchanged where `following` does not begin with all whole blocks of its prompt, or where the answer is known.
    """
    n_prompt = request.prompt_tokens // unit
    if request.output is not None or request.prompt.shared_with(following.prompt) < n_prompt:
        return request
    n_both = min(request.prompt_tokens + request.output_tokens, following.prompt_tokens) // unit
    return replace(request, output=following.prompt.part(n_prompt, max(n_prompt, n_both)))


@dataclass(frozen=True, slots=True)
class End:
    """Where an earlier prompt ended: how many of the keys asked for lie before, its session, its place in the trace."""

    depth: int
    session: str
    place: int


class FollowUps:
    """Finds the request that another goes on from, and holds requests back until that one may have shown their answer.

    Prompts are given as keys, of which each stands for all content up to it. Memory is bounded by LOOK_AHEAD requests
    and OPEN_ENDS ends; what is older is given out, or forgotten.
    """

    def __init__(self) -> None:
        # Plain dicts look for their first entry among all that were deleted before it.
        self._ends: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._held: OrderedDict[int, TraceRequest] = OrderedDict()
        self._n_requests = 0

    def before(self, keys: Sequence[int], least: int = 1) -> End | None:
        """The end of the longest earlier prompt, of at least `least` keys, that lies before the last of `keys`."""
        for depth in range(len(keys), least - 1, -1):
            if (end := self._ends.get(keys[depth - 1])) is not None:
                return End(depth, *end)
        return None

    def change(self, end: End, change: Callable[[TraceRequest], TraceRequest]) -> None:
        """Change an earlier request, if it is still held back."""
        if end.place in self._held:
            self._held[end.place] = change(self._held[end.place])

    def hold(self, request: TraceRequest, key: int | None) -> Iterator[TraceRequest]:
        """Add the next request, which ends with `key` if another may go on from it. Gives those held long enough."""
        if key is not None:
            self._ends[key] = request.session, self._n_requests
            self._ends.move_to_end(key)
            if len(self._ends) > OPEN_ENDS:
                self._ends.popitem(last=False)
        self._held[self._n_requests] = request
        self._n_requests += 1
        if len(self._held) > LOOK_AHEAD:
            yield self._held.popitem(last=False)[1]

    def rest(self) -> Iterator[TraceRequest]:
        """Those still held back, once there are no more."""
        yield from self._held.values()
        self._held.clear()
