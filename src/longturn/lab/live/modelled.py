"""The same requests through a cache policy of ours: what a server reported beside what the model of it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longturn.lab.live.drive import Exchange
from longturn.lab.replay import replay_hits
from longturn.lab.trace import Blocks, TraceRequest


@dataclass(frozen=True, slots=True)
class Model:
    """A policy, its options and the room it gets, in tokens."""

    policy: str
    options: Mapping[str, Any]
    device_tokens: int
    host_tokens: int = 0


@dataclass
class Sent:
    """The requests that a server began to answer, as a trace of the tokens sent, in order of sending."""

    exchanges: Sequence[Exchange]
    name: str = "requests as sent"
    unit: int = 1
    notes: list[str] = field(default_factory=lambda: ["the modelled cache begins empty; the server's may not have"])

    def __iter__(self) -> Iterator[TraceRequest]:
        for one in self.exchanges:
            generated = one.reply.output_tokens
            yield TraceRequest(
                id=one.call.id,
                session=one.call.session,
                time=one.reply.started_s,
                prompt=Blocks.of(one.sent),
                prompt_tokens=len(one.sent),
                output_tokens=len(one.reply.arrivals_s) if generated is None else generated,
                output=None if one.answer is None else Blocks.of(one.answer),
            )


Told = dict[int, int | str | None]
"""Index of a call to its modelled cached tokens; "rejected": the policy would refuse it, None: it was left out."""


def compare(exchanges: Sequence[Exchange], model: Model) -> tuple[Told, dict[str, Any]]:
    """Replay the requests serially and set modelled cached tokens beside measured ones.

    Returns what is modelled of each request, and sums: compared: requests for which both are known; exact: those of
    them that are equal; measured, modelled: tokens of them; drift: modelled less measured. Requests that never came to
    an answer are left out. Raises ConfigError for a policy that cannot be.
    """
    begun = [one for one in exchanges if one.reply.arrivals_s]
    replay = replay_hits(Sent(begun), model.policy, model.options, model.device_tokens, model.host_tokens)
    modelled = {one.call.index: served.reported for one, served in zip(begun, replay.served, strict=True)}
    pairs = [
        (one.reply.cached_tokens, n)
        for one in begun
        if (n := modelled[one.call.index]) is not None and one.reply.cached_tokens is not None
    ]
    sums = [sum(column) for column in zip(*pairs, strict=True)] or [0, 0]
    told: Told = {one.call.index: None for one in exchanges}
    told |= {index: "rejected" if n is None else n for index, n in modelled.items()}
    return told, {
        "policy": replay.policy,
        "options": replay.options,
        "device_tokens": replay.device_tokens,
        "host_tokens": replay.host_tokens or None,
        "compared": len(pairs),
        "exact": sum(measured == n for measured, n in pairs),
        "measured": sums[0],
        "modelled": sums[1],
        "drift": sums[1] - sums[0],
        "premises": replay.premises,
    }
