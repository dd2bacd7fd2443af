"""The engine's own work, without a model: a lookup of 100,000 cached tokens, and a decode step at batch 8.

    .venv/bin/python bench/micro.py [--json out.json]

The step is the real loop (receive, admit, plan, account, commit, sample, detokenise, hand out) over a runner that
returns ready-made logits, so all of its time is overhead. Medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longturn.cache import LongturnCache, LongturnOptions
from longturn.engine.loop import Engine
from longturn.engine.mover import Mover
from longturn.engine.request import Request
from longturn.engine.runner.contract import ModelShape, Span
from longturn.engine.runner.pool import KVPool
from longturn.engine.sampling_params import SamplingParams
from longturn.engine.scheduler import Scheduler
from longturn.store import HostStore

VOCAB = 49152
CHUNK = 2048


def lookup_ms(n: int = 100_000, chunk: int = CHUNK) -> float:
    """A fully cached prompt, committed chunk by chunk as a prefill does, with page keys for lower tiers."""
    cache = LongturnCache(LongturnOptions(n + 1000, host_pages=10_000))
    tokens = np.random.default_rng(0).integers(0, VOCAB, n).astype(np.int32)
    allocation = cache.admit(cache.lookup(tokens), 0)
    assert allocation is not None
    for stop in range(chunk, n + chunk, chunk):
        cache.commit(allocation, tokens[:stop])
    cache.release(allocation)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        hit = cache.lookup(tokens)
        times.append(time.perf_counter() - began)
        assert hit.device == n - 1
    return statistics.median(times) * 1e3


class ReadyRunner:
    """Gives the same logits at once, whatever is asked."""

    def __init__(self, slots: int) -> None:
        self.pool = KVPool(1, 1, 8, slots, 16, torch.float32, torch.device("cpu"))
        self.shape = ModelShape(8192, VOCAB, self.pool.page_bytes // 16, 0, 1.0, 1.0)
        self._logits = torch.randn(64, VOCAB)

    def execute(self, spans: list[Span]) -> torch.Tensor:
        return self._logits[: sum(span.logits for span in spans)]


def step_ms(batch: int = 8, context: int = 1000, steps: int = 300) -> dict[str, float]:
    """Median time of a decode step's work around the model, in all and without sampling and handing out."""
    vocabulary = {chr(0x4E00 + i % 20000) + str(i): i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    runner = ReadyRunner(batch * (context + steps + 200))
    cache = LongturnCache(
        LongturnOptions(batch * (context + steps + 200), host_pages=4000, linear_flops=1.0, attention_flops=1e-5)
    )
    mover = Mover(runner.pool, HostStore(4000 * runner.pool.page_bytes, runner.pool.page_bytes), None)
    engine = Engine(
        cache=cache,
        mover=mover,
        runner=runner,
        scheduler=Scheduler(cache, mover, max_running=batch, chunk_tokens=CHUNK),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer),
        model="none",
        eos_ids=(),
        max_length=8192,
        page_size=16,
    )
    rng = np.random.default_rng(0)
    for _ in range(batch):
        prompt = rng.integers(0, VOCAB, context).astype(np.int32)
        engine.add(Request(prompt, SamplingParams(max_tokens=steps, temperature=0.0), lambda output: None))
    handing_out = [0.0]
    hand_out = engine._hand_out

    def timed_hand_out(*args: Any) -> None:
        began = time.perf_counter()
        hand_out(*args)
        handing_out[0] = time.perf_counter() - began

    engine._hand_out = timed_hand_out  # type: ignore[method-assign]
    whole, own = [], []
    while True:
        began, handing_out[0] = time.perf_counter(), 0.0
        if not engine.step():
            break
        took = time.perf_counter() - began
        whole.append(took)
        own.append(took - handing_out[0])
    decoding = slice(batch, -batch)
    return {
        "all": round(statistics.median(whole[decoding]) * 1e3, 3),
        "scheduler_and_cache": round(statistics.median(own[decoding]) * 1e3, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {"lookup_100k_ms": round(lookup_ms(), 3), "decode_step_batch_8_ms": step_ms()}
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
