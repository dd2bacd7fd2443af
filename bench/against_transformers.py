"""The engine's runner against a plain `transformers` model of the same dtype, in one process, interleaved.

    .venv/bin/python bench/against_transformers.py [--repeats 5] [--model demo] [--dtype bfloat16] [--json out.json]

Prefill of 512, 2,048 and 6,000 tokens (last token's logits only, on both sides), and decode at 1,000 tokens of context
at batch 1, 4 and 8. Medians; ratios above 1 are in favour of Longturn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from longturn.cache import Run, Runs
from longturn.engine.build import CPU_CHUNK
from longturn.engine.models import resolve
from longturn.engine.runner.contract import Span
from longturn.engine.runner.torch_runner import TorchRunner


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = resolve(args.model).path
    ours = TorchRunner(folder, dtype=args.dtype)
    ours.allocate(20_000, 16)
    # Memory that was never written is one page of zeros, and would be read from the cache.
    ours.pool.kv.normal_()
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype)).eval()
    rng = np.random.default_rng(0)

    def tokens(n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return rng.integers(1000, 40000, n).astype(np.int32)

    def prefill_ours(prompt: np.ndarray[Any, Any]) -> None:
        runs = Runs([Run(0, len(prompt))])
        for start in range(0, len(prompt), CPU_CHUNK):
            stop = min(start + CPU_CHUNK, len(prompt))
            ours.execute([Span(prompt[start:stop], start, runs.slice(0, stop), stop == len(prompt), True)])

    def prefill_plain(prompt: np.ndarray[Any, Any]) -> None:
        plain(torch.from_numpy(prompt.astype(np.int64))[None], logits_to_keep=1)

    rows: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for n in (512, 2048, 6000):
            both: dict[str, list[float]] = {"longturn": [], "transformers": []}
            for repeat in range(args.repeats + 1):
                prompt = tokens(n)
                took = timed(lambda p=prompt: prefill_ours(p)), timed(lambda p=prompt: prefill_plain(p))
                if repeat:
                    both["longturn"].append(n / took[0])
                    both["transformers"].append(n / took[1])
            rows[f"prefill {n}"] = summary(both)
        for batch in (1, 4, 8):
            spans = [Span(tokens(1), 1000, Runs([Run(i * 2000, i * 2000 + 1001)]), True, False) for i in range(batch)]
            both = {"longturn": [], "transformers": []}
            for repeat in range(args.repeats + 1):
                context = torch.from_numpy(np.stack([tokens(1000) for _ in range(batch)]).astype(np.int64))
                state = plain(context, use_cache=True, logits_to_keep=1).past_key_values
                last = context[:, -1:]
                for _ in range(args.steps):
                    took = (
                        timed(lambda s=spans: ours.execute(s).argmax(-1).tolist()),
                        timed(lambda x=last, kv=state: plain(x, cache=kv, use_cache=True).logits.argmax(-1).tolist()),
                    )
                    if repeat:
                        both["longturn"].append(batch / took[0])
                        both["transformers"].append(batch / took[1])
            rows[f"decode at batch {batch}"] = summary(both)
    result = {"load_before": os.getloadavg()[0], "dtype": args.dtype, "tokens_per_s": rows}
    for name, row in rows.items():
        print(f"{name:20} longturn {row['longturn']:8} transformers {row['transformers']:8} ratio {row['ratio']}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def summary(both: dict[str, list[float]]) -> dict[str, float]:
    """Medians of tokens/s and their ratio."""
    ours, plain = (statistics.median(both[name]) for name in ("longturn", "transformers"))
    return {"longturn": round(ours, 1), "transformers": round(plain, 1), "ratio": round(ours / plain, 2)}


if __name__ == "__main__":
    main()
