"""`Resources`: the five resources that a request occupies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from longturn.errors import LedgerError

_AMOUNTS = ("device_flops", "device_seconds", "device_byte_seconds", "host_byte_seconds", "cpu_seconds")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one request, or a sum of requests, occupied. Everything is 0 unless given.

    device_flops, device_seconds: compute on the device.
    device_byte_seconds, host_byte_seconds: KV memory held, times how long.
    transfer_bytes: bytes moved, by link ("device-host", "host-disk", ...). Kept as a read-only copy.
    cpu_seconds: scheduling and metadata.

    Raises LedgerError for an amount that is negative or not finite.
    """

    device_flops: float = 0.0
    device_seconds: float = 0.0
    device_byte_seconds: float = 0.0
    host_byte_seconds: float = 0.0
    transfer_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    cpu_seconds: float = 0.0

    def __post_init__(self) -> None:
        amounts = [(name, getattr(self, name)) for name in _AMOUNTS]
        amounts += [(f"transfer_bytes over {link}", moved) for link, moved in self.transfer_bytes.items()]
        for name, amount in amounts:
            if not (math.isfinite(amount) and amount >= 0):
                raise LedgerError(f"{name} is {amount}: a resource is a finite amount, 0 or more")
        object.__setattr__(self, "transfer_bytes", MappingProxyType(dict(self.transfer_bytes)))

    def __add__(self, other: Resources) -> Resources:
        links = self.transfer_bytes.keys() | other.transfer_bytes.keys()
        return Resources(
            transfer_bytes={
                link: self.transfer_bytes.get(link, 0) + other.transfer_bytes.get(link, 0) for link in sorted(links)
            },
            **{name: getattr(self, name) + getattr(other, name) for name in _AMOUNTS},
        )

    # A read-only mapping can be neither pickled nor copied, and lines do travel between processes.
    def __reduce__(self) -> tuple[Any, ...]:
        return Resources.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """The amounts as a JSON object."""
        return {name: getattr(self, name) for name in _AMOUNTS} | {"transfer_bytes": dict(self.transfer_bytes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Resources:
        """The inverse of `to_dict`; absent keys are 0. Raises LedgerError when an amount is none."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise LedgerError(f"not resources: {error}") from error
