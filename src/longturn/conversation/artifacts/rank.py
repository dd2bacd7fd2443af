"""Which of many texts a few words are about, without an index: histories fit in memory, and they change all the time.

The score is Okapi BM25 (Robertson and Zaragoza 2009) with k1 = 1.2 and b = 0.75 over counts of substrings instead of
words, so that parts of identifiers and languages without spaces are found too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_K1 = 1.2
_B = 0.75
_QUOTED = re.compile(r'"([^"]+)"|(\S+)')


def words_of(query: str) -> list[str]:
    """What is searched for, in lower case and once each: the words, with "quoted words" kept together."""
    found = (quoted or word.strip("\"',;:?!()") for quoted, word in _QUOTED.findall(query))
    return list(dict.fromkeys(word.casefold() for word in found if word.strip()))


def best(texts: Sequence[str], query: str, limit: int) -> list[int]:
    """Indexes of at most `limit` texts that hold a word of `query`, the best first; equals in the order of `texts`."""
    lowered = [text.casefold() for text in texts]
    lengths = [len(text) for text in lowered]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    scores: dict[int, float] = {}
    for word in words_of(query):
        counts = {index: count for index, text in enumerate(lowered) if (count := text.count(word))}
        weight = math.log(1 + (len(texts) - len(counts) + 0.5) / (len(counts) + 0.5))
        for index, count in counts.items():
            rate = count / (count + _K1 * (1 - _B + _B * lengths[index] / mean))
            scores[index] = scores.get(index, 0.0) + weight * rate
    return sorted(scores, key=lambda index: (-scores[index], index))[:limit]
