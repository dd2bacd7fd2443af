"""When the blocks of each request were used before: all of a trace that a cache without a clock can react to."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from longturn.lab.trace.form import Ids, Trace
from longturn.lab.trace.tree import PrefixTree, Run


class Step(NamedTuple):
    """One touch of a path: its blocks, those that were looked at, the known runs of these, and whether it was asked."""

    blocks: int
    looked_at: int
    runs: list[Run]
    asked: bool


@dataclass(frozen=True, slots=True)
class Reuse:
    """A trace's block accesses, summed up. A few numbers per request, however long the prompts are.

    Paths are touched one after the other: a prompt, which is asked of the cache, and maybe the same with its answer,
    which is put there. Touch t is of `lengths[t]` blocks: first the runs, each of blocks whose latest touch before was
    the same, then blocks that are new. All arrays are not to be written to.

    unit: tokens per block; accesses: blocks asked for in the whole trace; rate: the share of the distinct blocks that
    was looked at, 1 unless a sample was taken; asked: bool [touches]; lengths: int64 [touches], of the blocks that were
    looked at; ends: int64 [touches], where a touch's runs end in `previous` and `blocks`, int64 [runs].
    """

    unit: int
    accesses: int
    rate: float
    asked: npt.NDArray[np.bool_]
    lengths: Ids
    ends: Ids
    previous: Ids
    blocks: Ids

    @classmethod
    def collect(
        cls, unit: int, steps: Iterable[Step], *, rate: float = 1.0, progress: Callable[[int], None] | None = None
    ) -> Reuse:
        """From all touches in their order."""
        accesses = requests = 0
        asked, lengths, ends, previous, blocks = array("b"), array("q"), array("q"), array("q"), array("q")
        for step in steps:
            asked.append(step.asked)
            lengths.append(step.looked_at)
            for last, count in step.runs:
                previous.append(last)
                blocks.append(count)
            ends.append(len(blocks))
            if step.asked:
                accesses += step.blocks
                requests += 1
                if progress:
                    progress(requests)
        columns = (np.array(column, dtype=np.int64) for column in (lengths, ends, previous, blocks))
        return cls(unit, accesses, rate, np.array(asked, dtype=bool), *columns)

    @property
    def requests(self) -> int:
        """Prompts that were asked."""
        return int(self.asked.sum())

    @property
    def looked_at(self) -> int:
        """The accesses to the blocks that were looked at."""
        return int(self.lengths[self.asked].sum())

    @property
    def asked_runs(self) -> npt.NDArray[np.bool_]:
        """Whether hits on a run count, bool [runs]."""
        return np.repeat(self.asked, np.diff(self.ends, prepend=0))

    @property
    def unique(self) -> int:
        """Distinct blocks, estimated where a sample was taken."""
        return round(int(self.lengths.sum() - self.blocks.sum()) / self.rate)

    def runs(self) -> Iterator[list[Run]]:
        """The known runs of each touch, from the root down: (the touch before, blocks)."""
        previous, blocks = self.previous.tolist(), self.blocks.tolist()
        for start, end in pairwise([0, *self.ends.tolist()]):
            yield list(zip(previous[start:end], blocks[start:end], strict=True))

    def scaled(self, capacity: int) -> float:
        """A capacity in blocks, > 0, scaled to the blocks that were looked at. A block always counts itself."""
        return 1 + (capacity - 1) * self.rate

    def hit_ratio(self, hits: float) -> float:
        """The share of all accesses that hit, from the hits among the blocks looked at.

        A sample's misses are scaled up, not its hits: the few blocks at the head of many prompts make up much of the
        accesses, are nearly always hit, and are in the sample or not by a single throw of the dice.
        """
        if not self.accesses:
            return 0.0
        return max(0.0, 1 - (self.looked_at - hits) / (self.accesses * self.rate))


class Touch(NamedTuple):
    """A path that is touched: ids int64 [n] from the root down; asked: whether it is a prompt."""

    ids: Ids
    salt: str
    asked: bool


def touches(trace: Trace, answers: bool) -> Iterator[Touch]:
    """Every prompt, and with `answers` after each the path that its known answer leaves, where the trace tells one."""
    for request in trace:
        ids = request.prompt.ids()
        yield Touch(ids, request.salt, True)
        if answers and request.output is not None:
            whole = ids[: request.prompt_tokens // trace.unit]
            yield Touch(np.concatenate((whole, request.output.ids())), request.salt, False)


def reuse(trace: Trace, *, answers: bool = False, progress: Callable[[int], None] | None = None) -> Reuse:
    """Go through a trace once. Exact; memory grows with the distinct blocks (8 bytes each) and the requests.

    answers: put answers into the cache too; progress: called with the number of requests done.
    """
    tree = PrefixTree()
    steps = (Step(len(ids), len(ids), tree.touch(ids, salt), asked) for ids, salt, asked in touches(trace, answers))
    return Reuse.collect(trace.unit, steps, progress=progress)
