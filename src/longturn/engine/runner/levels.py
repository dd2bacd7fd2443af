"""Weights of eight or four bits.

Round to nearest in groups of 32 inputs, each with a scale and a middle of its own: what GGUF calls Q8_0 and Q4_1 has
such a form, so a model that was shipped that way loses next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32


@dataclass(frozen=True)
class Levels:
    """A weight [out, in] is (level - half) * scale + middle.

    levels: uint8 [out, in], below 2 to the `bits`; scales, middles: float32 [out, in / GROUP], exact in bfloat16.
    """

    bits: int
    levels: Tensor
    scales: Tensor
    middles: Tensor

    @property
    def meant(self) -> Tensor:
        """What they stand for, bfloat16 [out, in]."""
        out, n_in = self.levels.shape
        groups = self.levels.view(out, -1, GROUP).float() - half(self.bits)
        return (groups * self.scales.unsqueeze(-1) + self.middles.unsqueeze(-1)).view(out, n_in).bfloat16()


def half(bits: int) -> int:
    """The level in the middle."""
    return 1 << bits - 1


def levels_of(weight: Tensor, bits: int) -> Levels:
    """The levels nearest to a weight [out, in], whose inputs are a multiple of GROUP."""
    out, n_in = weight.shape
    groups = weight.float().view(out, n_in // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    most = (1 << bits) - 1
    scale = ((high - low) / most).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16().float()
    middle = (low + half(bits) * scale).bfloat16().float()
    levels = ((groups - middle) / scale + half(bits)).round().clamp(0, most)
    return Levels(bits, levels.view(out, n_in).byte(), scale.squeeze(-1), middle.squeeze(-1))
