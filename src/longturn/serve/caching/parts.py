"""Where the parts of a request end in its tokens. A chat template only gives the text of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from longturn.cache import Tokens
from longturn.dialects.talk import Talk
from longturn.serve.chat_prompt import chat_text
from longturn.serve.encoding import Encoding

Write = Callable[[Callable[[int], str]], Talk]
"""Writes a talk with mark(i) put where part i ends. What mark gives must be written as it is, and at most once."""

# Private characters, of which some pair is in no text that anybody sends.
_PAIRS = [(chr(0xE000 + 2 * i), chr(0xE001 + 2 * i)) for i in range(3000)]


def tokens_and_ends(
    encoding: Encoding, tokenizer: PreTrainedTokenizerBase, write: Write, n: int
) -> tuple[Tokens, list[int | None]]:
    """The prompt, int32 [n], and for each of n parts how many tokens lie whole before its end.

    None for a part that the template left out, and for all where it changes what it is given so much that no part can
    be found again. Raises RequestError.
    """
    text = chat_text(tokenizer, write(lambda part: ""))
    opening, closing = next((a, b) for a, b in _PAIRS if a not in text and b not in text)
    marked = chat_text(tokenizer, write(lambda part: f"{opening}{part}{closing}"))
    pieces = re.split(f"{opening}([0-9]+){closing}", marked)
    found = {int(part): end for part, end in zip(pieces[1::2], _ends(pieces[::2], text), strict=True)}
    known = sorted(part for part in found if part < n)
    tokens, counts = encoding.parts(text, [found[part] for part in known])
    by_part = dict(zip(known, counts, strict=True))
    return tokens, [by_part.get(part) for part in range(n)]


def _ends(pieces: Sequence[str], text: str) -> list[int]:
    """Where each piece but the last ends in `text`, which is the pieces joined, perhaps without some white space."""
    ends, at = [], 0
    for piece in pieces:
        if text.startswith(piece, at):
            at += len(piece)
        else:
            for character in piece:
                if text.startswith(character, at):
                    at += 1
                elif not character.isspace():
                    return [0] * (len(pieces) - 1)
        ends.append(at)
    return ends[:-1]
