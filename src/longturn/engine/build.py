"""Puts an engine together from its options."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from longturn.cache import LongturnCache, LongturnOptions, NoCache, PrefixCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.options import split
from longturn.cache.policies.registry import make_policy
from longturn.engine.loop import Engine
from longturn.engine.misses import MissRecorder
from longturn.engine.models import LocalModel, load_tokenizer, resolve
from longturn.engine.mover import Mover
from longturn.engine.options import EngineOptions
from longturn.engine.runner.contract import ModelShape
from longturn.engine.scheduler import Scheduler
from longturn.errors import ConfigError
from longturn.store import DiskStore, HostStore, PageStore

# In deterministic mode prompts are computed, kept and reused in chunks of this many tokens.
DETERMINISTIC_CHUNK = 256
# Most tokens of a step. On the CPU what more of them need would not fit in its caches: 2,048 at once took a sixth more
# time than in four steps (measured, Xeon with AMX), and a hundred megabytes.
CPU_CHUNK, OTHER_CHUNK = 512, 2048
# Without --device-tokens the pool takes this share of the memory that is free once the model is loaded.
_POOL_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Built:
    """An engine, and what it was built from. `close` lets go of its stores."""

    engine: Engine
    model: LocalModel
    stores: tuple[PageStore, ...]
    write_back: bool = False

    def close(self) -> None:
        """End the mover's thread, then flush and close the stores. For when no request is running."""
        mover, cache = self.engine.mover, self.engine.cache
        if self.write_back:
            # What only upper tiers have goes down now, or is lost.
            for tier in cache.state().tiers[:-1]:
                cache.clear(tier.name)
                mover.carry_out(cache)
        mover.close()
        for store in self.stores:
            store.close()


def build(options: EngineOptions, progress: Callable[[str], None] = lambda message: None) -> Built:
    """Load the model, open the stores, make the pool. Raises ConfigError, ModelError or StoreError."""
    from longturn.engine.runner.torch_runner import TorchRunner

    model = resolve(options.model, progress=progress)
    progress(f"loading {model.name}")
    runner = TorchRunner(
        model.path,
        device=options.device,
        dtype=options.dtype,
        weights=options.weights,
        threads=options.threads,
        deterministic=options.deterministic,
    )
    tokenizer = load_tokenizer(model.path)
    context = min(options.context or runner.shape.context, runner.shape.context)
    align = DETERMINISTIC_CHUNK if options.deterministic else None
    chunk = options.chunk_tokens or (CPU_CHUNK if runner.device.type == "cpu" else OTHER_CHUNK)
    slots = options.device_tokens or _default_slots(runner, context, options.max_running)
    token_bytes = runner.shape.token_bytes
    host_bytes = options.host_bytes if options.host_tokens is None else options.host_tokens * token_bytes
    if not options.cache:
        host_bytes = 0
    fingerprint = f"{model.fingerprint}/{runner.dtype}/{runner.device.type}/{align}"
    if options.weights != "model":
        fingerprint += f"/{options.weights}"
    cache, disk = _open_cache(options, slots, host_bytes, fingerprint, align, runner.shape)
    runner.allocate(slots, cache.page_size)
    runner.warm_up(slots)
    host = HostStore(host_bytes, runner.pool.page_bytes) if host_bytes >= runner.pool.page_bytes else None
    mover = Mover(runner.pool, host, disk)
    engine = Engine(
        cache=cache,
        mover=mover,
        runner=runner,
        scheduler=Scheduler(
            cache,
            mover,
            max_running=options.max_running,
            chunk_tokens=min(chunk, cache.chunk_tokens or chunk),
            layers=runner.shape.layers,
            align=align,
            shares=not isinstance(cache, NoCache),
        ),
        tokenizer=tokenizer,
        model=options.served_name or model.name,
        eos_ids=_eos_ids(model.path, tokenizer),
        max_length=min(context, cache.longest),
        page_size=cache.page_size,
        align=align,
        misses=MissRecorder(max(cache.page_size, align or 1), time.monotonic),
    )
    stores = tuple(store for store in (disk, host) if store is not None)
    return Built(engine, model, stores, write_back=disk is not None and options.write_policy == "write_back")


def _open_cache(
    options: EngineOptions, slots: int, host_bytes: int, fingerprint: str, align: int | None, shape: ModelShape
) -> tuple[PrefixCache, DiskStore | None]:
    """The cache that the options ask for, and the disk store that it looks into."""
    if not options.cache:
        return NoCache(slots), None
    if options.policy != "longturn":
        name, given = split(options.policy)
        return make_policy(name, given, Sizes(slots, host_bytes // shape.token_bytes, real=True)), None
    disk, page_bytes = None, options.page_size * shape.token_bytes
    if options.disk_bytes:
        assert options.disk_dir is not None
        if options.disk_bytes < page_bytes:
            raise ConfigError(f"a disk tier of {options.disk_bytes} bytes holds no page: one takes {page_bytes} bytes")
        disk = DiskStore(options.disk_dir, options.disk_bytes, page_bytes)
    settings = LongturnOptions(
        device_tokens=slots,
        host_pages=host_bytes // page_bytes,
        page_size=options.page_size,
        eviction=options.eviction,
        write_policy=options.write_policy,
        fingerprint=fingerprint,
        reuse_multiple=align or 1,
        linear_flops=shape.linear_flops / shape.token_bytes,
        attention_flops=shape.attention_flops / shape.token_bytes,
    )
    return LongturnCache(settings, disk), disk


def _default_slots(runner: Any, context: int, max_running: int) -> int:
    """What fits beside the model: at least one full context, at most one for every running request."""
    if runner.device.type == "cuda":
        import torch

        free = torch.cuda.mem_get_info(runner.device)[0]
    else:
        free = psutil.virtual_memory().available
    return int(min(max(free * _POOL_SHARE // runner.shape.token_bytes, context), context * max_running))


def _eos_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer, by the model's own generation settings or else its tokenizer."""
    from transformers import GenerationConfig

    try:
        ids = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    except OSError:
        ids = None
    if ids is None:
        ids = tokenizer.eos_token_id
    return tuple(ids) if isinstance(ids, list) else () if ids is None else (ids,)
