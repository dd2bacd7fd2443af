"""What every workload is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from bench.peers.client import Session
from bench.peers.floors import Floors
from bench.peers.samples import Metric, Sample

Floor = dict[tuple[str, Metric], float]
"""The best value that the machine allows, by case and metric."""


class Workload(ABC):
    """pools: name of the pools that it needs; most_repeats: where one repeat says enough, or takes long."""

    name: str
    title: str
    pools: str = "wide"
    most_repeats: ClassVar[int] = 1000

    @abstractmethod
    async def run(self, session: Session, repeat: int) -> list[Sample]:
        """One repeat, from 0 on, on one engine; the others rest. What earlier repeats left in its cache may be used.

        The same prompts for every engine. A request that fails gives no sample.
        """

    def floor(self, floors: Floors) -> Floor:
        """Where it can be said; compare with medians."""
        return {}
