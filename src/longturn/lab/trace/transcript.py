"""A conversation as its entries go by: all that was said before a call is its prompt, what the call said its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from longturn.lab.trace.form import NO_BLOCKS, Blocks, TraceRequest
from longturn.lab.trace.heads import head

WAITING_CALLS = 4096


@dataclass(slots=True)
class Call:
    """One request whose answer is still coming in, part by part. Times in seconds."""

    key: str
    id: str
    session: str
    time: float
    prompt: Blocks
    think: float | None
    label: str
    closing: Blocks
    end: float = 0.0
    answer: list[Blocks] = field(default_factory=list)
    reported_output: int = 0
    closed: bool = False

    def output(self) -> Blocks:
        """The answer as it will stand in the next prompt."""
        return Blocks.join(*self.answer, self.closing)

    def request(self) -> TraceRequest:
        """What the trace shows of it. An answer is as long as its content or the provider's count, if that is more."""
        output = self.output()
        return TraceRequest(
            id=self.id,
            session=self.session,
            time=self.time,
            prompt=self.prompt,
            prompt_tokens=len(self.prompt),
            output_tokens=max(len(output), self.reported_output),
            output=output,
            think=self.think,
            label=self.label,
        )


class Transcript:
    """One conversation, in blocks of one token.

    calls: where its calls go when they begin; opening, closing: what a chat template puts around an answer; name: its
    place in its session, for ids; head_kind, shared_head: of what comes before the first entry, which is as long as the
    first call's reported prompt tells.
    """

    def __init__(
        self,
        session: str,
        calls: deque[Call],
        *,
        opening: Blocks = NO_BLOCKS,
        closing: Blocks = NO_BLOCKS,
        name: str = "",
        head_kind: str = "main",
        shared_head: bool = False,
    ) -> None:
        self.session = session
        self._calls = calls
        self._opening, self._closing = opening, closing
        self._name = name or session
        self._head_kind, self._shared_head = head_kind, shared_head
        self._head: Blocks | None = None
        self._has_head = False  # whether the history begins with it
        self._history: list[Blocks] = []
        self._call: Call | None = None
        self._since: list[Blocks] = []  # entries that came while the call was being answered
        self._arrival: float | None = None  # of the latest entry that was not an answer
        self._previous_end: float | None = None
        self._n_calls = 0

    def __len__(self) -> int:
        """Tokens of the history, the current call's answer included."""
        call = self._call
        current = [*call.answer, self._closing] if call else []
        return sum(map(len, (*self._history, *current, *self._since)))

    def add(self, said: Blocks, time: float | None = None) -> None:
        """Something that is no answer: of the user, a tool, the system."""
        (self._since if self._call else self._history).append(said)
        self._arrival = time if self._arrival is None or time is None else max(self._arrival, time)

    def answer(
        self,
        key: str,
        said: Blocks,
        *,
        label: str,
        time: float | None = None,
        reported_prompt: int = 0,
        reported_output: int = 0,
    ) -> None:
        """A part of the answer of the call `key`; another key than before begins a new call."""
        call = self._call
        if call is None or call.key != key:
            call = self._begin(key, label, time, reported_prompt)
        call.answer.append(said)
        call.reported_output = max(call.reported_output, reported_output)
        call.end = max(call.end, time or 0.0)

    def forget(self) -> None:
        """A compaction: only what stands before the first entry is left."""
        self.close()
        self._history, self._has_head = [], False

    def rewind(self, length: int) -> None:
        """Leave only the first `length` tokens of the history, as when an earlier message is edited."""
        self.close()
        self._history = [Blocks.join(*self._history).part(0, length)]

    def close(self) -> None:
        """No more parts of the current call will come."""
        if self._call is None:
            return
        call, self._call = self._call, None
        call.closed = True
        self._previous_end = call.end
        self._history += [*call.answer, self._closing, *self._since]
        self._since = []

    def _begin(self, key: str, label: str, time: float | None, reported_prompt: int) -> Call:
        self.close()
        if not self._has_head:
            self._put_head(reported_prompt - len(self) - len(self._opening))
        # An entry is written when it is complete: the request went out when the entry before the answer came in.
        before, times = self._previous_end, (self._arrival, time, self._previous_end)
        arrival = next((moment for moment in times if moment is not None), 0.0)
        self._arrival = None
        self._history = [Blocks.join(*self._history, self._opening)]
        self._n_calls += 1
        self._call = Call(
            key=key,
            id=f"{self._name}/{self._n_calls}",
            session=self.session,
            time=arrival,
            prompt=self._history[0],
            think=None if before is None or time is None else max(0.0, arrival - before),
            label=label,
            closing=self._closing,
            end=arrival,
        )
        self._calls.append(self._call)
        return self._call

    def _put_head(self, n_unseen: int) -> None:
        if self._head is None:
            n_tokens = n_unseen if len(self) else max(1, n_unseen)  # no prompt is empty
            self._head = head(self._name, self._head_kind, n_tokens, self._shared_head)
        elif n_unseen > 0:
            # The head of a resumed session held older history too, which the compaction has taken along.
            self._head = self._head.part(0, min(n_unseen, len(self._head)))
        self._history.insert(0, self._head)
        self._has_head = True


def finished(calls: deque[Call]) -> Iterator[TraceRequest]:
    """Take out the calls that are closed, in the order in which they began: those behind an open one wait for it.

    A call that is never closed, because its conversation just ends, holds up no more than WAITING_CALLS others.
    """
    while calls and (calls[0].closed or len(calls) > WAITING_CALLS):
        yield calls.popleft().request()
