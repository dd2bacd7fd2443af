"""How much cache every engine gets: the same bytes of KV on the device, the same bytes of host memory."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

TOKEN_BYTES = 23_040
"""KV of one token of SmolLM2-135M: keys and values of 3 heads of 64 in 30 layers, 2 bytes each."""


@dataclass(frozen=True)
class Pools:
    """device_tokens: KV that the device holds, a multiple of 128 (vLLM's block on CPU); host_bytes: the tier below.

    split: llama.cpp divides its cells evenly among its slots, which is faster with many at once; otherwise its slots
    share them, so that one conversation may take most. slots: how many llama.cpp has.
    """

    name: str
    title: str
    device_tokens: int
    host_bytes: int
    slots: int
    split: bool

    @property
    def device_bytes(self) -> int:
        """KV of the device, in bytes."""
        return self.device_tokens * TOKEN_BYTES

    @property
    def all_bytes(self) -> int:
        """Device and host together."""
        return self.device_bytes + self.host_bytes


POOLS = {
    pools.name: pools
    for pools in (
        # 16 slots of the model's 8,192 positions.
        Pools("wide", "everything fits", 16 * 8192, 1024 * MIB, 16, split=True),
        # The device holds a quarter to a third of the conversations, the host tier all of them, or as much again.
        Pools("hosted", "only the host tier holds all", 9 * 1024, 1024 * MIB, 4, split=False),
        Pools("tight", "not even device and host together hold all", 9 * 1024, 192 * MIB, 4, split=False),
    )
}
