"""Numbers that show in which order a kernel adds: their sums are zero, but for rounding.

Ordinary numbers added in two orders give the same 16 bits nearly always, so that it would take very many of them to
tell two kernels apart. Where nothing is left of a sum but what rounding made of the order, nearly every one differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows repeat after so many. As this is no multiple of a kernel's block, each comes to lie everywhere in one.
PERIOD = 61
# What is added to or multiplied with such a sum must not hide it.
TINY = 2.0**-12


def paired(sign: int, rows: int, n: int) -> Tensor:
    """Bfloat16 [rows, n], of many sizes: a row of sign 1 times one of sign -1, or times ones, adds up to zero."""
    generator = torch.Generator().manual_seed(sign + 1)
    half = (rows, n // 2)
    numbers = torch.randn(half, generator=generator) * 2.0 ** torch.randint(-6, 7, half, generator=generator)
    order = torch.randperm(n // 2, generator=torch.Generator().manual_seed(n))
    both = torch.cat((numbers, sign * numbers[:, order]), 1)
    return torch.nn.functional.pad(both, (0, n % 2)).bfloat16()


def repeated(rows: Tensor, n: int) -> Tensor:
    """The first n of the rows [..., PERIOD, m], over and over: [..., n, m]."""
    return torch.cat([rows] * -(-n // PERIOD), -2)[..., :n, :]


def repeats(result: Tensor, rows: Tensor) -> bool:
    """Whether a result [..., n, m] is made of `rows` [..., PERIOD, m] in the same way, to the bit."""
    return all(torch.equal(part, rows[..., : part.shape[-2], :]) for part in torch.split(result, PERIOD, -2))
