"""Every registered policy keeps the contract, whatever its choices are: a new one is tested as soon as it is listed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from longturn.cache.policies.registry import POLICIES
from tests.cache.policies.machine import missing, walk

# Tokens of a symbol: pages of 64 tokens, a usual size, become 4 symbols or one.
UNITS = (16, 64)
# Options that are refused where KV is real.
FOR_REPLAYS_ONLY = {"storage"}
MET: Counter[str] = Counter()


def chosen(name: str, rng: random.Random) -> dict[str, Any]:
    """One of the values of every option that has a few; the others keep their defaults."""
    values = {key: _values(kind) for key, kind in get_type_hints(POLICIES[name].options).items()}
    return {key: rng.choice(few) for key, few in values.items() if few and key not in FOR_REPLAYS_ONLY}


def _values(kind: Any) -> tuple[Any, ...]:
    if kind is bool:
        return (True, False)
    return get_args(kind) if get_origin(kind) is Literal else ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", POLICIES)
def test_random_lives(name: str, seed: int) -> None:
    rng = random.Random(seed)
    device, host = rng.randint(40, 240), rng.choice([0, 60, 200])
    walk(name, chosen(name, rng), device, host, seed, MET, unit=UNITS[seed % 2])


def test_the_lives_have_met_everything() -> None:
    device = ["hit device", "evicted device", "cleared device", "shared", "no room", "preempted"]
    host = ["hit host", "stored host", "loaded host", "evicted host", "failed host"]
    assert missing(MET, device + host) == []
