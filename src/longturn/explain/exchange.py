"""One request with what is known about it: its usage, and when it was sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from typing import Any

from longturn.dialects import anthropic_usage, gemini_usage, openai_usage, responses_usage
from longturn.dialects.segments import Prompt, Segment, Setting, parse
from longturn.dialects.segments.form import as_dict
from longturn.errors import ConfigError, LedgerError
from longturn.explain import limits
from longturn.ledger import TokenUse

BYTES_PER_TOKEN = 4
PICTURE = 1500 * BYTES_PER_TOKEN
"""Weight of an image in bytes of text: what it is encoded in says nothing about its tokens."""
MILLISECONDS = 1e11
"""Times above this are not in seconds."""
ENGINE = "longturn"
"""Where our own server puts the whole line of its ledger, beside a provider's fields of usage."""
BETAS = "anthropic-beta"
"""The header by which a client of Anthropic's turns features on."""


@dataclass(frozen=True)
class Exchange:
    """A request and its circumstances.

    prompt: what headers say of it is among its settings. usage: the provider's usage object as it is. use: the same as
    counts; None if it is missing or does not add up. time: seconds since 1970 at which it was sent, or None.
    """

    prompt: Prompt
    body: Mapping[str, Any]
    usage: Mapping[str, Any] = field(default_factory=dict)
    use: TokenUse | None = None
    time: float | None = None

    @classmethod
    def read(cls, given: Any, provider: str) -> Exchange:
        """From a bare request body, or from {"request": body, "headers": ..., "usage": ..., "time": ...}.

        Raises ConfigError where it is neither.
        """
        if not isinstance(given, dict):
            raise ConfigError("a request must be a JSON object: the body, or one with `request`, `usage` and `time`")
        body = given.get("request", given)
        wrapped = given if "request" in given else {}
        if not isinstance(body, dict):
            raise ConfigError("`request` must be the body of the request, a JSON object")
        usage = wrapped.get("usage") or {}
        if not isinstance(usage, dict):
            raise ConfigError("`usage` must be the usage object of the answer, or be left away")
        prompt = _with_betas(parse(provider, body), wrapped.get("headers"))
        return cls(prompt, body, usage, counts(usage, provider), seconds(wrapped.get("time")))

    @cached_property
    def ends(self) -> list[int]:
        """Bytes of the prompt up to the end of each segment."""
        return list(accumulate(map(_weight, self.prompt.segments)))

    def tokens(self, segments: int) -> int:
        """Tokens of the first `segments` segments: by their bytes, scaled to the reported count where there is one."""
        if not self.ends or segments <= 0:
            return 0
        upto = self.ends[min(segments, len(self.ends)) - 1]
        if self.use is not None and self.use.logical:
            return round(upto / (self.ends[-1] or 1) * self.use.logical)
        return upto // BYTES_PER_TOKEN

    @property
    def logical(self) -> int:
        """Tokens of the whole prompt."""
        return self.tokens(len(self.prompt.segments))

    @property
    def minimum(self) -> int:
        """Tokens of the shortest prefix that is cached for this model."""
        return limits.minimum(self.prompt.provider, self.prompt.model)

    @property
    def marked(self) -> int:
        """Segments up to the last mark; all of them where caching needs no marks, or none was set."""
        marks = self.prompt.marks
        return marks[-1].index + 1 if marks else len(self.prompt.segments)

    @cached_property
    def left(self) -> int:
        """Tokens that this request should have left in the cache: as reported, else estimated. 0: too few to keep."""
        if self.use is not None and ENGINE in self.usage:
            # It keeps all that it computes, whatever a provider would have made of marks and minimums.
            return self.use.logical
        if self.use is not None and (self.use.cached_total or self.use.written):
            kept = self.use.cached_total + self.use.written
            everything = self.prompt.marking == "automatic" and self.prompt.handle is None
            return self.use.logical if everything else kept
        if self.use is not None and self.prompt.provider == "anthropic":
            return 0
        estimate = self.tokens(self.marked)
        return estimate if estimate >= self.minimum else 0


def betas_named(header: str) -> list[str]:
    """The features that a header `anthropic-beta` names: a set, whatever their order and however often they come."""
    return sorted({name.strip() for name in header.split(",") if name.strip()})


def _with_betas(prompt: Prompt, headers: Any) -> Prompt:
    """`prompt` with the features that its headers turn on: they are part of what is cached."""
    named = [text for name, text in as_dict(headers).items() if name.lower() == BETAS and isinstance(text, str)]
    if prompt.provider != "anthropic" or not (features := betas_named(",".join(named))):
        return prompt
    setting = Setting(features, f"$.headers.{BETAS}", "messages")
    return replace(prompt, settings={**prompt.settings, "betas": setting})


def _weight(segment: Segment) -> int:
    return PICTURE if segment.kind == "image" else len(segment.text.encode(errors="replace"))


def counts(usage: Mapping[str, Any], provider: str) -> TokenUse | None:
    """The counts of a usage object, told by its fields: proxies translate requests and answers apart."""
    if not usage:
        return None
    try:
        return _mapping(usage, provider)(usage)
    except (LedgerError, TypeError, AttributeError):
        return None


def _mapping(usage: Mapping[str, Any], provider: str) -> Callable[[Mapping[str, Any]], TokenUse]:
    if "promptTokenCount" in usage:
        return gemini_usage.use
    if "input_tokens" in usage:
        return anthropic_usage.use if provider == "anthropic" else responses_usage.use
    return openai_usage.use


def seconds(time: Any) -> float | None:
    """A time as seconds since 1970: from seconds or milliseconds, or ISO 8601 text, UTC unless it says otherwise.

    Raises ConfigError for anything else.
    """
    if time is None:
        return None
    if isinstance(time, int | float) and not isinstance(time, bool):
        return time / 1000 if time > MILLISECONDS else float(time)
    try:
        moment = datetime.fromisoformat(str(time))
    except ValueError:
        raise ConfigError(f"`time` is {time!r}: give seconds since 1970 or ISO 8601 text") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
