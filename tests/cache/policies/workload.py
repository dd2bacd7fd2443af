"""Small workloads that share, branch and come back, made from a seed."""

from __future__ import annotations

import random

import numpy as np

from longturn.cache import Tokens
from longturn.cache.contract import PrefixCache
from longturn.lab.replay.hits import serve


def conversations(seed: int, requests: int, longest: int, alphabet: int = 50) -> list[tuple[list[int], list[int]]]:
    """Prompts and answers of several conversations in turns: most go on, some are repeated, edited or cut short."""
    rng = random.Random(seed)

    def some(n: int) -> list[int]:
        return [rng.randrange(alphabet) for _ in range(n)]

    heads = [some(rng.randint(1, longest // 4)) for _ in range(2)]
    histories = [[*rng.choice(heads), *some(rng.randint(1, 9))] for _ in range(rng.randint(3, 9))]
    out = []
    for _ in range(requests):
        which = rng.randrange(len(histories))
        prompt, act = histories[which], rng.random()
        if act < 0.1:
            prompt = prompt[: rng.randint(1, len(prompt))]
        elif act < 0.2:
            at = rng.randrange(len(prompt))
            prompt = [*prompt[:at], prompt[at] + 1, *prompt[at + 1 :]]
        elif act < 0.25 or len(prompt) > longest:
            prompt = [*rng.choice(heads), *some(rng.randint(1, 9))]
        output = some(rng.randint(1, 12))
        out.append((prompt, output))
        histories[which] = prompt if rng.random() < 0.1 else [*prompt, *output, *some(rng.randint(1, 12))]
    return out


def reported(cache: PrefixCache, requests: list[tuple[list[int], list[int]]], check_every: int = 7) -> list[int | None]:
    """What the policy would report for each request, None for those that it refuses."""
    out = []
    for i, (prompt, output) in enumerate(requests):
        served = serve(cache, _array(prompt), _array(prompt + output))
        out.append(None if served is None else served[1])
        if i % check_every == 0:
            cache.check_integrity()
    return out


def _array(tokens: list[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)
