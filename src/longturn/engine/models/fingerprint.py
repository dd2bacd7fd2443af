"""A short name for what a model computes, so that stored pages are never read by another model."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

_WHOLE = ("config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt")
_SAMPLE = 4096  # bytes at each end of a tensor


def fingerprint(folder: Path) -> str:
    """Identify config, tokenizer and weights of a model folder: 32 hexadecimal digits, the same for the same files.

    Config and tokenizer files are hashed whole. Of each weight file these are hashed: its size, its
    safetensors header, its first and last MiB, and the first and last 4 KiB of every tensor, since fine-tuned models
    of one family often differ in the middle layers alone. An edit that avoids all of these goes unseen. Reads a few
    MiB, in less than 50 ms from a warm page cache. Changes nothing; raises OSError or ValueError on unreadable files.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in filter(Path.is_file, map(folder.joinpath, _WHOLE)):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}\0".encode())
        _add_weights(digest, path)
    return digest.hexdigest()


def _add_weights(digest: hashlib.blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(struct.pack("<Q", size))
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8 or (length := struct.unpack("<Q", prefix)[0]) > size - 8:
            raise ValueError(f"{path.name} is not a whole safetensors file")
        header = file.read(length)
        digest.update(header)
        mebibyte = 1 << 20
        ranges = [(0, mebibyte), (max(0, size - mebibyte), mebibyte)]
        for name, tensor in json.loads(header).items():
            if name != "__metadata__":
                first, last = (8 + length + offset for offset in tensor["data_offsets"])
                ranges += [(first, min(_SAMPLE, last - first)), (max(first, last - _SAMPLE), _SAMPLE)]
        for start, count in ranges:
            file.seek(start)
            digest.update(file.read(count))
