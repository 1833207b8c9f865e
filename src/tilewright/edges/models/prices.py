"""What a call cost, by genai-prices' table: None where the table does not know the model at that address."""

from __future__ import annotations

from typing import Any


def price_usd(usage: Any, *, model: str, provider: str, base_url: str) -> float | None:
    """`usage` as pydantic-ai counts it. Where the user named an address, the price is that address's, if it is known:
    a server of one's own has no price, whatever its model is called."""
    from genai_prices import calc_price

    try:
        if base_url:
            return float(calc_price(usage, model, provider_api_url=base_url).total_price)
        return float(calc_price(usage, model, provider_id=provider).total_price)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # unknown, or counts that are none
        return None
