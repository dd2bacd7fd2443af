"""What is known of each provider: cache rules by model, context windows, prices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from longturn.errors import ConfigError
from longturn.lab.context.caches import Automatic, Marked, MessageEnds, PrefixCache
from longturn.lab.context.rates import HOUR, MINUTES
from longturn.ledger import TokenUse

PROVIDERS = ("anthropic", "openai", "gemini", "self")

ANTHROPIC_MINIMUM = (
    (r"opus-4-8|sonnet-5(?!-5)|sonnet-4|opus-4-1|opus-4-2", 1024),
    (r"opus-4-7|haiku-3-5|3-5-haiku", 2048),
    (r"opus-4-[56]|haiku-4-5", 4096),
    (r"", 512),
)
"""Shortest prefix that is cached, in tokens, by the first pattern that is found in the model's name."""
GEMINI_MINIMUM = ((r"2\.5-flash", 1024), (r"", 4096))
OPENAI_MINIMUM, OPENAI_STEP = 1024, 128
OPENAI_LIFE, OPENAI_MARKED_LIFE = 24 * HOUR, 1800.0
GEMINI_LIFE = MINUTES
"""Google says no more than that entries mostly end early."""
FOR_EVER = float("inf")

DEFAULT_MODELS = {"openai": "gpt-5.2", "gemini": "gemini-3-pro-preview"}
PRICED_AS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google"}


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, and a model of it where calls are not to be priced as the model that was recorded."""

    name: str
    model: str | None = None

    def __post_init__(self) -> None:
        if self.name not in PROVIDERS:
            raise ConfigError(f"no provider is called {self.name!r}: choose one of {', '.join(PROVIDERS)}")

    def model_of(self, recorded: str) -> str:
        """Which model answers a call that `recorded` answered."""
        return self.model or DEFAULT_MODELS.get(self.name) or recorded

    def cache(self, model: str) -> PrefixCache:
        """An empty cache of a model."""
        if self.name == "anthropic":
            return Marked(_by_name(ANTHROPIC_MINIMUM, model))
        if self.name == "openai" and _has_breakpoints(model):
            return MessageEnds(OPENAI_MINIMUM, OPENAI_MARKED_LIFE)
        if self.name == "openai":
            return Automatic(OPENAI_MINIMUM, OPENAI_STEP, OPENAI_LIFE)
        if self.name == "gemini":
            return Automatic(_by_name(GEMINI_MINIMUM, model), 1, GEMINI_LIFE)
        return Automatic(1, 1, FOR_EVER, tier="device")

    def life(self, model: str, ttl: float) -> float:
        """Seconds that an entry lives unused. ttl: what the client asks for, where it may."""
        if self.name == "anthropic":
            return ttl
        if self.name == "openai":
            return OPENAI_MARKED_LIFE if _has_breakpoints(model) else OPENAI_LIFE
        return GEMINI_LIFE if self.name == "gemini" else FOR_EVER

    def price(self, model: str, use: TokenUse, ttl: float) -> Decimal | None:
        """US dollars of one call; None on an engine of one's own. Raises ConfigError for a model without a price."""
        if self.name == "self":
            return None
        try:
            from genai_prices import Usage, calc_price
        except ModuleNotFoundError as error:
            raise ConfigError(f"prices need a package ({error}): pip install 'longturn[conversation]'") from None
        usage = Usage(
            input_tokens=use.logical,
            cache_read_tokens=use.cached_total,
            cache_write_tokens=use.written,
            cache_write_1h_tokens=use.written if ttl >= HOUR and self.name == "anthropic" else 0,
            output_tokens=use.output,
        )
        try:
            return calc_price(usage, model, provider_id=PRICED_AS[self.name]).total_price
        except LookupError:
            raise ConfigError(
                f"no price of {self.name} is known for the model {model!r}: name another with --model"
            ) from None

    def notes(self, models: Sequence[str]) -> list[str]:
        """The rules that hold, for people."""
        if self.name == "self":
            return ["Own engine: the longest prefix ever sent is cached, for ever, but for the last token; no price."]
        prices = "Prices are those of genai-prices for " + ", ".join(models) + "."
        if self.name == "anthropic":
            minimum = ", ".join(f"{_by_name(ANTHROPIC_MINIMUM, model):,} for {model}" for model in models)
            return [
                f"Anthropic: at least {minimum} tokens; four breakpoints (two in the head, the latest two runs of user "
                "messages or results), 20 positions back; a hit or write lives on after its answer as asked for.",
                prices,
            ]
        if self.name == "gemini":
            minimum = ", ".join(f"{_by_name(GEMINI_MINIMUM, model):,}" for model in models)
            return [
                f"Gemini: implicit caching of the longest common prefix from {minimum} tokens on. How long it lives is "
                f"not published; {GEMINI_LIFE / 60:.0f} minutes are assumed.",
                prices,
            ]
        if any(map(_has_breakpoints, models)):
            return [
                f"OpenAI: prefixes from {OPENAI_MINIMUM:,} tokens that end with a message, found at the latest "
                "20 ends before, 30 minutes after their latest use; writes are charged.",
                prices,
            ]
        return [
            f"OpenAI: automatic, from {OPENAI_MINIMUM:,} tokens in steps of {OPENAI_STEP}, for 24 hours; writes are "
            "free.",
            prices,
        ]


def _by_name(table: Sequence[tuple[str, int]], model: str) -> int:
    return next(tokens for pattern, tokens in table if re.search(pattern, model))


def _has_breakpoints(model: str) -> bool:
    """OpenAI's models from gpt-5.6 on."""
    version = re.search(r"gpt-(\d+)(?:\.(\d+))?", model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= (5, 6)
