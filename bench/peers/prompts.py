"""Prompts as token ids, so that every engine gets the same tokens whatever its tokenizer does."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path


class Prompts:
    """Random words that depend on the seed and a key alone: all engines are asked the same, nothing is warm by chance.

    Words, and not any tokens: what a model answers to those are words again, each a piece of text of its own, while
    bytes of half characters would be held back and make the streams lumpy.
    """

    def __init__(self, model: Path, seed: int) -> None:
        vocabulary: dict[str, int] = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"][
            "vocab"
        ]
        # A word with the space before it, as byte-level BPE spells it.
        self._ids = sorted(i for piece, i in vocabulary.items() if re.fullmatch("Ġ[a-z]{3,}", piece))
        self._seed = seed

    def draw(self, length: int, *key: object) -> list[int]:
        return random.Random(f"{self._seed}/{key}").choices(self._ids, k=length)
