"""`Bookkeeper`: from what went through to the line of the ledger, with price, cause of the miss and expectation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec

from longturn.dialects.segments.form import as_dict
from longturn.explain import Exchange, explain_exchanges
from longturn.explain.pair import Pair
from longturn.gateway.answer import Answer
from longturn.gateway.cause import Cause, cause_of, engine_said
from longturn.gateway.conversations import Conversations, Realm, session_in, shape_of
from longturn.gateway.entries import Entry
from longturn.gateway.frames import Answered, Asked, Ended
from longturn.gateway.headers import BETAS
from longturn.ledger import NO_USE, RequestLine
from longturn.ledger.prices import price, priced_name, provider_at, saving

MODEL_IN_PATH = ("/models/", "/deployments/")
UNEXPLAINED = ("routing", "usage_double_count")
"""Causes by which the later request should have found what the earlier one had left."""
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
        exchange = _exchange(asked.dialect, body, asked.betas, answer.usage, asked.started_at)
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
        if not answered:
            return line, entry
        pair = None
        if before is not None:
            request = msgspec.json.decode(before.request())
            pair = Pair(_exchange(asked.dialect, request, before.betas, before.usage, before.time), exchange)
        line, entry = self._explained(line, entry, exchange, pair, written_1h)
        if session is not None and told.body is not None and whole:
            past = (told.body, dict(answer.usage or {}), asked.started_at, asked.betas)
            self.conversations.keep(realm, session, named is not None, shape, *past)
        return line, entry

    def _explained(
        self, line: RequestLine, entry: Entry, exchange: Exchange, pair: Pair | None, written_1h: int
    ) -> tuple[RequestLine, Entry]:
        verdict = explain_exchanges(pair.a, pair.b) if pair else None
        cause = cause_of(exchange, pair, verdict)
        if pair is not None:
            expected, drift = _expected(pair, cause)
            entry = replace(entry, expected=expected, drift=drift)
        found = cause.verdict if cause else None
        # An engine's own words come first: they are also those of its ledger.
        told = [engine_said(exchange), str(cause) if found else None]
        line = replace(line, miss="; ".join(filter(None, told)) or None)
        if cause is None:
            return line, entry
        at = found.first_divergence if found else None
        saved = saving(line.model, line.use, cause.lost, written_1h) if exchange.use else None
        return line, replace(
            entry,
            mechanism=cause.mechanism,
            intentional=cause.intentional,
            confidence=cause.confidence,
            segment=at.segment if at else None,
            offset=at.offset if at else None,
            lost_tokens=cause.lost,
            lost_usd=None if saved is None else float(saved),
            detail=msgspec.json.encode(found.to_dict()).decode() if found and self.content else None,
        )


def _expected(pair: Pair, cause: Cause | None) -> tuple[int | None, int | None]:
    """Cached tokens that the content lets expect, and by how much the reported count is off, where it does not fit."""
    use = pair.b.use
    if use is None or not pair.a.left:
        return None, None
    expected = pair.a.left if pair.append_only else min(pair.a.left, pair.a.tokens(pair.index))
    drift = use.cached_total - expected
    unexplained = cause is None or cause.mechanism in UNEXPLAINED
    short = unexplained and pair.append_only and use.cached_total < SHORT * expected
    over = drift > max(STEP, (1 - SHORT) * expected)
    return expected, drift if short or over else None


def _exchange(dialect: str, body: Any, betas: str, usage: Mapping[str, Any] | None, time: float) -> Exchange:
    given = {"request": body, "headers": {BETAS: betas}, "usage": dict(usage or {}), "time": time}
    return Exchange.read(given, dialect)


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
