"""Weights of four bits against the model's own: perplexity on a fixed text, and decode, interleaved in one process.

    .venv/bin/python bench/int4.py [--model demo] [--tokens 16384] [--repeats 5] [--json out.json]

The text is Python's own reference (pydoc_data.topics), cut into windows of 2,048 tokens, each predicted from its
beginning.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from longturn.cache import Run, Runs
from longturn.engine.models import resolve
from longturn.engine.runner.contract import Span
from longturn.engine.runner.int4 import GROUP, quantised
from longturn.engine.runner.torch_runner import TorchRunner

WINDOW = 2048
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
    figures = {"perplexity": perplexities(folder, args.tokens), "decode": decode(folder, args.repeats)}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


@torch.inference_mode()
def perplexities(folder: Path, n: int) -> dict[str, float]:
    """Of the model as it is, and with the weights of its layers replaced by what four bits stand for."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = AutoTokenizer.from_pretrained(folder)(text, verbose=False).input_ids[:n]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    found = {"model": perplexity(model, tokens)}
    for linear in [child for child in model.base_model.modules() if isinstance(child, nn.Linear)]:
        if linear.in_features % GROUP == 0:
            linear.weight = nn.Parameter(quantised(linear.weight.data, None, "none")[1], requires_grad=False)
    found["int4"] = perplexity(model, tokens)
    print(
        f"perplexity over {len(tokens)} tokens: model {found['model']:.3f}, int4 {found['int4']:.3f} "
        f"({found['int4'] / found['model'] - 1:+.2%})"
    )
    return found


def perplexity(model: Any, tokens: list[int]) -> float:
    """exp of the mean negative log-likelihood of all tokens but the first of each window."""
    total, count = 0.0, 0
    for start in range(0, len(tokens), WINDOW):
        ids = torch.tensor([tokens[start : start + WINDOW]])
        logits = model(ids).logits[0, :-1].float()
        total += nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return math.exp(total / count)


def decode(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step at several batch sizes, CONTEXT tokens of context each."""
    rng = np.random.default_rng(0)
    runners = {weights: TorchRunner(folder, dtype="bfloat16", weights=weights) for weights in ("model", "int4")}
    for runner in runners.values():
        runner.allocate(20_000, 16)
    rows: dict[str, dict[str, float]] = {}
    for batch in (1, 2, 4, 8):
        token = rng.integers(1000, 40000, 1).astype(np.int32)
        spans = [Span(token, CONTEXT, Runs([Run(i * 2000, i * 2000 + CONTEXT + 1)]), True, False) for i in range(batch)]
        took: dict[str, list[float]] = {weights: [] for weights in runners}
        for repeat in range(repeats + 1):
            for weights, runner in runners.items():
                began = time.perf_counter()
                for _ in range(10):
                    runner.execute(spans)
                if repeat:
                    took[weights].append((time.perf_counter() - began) * 100)
        row = {weights: statistics.median(times) for weights, times in took.items()}
        rows[f"batch {batch}"] = row
        print(
            f"decode at batch {batch}: model {row['model']:.1f} ms a step, int4 {row['int4']:.1f} ms, "
            f"ratio {row['model'] / row['int4']:.2f}"
        )
    return rows


if __name__ == "__main__":
    main()
