"""What a run against a server comes to, as plain data: the three token counts, times, failures, and every drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from longturn.dialects.engine_counters import growth, total
from longturn.dialects.engines import Engine
from longturn.lab.live.drive import Exchange
from longturn.lab.live.metrics import Page

Json = dict[str, Any]


def settle_zeros(exchanges: Sequence[Exchange], engine: Engine) -> None:
    """Where an engine leaves zeros out but has reported cached tokens, what it left out was zero (mutates replies)."""
    replies = [one.reply for one in exchanges]
    if engine.silent_zero and any(reply.cached_tokens is not None for reply in replies):
        for reply in replies:
            if reply.prompt_tokens is not None and reply.cached_tokens is None:
                reply.cached_tokens = 0


def totals(exchanges: Sequence[Exchange]) -> Json:
    """Sums over the requests that were answered.

    sent: tokens as this client counts them; logical, output: as the server counts them; cached, computed: over the
    requests for which it reports cached tokens, which `reported` counts; None where it reports none at all.
    """
    good = [one.reply for one in exchanges if one.reply.outcome == "ok"]
    told = [reply for reply in good if reply.cached_tokens is not None and reply.prompt_tokens is not None]
    cached = sum(reply.cached_tokens or 0 for reply in told)
    return {
        "requests": len(exchanges),
        "answered": len(good),
        "outcomes": dict(Counter(one.reply.outcome for one in exchanges)),
        "sent": sum(reply.sent_tokens for reply in good),
        "logical": _sum(reply.prompt_tokens for reply in good),
        "cached": cached if told else None,
        "computed": sum(reply.prompt_tokens or 0 for reply in told) - cached if told else None,
        "output": _sum(reply.output_tokens for reply in good),
        "reported": len(told),
    }


def _sum(values: Iterable[int | None]) -> int | None:
    """None if nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def times(exchanges: Sequence[Exchange]) -> Json:
    """Percentiles in seconds over the answered requests: to the first token, between chunks, to the end; of all of
    them from when they were to be sent until they were."""
    good = [one.reply for one in exchanges if one.reply.outcome == "ok"]
    samples = {
        "ttft_s": [reply.ttft_s for reply in good],
        "gap_s": [gap for reply in good for gap in reply.gaps_s],
        "total_s": [reply.ended_s - reply.started_s for reply in good if reply.ended_s is not None],
        "late_s": [late for one in exchanges if (late := _late(one)) is not None],
    }
    return {name: percentiles(values) for name, values in samples.items()}


def _late(one: Exchange) -> float | None:
    return None if one.due_s is None else max(0.0, one.reply.started_s - one.due_s)


def percentiles(values: Sequence[float]) -> Json:
    """p50, p95 and the longest, by linear interpolation; None of nothing."""
    if not values:
        return {"p50": None, "p95": None, "max": None}
    return {"p50": float(np.percentile(values, 50)), "p95": float(np.percentile(values, 95)), "max": max(values)}


def own_counters(engine: Engine, before: Page, after: Page, sums: Json) -> Json:
    """The growth of the engine's own counters, and how far each is from the sum of what it said in its answers.

    drift: counter less answers, in tokens; None where one of both is missing. Requests of other clients and requests
    that failed are in the counters alone.
    """
    trouble = before.trouble or after.trouble
    grown = {} if trouble else growth(before.counters, after.counters)
    if any(value < 0 for series in grown.values() for value in series.values()):
        trouble, grown = "the counters went back: the server was started again during the run", {}
    cached, computed = total(grown, engine.cached), total(grown, engine.computed)
    logical = total(grown, engine.logical)
    if logical is None and cached is not None and computed is not None:
        logical = cached + computed
    counted = {"logical": logical, "cached": cached, "computed": computed}
    # A sum over some answers only is no sum.
    whole = {"logical": sums["logical"], "cached": sums["cached"] if sums["reported"] == sums["answered"] else None}
    drift = {name: _less(counted[name], told) for name, told in whole.items()}
    return {"trouble": trouble or None, "counted": counted, "drift": drift, "grown": grown}


def _less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def row(one: Exchange, told: Mapping[int, int | str | None] | None) -> Json:
    """One request, with what the model has told of it, if there is one.

    cached_tokens is None where the server did not report it, which is not 0.
    """
    reply, call = one.reply, one.call
    return {
        "index": call.index,
        "id": call.id,
        "session": call.session,
        "outcome": reply.outcome,
        "error": reply.error,
        "started_s": reply.started_s,
        "late_s": _late(one),
        "ttft_s": reply.ttft_s if reply.arrivals_s else None,
        "gap_p50_s": float(np.median(reply.gaps_s)) if reply.gaps_s else None,
        "total_s": None if reply.ended_s is None else reply.ended_s - reply.started_s,
        "sent_tokens": reply.sent_tokens,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "output_tokens": reply.output_tokens,
        **({} if told is None else {"modelled_cached_tokens": told[call.index]}),
    }
