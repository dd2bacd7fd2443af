"""Moves of pages between tiers, as data. The cache lists them, the engine carries them out in that order.

Pages travel as bytes; only the engine knows what is in them. Slots named by a `Save` are read before anything else is
written to them, because transfers run before the next step of the model and in the order they were listed. Keys may be
a sequence that makes them when asked, so that replays, which only count them, need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from longturn.cache.slots import Runs

if TYPE_CHECKING:
    from longturn.cache.contract import Allocation


@dataclass(frozen=True, eq=False)
class Save:
    """Copy pages from the device (`runs`, page_size slots each) to the stores named in `tiers`."""

    keys: Sequence[bytes]
    runs: Runs
    tiers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Load:
    """Copy pages from `tier` into device slots.

    Of all tokens of the pages, the first `skip` are left out (the device has them) and then `len(runs)` are taken.
    `first` is the position of the first token that is written.
    """

    keys: Sequence[bytes]
    tier: str
    runs: Runs
    skip: int
    first: int
    allocation: Allocation = field(repr=False)


@dataclass(frozen=True, eq=False)
class Fetch:
    """Copy pages from disk to host memory, while the request that wants them waits in the queue."""

    keys: list[bytes]


@dataclass(frozen=True, eq=False)
class Drop:
    """Delete pages from host memory; with `to_disk` they are copied there first."""

    keys: Sequence[bytes]
    to_disk: bool = False


@dataclass(frozen=True, eq=False)
class Copy:
    """Copy tokens within the device: `source` is whole pages, of which the first `len(target)` tokens are copied.

    It has no keys, because no store is asked, and none of it can be lost.
    """

    source: Runs
    target: Runs
    keys: ClassVar[Sequence[bytes]] = ()


Transfer = Save | Load | Fetch | Drop | Copy
