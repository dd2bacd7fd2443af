"""Recorded runs of the engines' own cache code, where they lie beside the checkout."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longturn.cache import Tokens
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.lab.replay.hits import serve

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "golden"
ABSENT = pytest.mark.skip(reason=f"no recorded runs in {FOLDER}: they are not part of the project")


def recordings(policy: str) -> list[Any]:
    """Parameters for a test: the recorded runs of a policy, or one that is skipped."""
    found = sorted(FOLDER.glob(f"{policy}.*.json"))
    return [pytest.param(path, id=path.stem) for path in found] or [pytest.param(FOLDER, id="absent", marks=ABSENT)]


def replayed(path: Path) -> tuple[list[int | str], list[int | str]]:
    """The cached tokens of each request as our policy counts them, and as they were recorded."""
    run = json.loads(path.read_text())
    policy = make_policy(run["policy"], run["options"], Sizes(run["device_tokens"], run["host_tokens"] or 0))
    counted: list[int | str] = []
    for i, (prompt, whole) in enumerate(_workload(run["workload"])):
        served = serve(policy, prompt, whole)
        counted.append("rejected" if served is None else served[1])
        if i % 16 == 0:
            policy.check_integrity()
    return counted, ["rejected" if n is None else n for n in run["cached_tokens"]]


@cache
def _workload(name: str) -> list[tuple[Tokens, Tokens]]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt") as lines:
        requests = [json.loads(line) for line in lines]
    return [
        (np.array(r["tokens"], dtype=np.int32), np.array(r["tokens"] + r["output"], dtype=np.int32)) for r in requests
    ]
