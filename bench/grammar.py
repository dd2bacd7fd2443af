"""What an answer's grammar costs: compiling it, and each token of 1 and of 8 answers that are held to it.

    .venv/bin/python bench/grammar.py [--json out.json]

Over the demo model's vocabulary (its weights are not computed), at temperature 1. The logits favour the tokens of texts
that fit, as a model's would; the sampler is the engine's own. Time is that of one thread on the CPU, so that neighbours
on the machine count little. Medians; `p99` because some masks cost much more than most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from longturn.dialects.grammar import Grammar, ToolSchema, json_object, json_schema, text_with_tool_calls, tool_calls
from longturn.engine import SamplingParams
from longturn.engine.constraint import Grammars
from longturn.engine.models import resolve
from longturn.engine.sampling import Sampler, SampleState

BATCHES = (1, 8)
STEPS = 300

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["new", "vip", "late"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
ANSWER = json.dumps(
    {
        "name": "Ada Lovelace, countess and analyst",
        "age": 36,
        "tags": ["new", "vip"],
        "address": {"street": "St James's Square 12", "city": "London"},
    }
)
CALL = f'<tool_call>\n{{"name": "register", "arguments": {ANSWER}}}\n</tool_call>'
TOOLS = [ToolSchema(name, PERSON, strict=True) for name in ("register", "update", "remove")]
CASES: dict[str, tuple[Grammar | None, str]] = {
    "none": (None, ANSWER),
    "json_object": (json_object("bench"), ANSWER),
    "json_schema": (json_schema(PERSON, "bench"), ANSWER),
    "tool_calls": (tool_calls(TOOLS, "bench"), CALL),
    "strict_tools": (text_with_tool_calls(TOOLS, "bench"), f"I shall write that down for you. {CALL}"),
}


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e3


class Answer:
    """One answer that follows `tokens`, then begins anew."""

    def __init__(self, grammars: Grammars, grammar: Grammar | None, tokens: list[int]) -> None:
        self._grammars, self._grammar, self._tokens = grammars, grammar, tokens
        self._begin()

    def _begin(self) -> None:
        constraint = None if self._grammar is None else self._grammars.start(self._grammar)
        params = SamplingParams(temperature=1.0, seed=0, grammar=self._grammar)
        self.state = SampleState(params, np.zeros(1, np.int32), constraint=constraint)

    @property
    def wanted(self) -> int:
        """The next token of the text."""
        return self._tokens[len(self.state.output_ids)]

    def advance(self) -> None:
        """Take it."""
        token = self.wanted
        self.state.output_ids.append(token)
        if self.state.constraint is not None:
            self.state.constraint.advance(token)
        if len(self.state.output_ids) == len(self._tokens):
            self._begin()


def cost(grammars: Grammars, grammar: Grammar | None, tokens: list[int], batch: int, vocab: int) -> dict[str, float]:
    """Milliseconds of the sampler and of advancing for a step of `batch` answers, which are at different places."""
    answers = [Answer(grammars, grammar, tokens) for _ in range(batch)]
    for ahead, answer in enumerate(answers):
        for _ in range(ahead * 7):
            answer.advance()
    sampler, logits = Sampler(), torch.randn(batch, vocab)
    steps = []
    for _ in range(STEPS):
        row = logits.clone()
        for number, answer in enumerate(answers):
            row[number, answer.wanted] = 30.0
        chosen = []
        took = timed(lambda row=row, chosen=chosen: chosen.extend(sampler.sample(row, [a.state for a in answers])))
        assert [sample.token for sample in chosen] == [answer.wanted for answer in answers]
        steps.append(took + timed(lambda: [answer.advance() for answer in answers]))
    return {"step_ms": statistics.median(steps), "p99_ms": float(np.percentile(steps, 99))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(resolve("demo").path)
    vocab = len(tokenizer)
    grammars = Grammars(tokenizer, vocab, [tokenizer.eos_token_id])
    result: dict[str, Any] = {"vocab": vocab}
    result["first_grammar_ms"] = timed(lambda: grammars.prepare(json_schema(True, "bench")))
    for name, (grammar, text) in CASES.items():
        tokens = tokenizer.encode(text, add_special_tokens=False)
        row: dict[str, Any] = {} if grammar is None else {"compile_ms": timed(lambda g=grammar: grammars.prepare(g))}
        for batch in BATCHES:
            row[f"batch_{batch}"] = cost(grammars, grammar, tokens, batch, vocab)
            spent = row[f"batch_{batch}"]["step_ms"] - result.get("none", row)[f"batch_{batch}"]["step_ms"]
            row[f"batch_{batch}"]["grammar_us_per_token"] = spent / batch * 1e3
        result[name] = row
    result = json.loads(json.dumps(result), parse_float=lambda number: round(float(number), 3))
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
