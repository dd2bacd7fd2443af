"""Content encodings, undone piece by piece for who reads along; what is passed on stays as it is."""

from __future__ import annotations

import zlib
from collections.abc import Callable


class CannotDecode(Exception):
    """An encoding that nobody here knows, or bytes that are not in it."""


def decoder(encoding: str) -> Callable[[bytes], bytes]:
    """A function that decodes the pieces of one body in turn. It and this raise CannotDecode."""
    names = [name.strip().lower() for name in encoding.split(",") if name.strip()]
    steps = [_step(name) for name in reversed(names) if name != "identity"]

    def decode(data: bytes) -> bytes:
        try:
            for step in steps:
                data = step(data)
        except Exception as error:  # every library has its own
            raise CannotDecode(f"not {encoding}: {error}") from error
        return data

    return decode


def _step(name: str) -> Callable[[bytes], bytes]:
    if name in ("gzip", "x-gzip", "deflate"):
        # 32 + the largest window: both headers are recognised.
        return zlib.decompressobj(32 + zlib.MAX_WBITS).decompress
    if name == "br":
        import brotli

        process: Callable[[bytes], bytes] = brotli.Decompressor().process
        return process
    if name == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress
    raise CannotDecode(f"content encoding {name} is not known here")
