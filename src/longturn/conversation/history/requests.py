"""What the history keeps of each request: its line of the ledger, and what was sent as something to check against."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from longturn.errors import LedgerError
from longturn.ledger import RequestLine


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request carried: the view of the first `entries` entries, rendered, and `more` behind it.

    size, digest: length and SHA-256 of the rendered bytes, without `more`; more: what no entry holds, such as the
    instruction to sum up, as the lines of JSON that the view would have for it.
    """

    entries: int
    size: int
    digest: str
    more: str = ""

    @classmethod
    def of(cls, entries: int, rendered: bytes, more: str = "") -> Sent:
        """That of a rendered view."""
        return cls(entries, len(rendered), hashlib.sha256(rendered).hexdigest(), more)

    def matches(self, rendered: bytes) -> bool:
        """Whether these are the bytes that were sent."""
        return self == Sent.of(self.entries, rendered, self.more)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. number: its place in the branch, from 1; session: where it was made, the branch or one above it.

    entries: how many a branch must have of that session to inherit it; sent: None for requests that did not carry the
    view (titles), and for imported ones.
    """

    number: int
    session: str
    entries: int
    line: RequestLine
    sent: Sent | None = None


class _Body(msgspec.Struct, omit_defaults=True):
    line: dict[str, Any]
    sent: Sent | None = None


_BODY = msgspec.json.Decoder(_Body)


def encode_request(line: RequestLine, sent: Sent | None) -> str:
    """The body of a request's row."""
    return msgspec.json.encode(_Body(line.to_dict(), sent)).decode()


def decode_request(number: int, session: str, entries: int, body: str | bytes | msgspec.Raw) -> Request:
    """The inverse of `encode_request`. Raises ValueError for what is no request."""
    found = _BODY.decode(body)
    try:
        return Request(number, session, entries, RequestLine.from_dict(found.line), found.sent)
    except LedgerError as error:
        raise ValueError(str(error)) from None
