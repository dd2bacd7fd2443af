"""What the proxy tells its accountant, and what it hears back: messages over a pipe."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

HEAD = struct.Struct("<I")


class Asked(msgspec.Struct, tag=True):
    """A request has come. started_at: unix seconds; key: its hash; session, betas: from headers."""

    id: int
    started_at: float
    dialect: str
    upstream: str
    path: str
    key: str | None
    session: str | None
    encoding: str
    betas: str = ""


class Sent(msgspec.Struct, tag=True):
    """Bytes of its body."""

    id: int
    data: bytes


class Answered(msgspec.Struct, tag=True):
    """The upstream's answer has begun."""

    id: int
    status: int
    kind: str
    encoding: str


class Got(msgspec.Struct, tag=True):
    """Bytes of its body, as they were passed on."""

    id: int
    data: bytes


class Ended(msgspec.Struct, tag=True):
    """It is over.

    outcome: see `longturn.gateway.proxy`. ttft_ms: to the first byte of the body; silence_ms: longest time without a
    byte after that. lost: the accountant was too far behind to be told everything.
    """

    id: int
    outcome: str
    total_ms: float
    ttft_ms: float | None
    silence_ms: float
    sent_bytes: int
    got_bytes: int
    lost: bool = False


class Ready(msgspec.Struct, tag=True):
    """From the accountant: its first word, when it has opened the book and can follow."""


class Charged(msgspec.Struct, tag=True):
    """From the accountant: what a request has cost. usd: 0 where no price is known."""

    key: str | None
    at: float
    usd: float


Frame = Asked | Sent | Answered | Got | Ended | Ready | Charged

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def packed(frame: Frame) -> bytes:
    """A frame as it travels: its length in four bytes, then itself."""
    body = _encoder.encode(frame)
    return HEAD.pack(len(body)) + body


def unpacked(body: bytes) -> Frame:
    """A frame from its bytes without the length."""
    return _decoder.decode(body)


def read(pipe: BinaryIO) -> Frame | None:
    """The next frame; None at the end, also where it comes in the middle of one."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    body = pipe.read(length)
    return unpacked(body) if len(body) == length else None
