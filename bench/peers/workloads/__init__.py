"""What is asked of every engine: one class per workload, and the table of them."""

from __future__ import annotations

from bench.peers.workloads.batch import Decode, Mixed
from bench.peers.workloads.contract import Workload
from bench.peers.workloads.crowd import Rounds
from bench.peers.workloads.kinds import Agent, Branch, Shared
from bench.peers.workloads.restart import Restart
from bench.peers.workloads.single import Cold, SecondTurn

__all__ = ["Workload", "table"]


def table(*, quick: bool) -> dict[str, Workload]:
    """All workloads by name, in the order in which they run; quick: small ones that only show that everything works."""
    few, many = (4, 8) if quick else (16, 64)
    long, short = (400, 200) if quick else (1500, 600)
    found: list[Workload] = [
        Cold((128, 512) if quick else (512, 2048, 6000)),
        SecondTurn((256, 1024) if quick else (1000, 4000, 7000)),
        Decode((1, 4) if quick else (1, 4, 8, 16), context=128 if quick else 1000, tokens=16 if quick else 48),
        Mixed(streams=2 if quick else 4, prompt=1000 if quick else 6000),
        Rounds("16-within", "wide", few, long),
        Rounds("64-within", "wide", many, short),
        Shared(users=4 if quick else 32, system=400 if quick else 2000),
        Agent(steps=3 if quick else 8),
        Branch(turns=3 if quick else 6),
        Rounds("16-hosted", "hosted", few, long),
        Rounds("64-hosted", "hosted", many, short),
        Rounds("16-beyond", "tight", few, long),
        Rounds("64-beyond", "tight", many, short),
        Restart(conversations=2 if quick else 4, tokens=long),
    ]
    return {workload.name: workload for workload in found}
