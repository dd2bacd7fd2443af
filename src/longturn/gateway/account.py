"""`Bookkeeper`: from what went through to the line of the ledger, with price, cause of the miss and expectation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec

from longturn.dialects.segments.form import as_dict
from longturn.explain import Exchange, Verdict, explain_exchanges
from longturn.explain.pair import Pair
from longturn.gateway.answer import Answer
from longturn.gateway.conversations import Conversations, Realm, session_in, shape_of
from longturn.gateway.entries import Entry
from longturn.gateway.frames import Answered, Asked, Ended
from longturn.ledger import NO_USE, RequestLine
from longturn.ledger.prices import price, priced_name, provider_at, saving

MODEL_IN_PATH = ("/models/", "/deployments/")
UNEXPLAINED = ("none", "routing", "usage_double_count")
"""Verdicts by which the later request should have found what the earlier one had left."""
SHORT = 0.9
"""Share of the expected cached tokens below which the provider's count does not fit."""
STEP = 1024
"""Cached tokens that may be more than expected: providers round, and answers are cached, too."""


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that is known of one exchange when it is over. body: of the request, decoded; None if unreadable."""

    asked: Asked
    body: bytes | None
    answered: Answered | None
    answer: Answer
    ended: Ended


@dataclass(slots=True)
class Bookkeeper:
    """Accounts for exchanges, and remembers conversations. prices: whose prices hold, where the upstream does not say.

    content: keep what verdicts quote of prompts.
    """

    prices: str | None = None
    content: bool = False
    conversations: Conversations = field(default_factory=Conversations)

    def account(self, told: Told) -> tuple[RequestLine, Entry]:
        """The line and the entry of an exchange."""
        asked, answer, ended = told.asked, told.answer, told.ended
        body, trouble = _read(told)
        exchange = Exchange.read(
            {"request": body, "usage": dict(answer.usage or {}), "time": asked.started_at}, asked.dialect
        )
        use = exchange.use
        if use is None and answer.usage:
            trouble = trouble or "the counts of the usage do not add up"
        realm: Realm = (asked.upstream, asked.dialect, asked.key)
        shape = shape_of(exchange.prompt)
        named = asked.session or session_in(body)
        # What `previous_response_id` brings has not been seen here.
        whole = bool(shape.chain) and not body.get("previous_response_id")
        before = self.conversations.find(realm, named, shape) if whole else None
        session = named or (before.session if before else f"auto-{shape.opening:016x}" if shape.chain else None)
        answered = told.answered is not None and told.answered.status < 400
        line = RequestLine(
            request_id=uuid.uuid4().hex,
            session=session,
            model=priced_name(
                self.prices or provider_of(asked.upstream),
                answer.model or exchange.prompt.model or _in_path(asked.path) or "unknown",
            ),
            started_at=asked.started_at,
            use=use or NO_USE,
            ttft_ms=ended.ttft_ms,
            total_ms=ended.total_ms,
            finish_reason=answer.finish,
        )
        written_1h = _written_1h(answer.usage)
        usd = price(line.model, line.use, written_1h) if use else None
        entry = Entry(
            request_id=line.request_id,
            started_at=line.started_at,
            upstream=asked.upstream,
            dialect=asked.dialect,
            key=asked.key,
            status=told.answered.status if told.answered else None,
            # OpenAI's clients leave at `[DONE]`, which can be a moment before the connection's own end.
            outcome="complete" if answer.ended and ended.outcome == "client_left" else ended.outcome,
            error=answer.error,
            ended=answer.ended,
            garbled=answer.garbled,
            trouble="the accountant fell behind" if ended.lost else trouble or answer.trouble,
            silence_ms=ended.silence_ms,
            sent_bytes=ended.sent_bytes,
            got_bytes=ended.got_bytes,
            prompt_hash=f"{shape.chain[-1]:016x}" if shape.chain else None,
            segments=len(shape.chain),
            usd=None if usd is None else float(usd),
        )
        if before is not None and answered and session is not None:
            earlier = Exchange.read(
                {"request": msgspec.json.decode(before.request()), "usage": before.usage, "time": before.time},
                asked.dialect,
            )
            line, entry = self._explained(line, entry, Pair(earlier, exchange), written_1h)
        if answered and session is not None and told.body is not None and whole:
            self.conversations.keep(
                realm, session, named is not None, shape, told.body, dict(answer.usage or {}), asked.started_at
            )
        return line, entry

    def _explained(self, line: RequestLine, entry: Entry, pair: Pair, written_1h: int) -> tuple[RequestLine, Entry]:
        verdict = explain_exchanges(pair.a, pair.b)
        use = pair.b.use
        expected, drift = _expected(pair, verdict)
        entry = replace(entry, expected=expected, drift=drift)
        lost = _lost(pair, verdict)
        if not lost or verdict.mechanism == "none":
            return line, entry
        at = verdict.first_divergence
        place = f" at {at.segment}, byte {at.offset:,}" if at else ""
        saved = saving(line.model, use, lost, written_1h) if use else None
        entry = replace(
            entry,
            mechanism=verdict.mechanism,
            intentional=verdict.intentional,
            confidence=verdict.confidence,
            segment=at.segment if at else None,
            offset=at.offset if at else None,
            lost_tokens=lost,
            lost_usd=None if saved is None else float(saved),
            detail=msgspec.json.encode(verdict.to_dict()).decode() if self.content else None,
        )
        return replace(line, miss=f"{verdict.mechanism}{place}"), entry


def _expected(pair: Pair, verdict: Verdict) -> tuple[int | None, int | None]:
    """Cached tokens that the content lets expect, and by how much the reported count is off, where it does not fit."""
    use = pair.b.use
    if use is None or not pair.a.left:
        return None, None
    expected = pair.a.left if pair.append_only else min(pair.a.left, pair.a.tokens(pair.index))
    drift = use.cached_total - expected
    short = verdict.mechanism in UNEXPLAINED and pair.append_only and use.cached_total < SHORT * expected
    over = drift > max(STEP, (1 - SHORT) * expected)
    return expected, drift if short or over else None


def _lost(pair: Pair, verdict: Verdict) -> int:
    """Tokens that mending the cause would have had cached."""
    if verdict.mechanism == "no_marks" and not verdict.lost_tokens and pair.b.use is not None:
        # Nothing was kept, so nothing was lost; but all that both have in common could have been.
        shared = pair.a.tokens(pair.index)
        return max(0, shared - pair.b.use.cached_total) if shared >= pair.a.minimum else 0
    return verdict.lost_tokens


def _read(told: Told) -> tuple[dict[str, Any], str | None]:
    """The body of the request as an object, and why it is none."""
    if told.body is None:
        return {}, "the request was not kept whole, or is not in its encoding"
    try:
        # Keys keep their order: some causes show only there.
        body = as_dict(msgspec.json.decode(told.body))
        # Google's say their model in the path only.
        return ({**body, "model": model} if body and (model := _in_path(told.asked.path)) else body), None
    except (msgspec.DecodeError, RecursionError):
        return {}, "the request is not JSON"


def _in_path(path: str) -> str:
    """The model that a path names; empty where it names none."""
    found = next((path.partition(mark)[2] for mark in MODEL_IN_PATH if mark in path), "")
    return found.partition("/")[0].partition(":")[0]


def _written_1h(usage: Mapping[str, Any] | None) -> int:
    count = as_dict((usage or {}).get("cache_creation")).get("ephemeral_1h_input_tokens")
    return count if isinstance(count, int) else 0


@cache
def provider_of(upstream: str) -> str | None:
    """Whose prices hold for an upstream."""
    return provider_at(upstream)
