"""Names of artifacts: the digest of the content, and the short handle that a model sees and gives back."""

from __future__ import annotations

import hashlib

HANDLE = "artifact:"
DIGITS = 12
"""How many digits of the digest a handle shows: collisions among a million artifacts are a 1 in 500 affair, and are
found out, because a handle that fits two is refused."""


def digest_of(data: bytes | str) -> str:
    """SHA-256 of the bytes, or of the text in UTF-8, as 64 hexadecimal digits. Lone surrogates count as they come."""
    return hashlib.sha256(data if isinstance(data, bytes) else encode(data)).hexdigest()


def handle_of(digest: str) -> str:
    """What a model is shown, such as `artifact:1f3c9a2b44d0`."""
    return HANDLE + digest[:DIGITS]


def encode(text: str) -> bytes:
    """The bytes of a text. A tool's output may hold lone surrogates, which strict UTF-8 refuses."""
    return text.encode("utf-8", "surrogatepass")
