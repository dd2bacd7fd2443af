"""What the history keeps of each request: its line of the ledger, and what was sent as something to check against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from longturn.errors import LedgerError
from longturn.ledger import RequestLine


class Sent(msgspec.Struct, frozen=True):
    """What a request carried: the view of the first `entries` entries, rendered to `size` bytes with this digest."""

    entries: int
    size: int
    digest: str

    @classmethod
    def of(cls, entries: int, body: bytes) -> Sent:
        """That of a rendered body."""
        return cls(entries, len(body), xxhash.xxh3_128_hexdigest(body))

    def matches(self, body: bytes) -> bool:
        """Whether these are the bytes that were sent."""
        return self == Sent.of(self.entries, body)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. number: its place in the branch, from 1; session: where it was made, the branch or one above it.

    sent: None for requests that did not carry the view (titles), and for imported ones.
    """

    number: int
    session: str
    line: RequestLine
    sent: Sent | None = None


class _Body(msgspec.Struct, omit_defaults=True):
    line: dict[str, Any]
    sent: Sent | None = None


_BODY = msgspec.json.Decoder(_Body)


def encode_request(line: RequestLine, sent: Sent | None) -> str:
    """The body of a request's row."""
    return msgspec.json.encode(_Body(line.to_dict(), sent)).decode()


def decode_request(number: int, session: str, body: str | bytes) -> Request:
    """The inverse of `encode_request`. Raises ValueError for what is no request."""
    found = _BODY.decode(body)
    try:
        return Request(number, session, RequestLine.from_dict(found.line), found.sent)
    except LedgerError as error:
        raise ValueError(str(error)) from None
