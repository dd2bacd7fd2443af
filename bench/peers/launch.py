"""The command and environment with which each engine is started; everything else is its default."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.peers.places import Places
from bench.peers.pools import MIB, TOKEN_BYTES, Pools

MODEL = "peer"
"""What clients call the model, at every engine."""

KV_BLOCK = 128
"""Tokens in a block of KV of vLLM on a CPU."""

CONTEXT = 8192


@dataclass(frozen=True)
class Launch:
    """A command, and what it adds to the environment."""

    command: tuple[str, ...]
    environment: dict[str, str]


def longturn(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    """This checkout's own server, with a disk tier: to have one is its point."""
    options = {
        "--model": str(places.model),
        "--served-name": MODEL,
        "--port": str(port),
        "--dtype": "bfloat16",
        "--weights": "model" if places.bits == 16 else f"int{places.bits}",
        "--device-tokens": str(pools.device_tokens),
        "--host-bytes": str(pools.host_bytes),
        "--disk-dir": str(scratch),
        "--log-level": "warning",
    }
    return Launch((str(Path(sys.executable).with_name("longturn")), "serve", *_flat(options)), {})


def llamacpp(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    """Its KV is f16, as many bytes as bf16. On AMX it does not survive packing weights of eight bits."""
    options = {
        "-m": str(places.gguf),
        "--alias": MODEL,
        "--host": "127.0.0.1",
        "--port": str(port),
        "-t": str(os.cpu_count()),
        "-c": str(pools.device_tokens),
        "-np": str(pools.slots),
        "--cache-ram": str(pools.host_bytes // MIB),
    }
    share = () if pools.split else ("--kv-unified",)
    packing = ("--no-repack",) if places.bits == 8 and torch.cpu._is_amx_tile_supported() else ()
    return Launch((str(places.llama_server), *_flat(options), "--metrics", *share, *packing), {})


def vllm(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    """Both cores compute (by default one is left to the front end, which halves it).

    On a CPU it has no host tier ("CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"), so its one
    pool gets the bytes of both: all engines have the same bytes for KV in all.
    """
    options = {
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "bfloat16",
        "--max-model-len": str(CONTEXT),
        "--num-gpu-blocks-override": str(pools.all_bytes // (KV_BLOCK * TOKEN_BYTES)),
    }
    flags = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
    preload = [str(path) for path in places.tcmalloc.rglob("libtcmalloc_minimal.so.4")]
    preload += [str(path) for path in places.vllm.glob("env/lib/**/libiomp5.so")]
    environment = {
        "PATH": f"{places.vllm_bin}{os.pathsep}{os.environ['PATH']}",
        "LD_PRELOAD": ":".join(preload),
        "HF_HUB_OFFLINE": "1",
        # Compiled ahead of time the model cannot be loaded again in this release, and is compiled at every start.
        "VLLM_USE_AOT_COMPILE": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(places.vllm / "cache" / "inductor"),
        "VLLM_CACHE_ROOT": str(places.vllm / "cache"),
        # In whole GiB; the number of blocks says what is really taken of it.
        "VLLM_CPU_KVCACHE_SPACE": str(-(-pools.all_bytes // (1024 * MIB))),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = (str(places.vllm_bin / "vllm"), "serve", str(places.model), *_flat(options), *flags)
    return Launch(command, environment)


LAUNCHES: dict[str, Callable[[Places, Pools, int, Path], Launch]] = {
    "longturn": longturn,
    "llamacpp": llamacpp,
    "vllm": vllm,
}
"""By the engine's name in `longturn.dialects.engines`; `scratch` is an empty folder of the server's own."""


def _flat(options: dict[str, str]) -> list[str]:
    return [part for pair in options.items() for part in pair]
