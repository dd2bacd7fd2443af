"""Lists of items, a page at a time, as OpenAI's clients turn them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends

from longturn.dialects import responses
from longturn.errors import RequestError

Json = dict[str, Any]

LONGEST = 100


@dataclass(frozen=True)
class Paging:
    """Which page is wanted: so many items after the one of that id, latest first unless order is `asc`."""

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"

    def of(self, items: Sequence[Json]) -> Json:
        """The page of `items`, which are in the order in which they came. Raises RequestError if there is no such."""
        items = items if self.order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        if self.after is not None and self.after not in ids:
            raise RequestError(f"after names {self.after!r}, which is not among the items.", param="after")
        if not 1 <= self.limit <= LONGEST:
            raise RequestError(f"limit must lie between 1 and {LONGEST}.", param="limit")
        start = 0 if self.after is None else ids.index(self.after) + 1
        end = start + self.limit
        return responses.items(items[start:end], has_more=end < len(items))


PagingOf = Annotated[Paging, Depends()]
"""The page that a request asks for in its address."""
