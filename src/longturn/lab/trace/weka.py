"""Claude Code sessions as WEKA publishes them: block ids in runs, sub-agents inside their session, think times.

Source of the format: callanjfox/kv-cache-tester, with the list of hash ids written as runs [first id, count, ...].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.following import ANSWERS_SHOWN, with_answer
from longturn.lab.trace.form import Blocks, TraceRequest

UNIT = 64
DAY = 86_400.0

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=2**40)]


class _Call(msgspec.Struct, tag_field="type"):
    """One request. `t` in seconds from the start of its session or sub-agent, `in` and `out` in tokens."""

    t: Seconds
    n_in: Annotated[int, Meta(ge=1, le=2**40)] = msgspec.field(name="in")
    n_out: Count = msgspec.field(name="out")
    hash_runs: list[Count]
    think_time: Seconds | None = None

    def __post_init__(self) -> None:
        if len(self.hash_runs) % 2 or 0 in self.hash_runs[1::2]:
            raise ValueError("hash_runs are pairs of a first id and a count of at least 1")


class _Plain(_Call, tag="n"):
    """A request that was not streamed."""


class _Streamed(_Call, tag="s"):
    """A request that was streamed."""


class _SubAgent(msgspec.Struct, tag_field="type", tag="subagent"):
    """A conversation that the session started; `t` in seconds from the start of the session."""

    t: Seconds
    agent_id: str
    requests: list[_Plain | _Streamed]
    tool_tokens: Count = 0
    system_tokens: Count = 0


class _Session(msgspec.Struct):
    """One line."""

    id: str
    block_size: Literal[64]
    hash_id_scope: Literal["local"]
    requests: list[_Plain | _Streamed | _SubAgent]
    tool_tokens: Count = 0
    system_tokens: Count = 0

    def __post_init__(self) -> None:
        for call in self.calls():
            n_blocks = sum(call.hash_runs[1::2])
            if n_blocks != call.n_in // UNIT:
                raise ValueError(
                    f"{call.n_in} tokens are {call.n_in // UNIT} whole blocks of {UNIT}, hash_runs hold {n_blocks}"
                )

    def calls(self) -> Iterator[_Call]:
        """All requests, those of sub-agents too."""
        for entry in self.requests:
            if isinstance(entry, _SubAgent):
                yield from entry.requests
            else:
                yield entry

    def n_ids(self) -> int:
        """One more than its highest block id."""
        return max(
            (sum(run) for call in self.calls() for run in zip(call.hash_runs[::2], call.hash_runs[1::2], strict=True)),
            default=0,
        )

    def chains(self) -> Iterator[_SubAgent]:
        """The conversations in it: its own, then those of its sub-agents."""
        own = [entry for entry in self.requests if not isinstance(entry, _SubAgent)]
        yield _SubAgent(0.0, "", own, self.tool_tokens, self.system_tokens)
        yield from (entry for entry in self.requests if isinstance(entry, _SubAgent))


class Weka(FileTrace):
    """A WEKA file. Sessions begin at random times within `span` seconds and are merged by time.

    All sessions are in memory, as runs of blocks, while they are gone through. With `shared_heads`, conversations whose
    tools and system prompt have the same sizes begin with the same blocks; without, sessions share nothing.
    """

    def __init__(
        self,
        file: TraceFile,
        *,
        skip_bad: bool = False,
        span: float = DAY,
        seed: int = 0,
        shared_heads: bool = False,
    ) -> None:
        notes = [
            f"Sessions begin at random within {span / 3600:g} h (seed {seed}) and are merged by time.",
            "The same sizes of tools and system prompt are taken for the same text, shared by all sessions."
            if shared_heads
            else "Sessions share no blocks with each other: the file tells ids within a session only.",
            "Sub-agents are part of their session and run beside it.",
            f"The last tokens of a prompt, fewer than {UNIT}, belong to no block.",
            ANSWERS_SHOWN,
        ]
        super().__init__(file, unit=UNIT, notes=notes, skip_bad=skip_bad)
        self._decode = msgspec.json.Decoder(_Session).decode
        self._span, self._seed, self._shared_heads = span, seed, shared_heads

    def __iter__(self) -> Iterator[TraceRequest]:
        random = np.random.default_rng(self._seed)
        requests: list[TraceRequest] = []
        heads: dict[tuple[int, int], Blocks] = {}
        n_ids = 0  # ids given away so far
        for number, session in self.records(self._decode):
            start = float(random.uniform(0, self._span))
            base, n_ids = n_ids, n_ids + session.n_ids()
            for chain in session.chains():
                prompts = [_prompt(call, base) for call in chain.requests]
                n_head = (chain.tool_tokens + chain.system_tokens) // UNIT
                if self._shared_heads and n_head and prompts:
                    sizes = chain.tool_tokens, chain.system_tokens
                    if sizes not in heads:
                        heads[sizes], n_ids = Blocks.runs([n_ids], [n_head]), n_ids + n_head
                    prompts = _with_head(heads[sizes], prompts)
                requests += _in_order(session.id, chain, prompts, start + chain.t, f"line {number}")
        requests.sort(key=lambda request: request.time)
        yield from requests


def _prompt(call: _Call, base: int) -> Blocks:
    return Blocks.runs(np.array(call.hash_runs[::2], dtype=np.int64) + base, call.hash_runs[1::2])


def _with_head(head: Blocks, prompts: list[Blocks]) -> list[Blocks]:
    """The prompts of one conversation, its own ids for the head replaced as far as they are those of its beginning."""
    own = prompts[0].part(0, min(len(head), len(prompts[0])))
    shared = [own.shared_with(prompt) for prompt in prompts]
    return [
        Blocks.join(head.part(0, n), prompt.part(n, len(prompt))) for n, prompt in zip(shared, prompts, strict=True)
    ]


def _in_order(
    session: str, chain: _SubAgent, prompts: list[Blocks], start: float, where: str
) -> Iterator[TraceRequest]:
    """The requests of one conversation, with what each shows of the answer before it."""
    before: TraceRequest | None = None
    agent = f", sub-agent {chain.agent_id}" if chain.agent_id else ""
    for place, (call, prompt) in enumerate(zip(chain.requests, prompts, strict=True), start=1):
        request = TraceRequest(
            id="/".join(part for part in (session, chain.agent_id, str(place)) if part),
            session=session,
            time=start + call.t,
            prompt=prompt,
            prompt_tokens=call.n_in,
            output_tokens=call.n_out,
            think=call.think_time if before else None,
            label=f"{where}{agent}, request {place}",
        )
        if before:
            yield with_answer(before, request, UNIT)
        before = request
    if before:
        yield before
