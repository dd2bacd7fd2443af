"""What requests cost: by `genai-prices`, looked up now, request by request."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from longturn.errors import ConfigError
from longturn.ledger.line import RequestLine
from longturn.ledger.use import TokenUse


def priced_name(provider: str | None, model: str) -> str:
    """How a ledger line names a model, so that its price can be found: a server's own model has none."""
    return f"{provider}:{model}" if provider else model


def provider_at(url: str) -> str | None:
    """Whose API is at `url`, as `genai-prices` knows it; None for anybody else's server.

    Raises ConfigError where that package is missing.
    """
    try:
        from genai_prices import data_snapshot
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        return data_snapshot.get_snapshot().find_provider(None, None, url).id
    except LookupError:
        return None


def price_of(line: RequestLine) -> Decimal | None:
    """US dollars of a request; None where nobody charges or the price is not known. Raises as `price` does."""
    return price(line.model, line.use)


def price(name: str, use: TokenUse, written_1h: int = 0) -> Decimal | None:
    """US dollars of `use` by a model that is named as `priced_name` does; None where its price is not known.

    written_1h: those of the written tokens that are to be kept for an hour, which costs more. Raises ConfigError where
    `genai-prices` is missing.
    """
    provider, named, model = name.partition(":")
    if not named:
        return None
    try:
        from genai_prices import Usage, calc_price
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    # Its convention is inclusive: what was read from and written to a cache is part of the input.
    usage = Usage(
        input_tokens=use.logical,
        cache_read_tokens=use.cached_total,
        cache_write_tokens=use.written,
        cache_write_1h_tokens=written_1h,
        output_tokens=use.output,
    )
    try:
        return calc_price(usage, model, provider_id=provider).total_price
    except LookupError:
        return None


def saving(name: str, use: TokenUse, lost: int, written_1h: int = 0) -> Decimal | None:
    """US dollars that a request of `use` would have cost less with `lost` tokens more from the cache.

    None where the price is not known. Raises as `price` does.
    """
    lost = min(lost, use.computed)
    cached = {**use.cached, "provider": use.cached.get("provider", 0) + lost}
    better = replace(use, cached=cached, computed=use.computed - lost, written=max(0, use.written - lost))
    paid, due = price(name, use, written_1h), price(name, better, max(0, written_1h - lost))
    return None if paid is None or due is None else paid - due


def _missing(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"prices need a package ({error}): pip install genai-prices")
