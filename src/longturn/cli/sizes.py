"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

import typer

UNITS = {
    "": 1,
    "B": 1,
    **{unit: 1 << 10 * power for power, prefix in enumerate("KMGT", 1) for unit in (prefix, f"{prefix}IB")},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `2G` (both binary), `1.5GB` (decimal) or a plain number. Raises BadParameter for all else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise typer.BadParameter(f"{text!r} is no size: give bytes, or a number with KiB, MiB, GiB or TiB")
    return int(float(match[1]) * UNITS[match[2].upper()])
