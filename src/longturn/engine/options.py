"""Everything a user can set about one engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from longturn.cache import ORDERS, WRITE_POLICIES
from longturn.cache.policies.options import split
from longturn.cache.policies.registry import all_options
from longturn.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda", "mps")
WEIGHTS = ("model", "int8", "int4")
DTYPES = ("auto", "bfloat16", "float16", "float32")
GIB = 1 << 30


@dataclass(frozen=True)
class EngineOptions:
    """Settings of one engine. Raises ConfigError for values that cannot work.

    model: `demo`, a folder, a GGUF file or a hub id; served_name: how clients call it (default: `model`).
    weights: `int8` and `int4` round those of the layers to so many bits: faster decode on the CPU, and less memory but
    where prompts are computed on tiles (AMX), for which bfloat16 is kept beside.
    policy: the cache policy, as NAME or NAME:key=value,...; those of other engines have no disk tier, and their options
    instead of page_size, eviction and write_policy; cache: False computes every prompt in full.
    device_tokens: slots of the device pool, None for what fits beside the model; host_bytes, disk_bytes: size of the
    tiers below (0: none); host_tokens: instead of host_bytes; disk_dir: where the disk tier lies.
    max_running, max_waiting: requests at once, and queued; chunk_tokens: most tokens in one step of the model, None for
    what suits the device; context: longest prompt and output, None for the model's own; threads: CPU threads of the
    model, None for all cores; deterministic: answers do not depend on what is cached or who else is served, at the
    price of speed.
    """

    model: str = "demo"
    served_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "model"
    device_tokens: int | None = None
    host_bytes: int = GIB
    host_tokens: int | None = None
    disk_bytes: int = 0
    disk_dir: Path | None = None
    cache: bool = True
    policy: str = "longturn"
    page_size: int = 16
    eviction: str = "lru"
    write_policy: str = "write_through"
    max_running: int = 16
    max_waiting: int = 256
    chunk_tokens: int | None = None
    context: int | None = None
    threads: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kind of weights", self.weights, WEIGHTS)
        _one_of("eviction order", self.eviction, ORDERS)
        _one_of("write policy", self.write_policy, WRITE_POLICIES)
        for name in ("device_tokens", "page_size", "max_running", "max_waiting", "chunk_tokens", "context", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: it must be at least 1")
        if self.policy != "longturn":
            self._check_policy()
        if min(self.host_bytes, self.disk_bytes, self.host_tokens or 0) < 0:
            raise ConfigError("sizes of tiers must not be negative: 0 turns a tier off")
        if self.disk_bytes and self.disk_dir is None:
            raise ConfigError("a disk tier needs a folder: name one as disk_dir")

    def _check_policy(self) -> None:
        """It must be there with its options; what only Longturn's own policy can do must not be asked of another."""
        name, given = split(self.policy)
        all_options(name, given)
        defaults = {field.name: field.default for field in fields(self)}
        for own in ("page_size", "eviction", "write_policy", "disk_bytes", "deterministic"):
            if getattr(self, own) != defaults[own]:
                raise ConfigError(
                    f"{own} is for the policy longturn: give {name} its own options, as NAME:key=value "
                    "(`longturn lab policies` lists them)"
                )


def _one_of(what: str, value: str, choices: object) -> None:
    names = list(choices)  # type: ignore[call-overload]
    if value not in names:
        raise ConfigError(f"no {what} is called {value!r}: choose one of {', '.join(names)}")
