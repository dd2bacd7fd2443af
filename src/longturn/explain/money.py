"""What a miss has cost, by the prices of today."""

from __future__ import annotations

from decimal import Decimal

from longturn.errors import ConfigError
from longturn.explain.exchange import Exchange
from longturn.ledger import TokenUse
from longturn.ledger.prices import priced_name, saving

PRICED_AS = {"openai": "openai", "openai-chat": "openai", "anthropic": "anthropic", "gemini": "google"}
"""Dialect -> the provider whose prices hold."""
HOUR = "1h"


def lost_usd(later: Exchange, lost: int) -> Decimal | None:
    """US dollars that request `later` would have cost less with `lost` tokens more from the cache.

    By its usage, or else by estimated counts. None where its model has no known price, or prices are not installed.
    """
    if not lost:
        return Decimal(0)
    use = later.use or _estimated(later)
    name = priced_name(PRICED_AS[later.prompt.provider], later.prompt.model)
    try:
        return saving(name, use, lost, _for_an_hour(later, use))
    except ConfigError:
        return None


def dollars(usd: Decimal) -> str:
    """An amount for people."""
    if 0 < usd < Decimal("0.0001"):
        return "less than $0.0001"
    return f"${usd:.2g}" if 0 < usd < 1 else f"${usd:,.2f}"


def _estimated(later: Exchange) -> TokenUse:
    """As if nothing had been found; what is marked is written."""
    marked = later.prompt.marking != "automatic" and later.prompt.marks
    logical = later.logical
    return TokenUse(logical, {}, logical, written=later.tokens(later.marked) if marked else 0)


def _for_an_hour(later: Exchange, use: TokenUse) -> int:
    """Those of the written tokens that are to be kept for an hour."""
    split = later.usage.get("cache_creation")
    if isinstance(split, dict):
        count = split.get("ephemeral_1h_input_tokens")
        return min(count, use.written) if isinstance(count, int) else 0
    return use.written if any(mark.ttl == HOUR for mark in later.prompt.marks) else 0
