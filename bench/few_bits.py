"""Weights of eight and four bits against the model's own: perplexity on a fixed text, and decode, interleaved.

    .venv/bin/python bench/few_bits.py [--model demo] [--tokens 16384] [--repeats 5] [--json out.json]

The text is Python's own reference (pydoc_data.topics), cut into windows of 2,048 tokens, each predicted from its
beginning, by the engine's own runner.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from pydoc_data.topics import topics
from time import perf_counter

import numpy as np
import torch
from transformers import AutoTokenizer

from longturn.cache import Run, Runs
from longturn.engine.models import resolve
from longturn.engine.options import WEIGHTS
from longturn.engine.runner.contract import Span
from longturn.engine.runner.torch_runner import TorchRunner

WINDOW = 2048
CHUNK = 256
CONTEXT = 1000


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = resolve(args.model).path
    runners = {weights: TorchRunner(folder, dtype="bfloat16", weights=weights) for weights in WEIGHTS}
    for runner in runners.values():
        runner.allocate(33_000, 16)
        runner.pool.kv.normal_()
    figures = {"perplexity": perplexities(runners, folder, args.tokens), "decode": decode(runners, args.repeats)}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def perplexities(runners: dict[str, TorchRunner], folder: Path, n: int) -> dict[str, float]:
    """Of the model as it is, and with weights of few bits."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = np.array(AutoTokenizer.from_pretrained(folder)(text, verbose=False).input_ids[:n], np.int32)
    found = {weights: perplexity(runner, tokens) for weights, runner in runners.items()}
    for weights, value in found.items():
        print(f"perplexity over {n} tokens: {weights} {value:.3f} ({value / found['model'] - 1:+.2%})")
    return found


def perplexity(runner: TorchRunner, tokens: np.ndarray) -> float:
    """exp of the mean negative log-likelihood of all tokens but the first of each window."""
    total, count = 0.0, 0
    for window in np.split(tokens, range(WINDOW, len(tokens), WINDOW)):
        runs = Runs([Run(0, len(window))])
        for first in range(0, len(window) - 1, CHUNK):
            # One span for each token, so that all give their logits.
            at = range(first, min(first + CHUNK, len(window) - 1))
            logits = runner.execute([Span(window[i : i + 1], i, runs.slice(0, i + 1), True, prompt=False) for i in at])
            following = torch.from_numpy(window[at.start + 1 : at.stop + 1].astype(np.int64))
            total += torch.nn.functional.cross_entropy(logits.float(), following, reduction="sum").item()
            count += len(at)
    return math.exp(total / count)


def decode(runners: dict[str, TorchRunner], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step at several batch sizes, CONTEXT tokens of context each."""
    rng = np.random.default_rng(0)
    rows: dict[str, dict[str, float]] = {}
    for batch in (1, 4, 8, 16):
        token = rng.integers(1000, 40000, 1).astype(np.int32)
        spans = [Span(token, CONTEXT, Runs([Run(i * 2000, i * 2000 + CONTEXT + 1)]), True, False) for i in range(batch)]
        took: dict[str, list[float]] = {weights: [] for weights in runners}
        for repeat in range(repeats + 1):
            for weights, runner in runners.items():
                began = perf_counter()
                for _ in range(10):
                    runner.execute(spans)
                if repeat:
                    took[weights].append((perf_counter() - began) * 100)
        row = {weights: statistics.median(times) for weights, times in took.items()}
        rows[f"batch {batch}"] = row
        each = (f"{weights} {time:.1f} ms ({row['model'] / time:.2f})" for weights, time in row.items())
        print(f"decode at batch {batch}, of a step: {', '.join(each)}")
    return rows


if __name__ == "__main__":
    main()
