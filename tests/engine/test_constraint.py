"""Answers stay within their grammar whatever else happens to them, and others do not notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from longturn.dialects.grammar import (
    Grammar,
    ToolSchema,
    answer_or_tool_calls,
    choice,
    grammar,
    json_object,
    json_schema,
    regex,
    text_with_tool_calls,
    tool_calls,
)
from longturn.dialects.tool_calls import ToolCall, ToolCallParser
from longturn.engine import SamplingParams, constraint
from longturn.engine.constraint import Constraint, Grammars
from longturn.errors import GrammarFailed, RequestError
from tests.engine.rig import Rig, rig
from tests.schemas import SCHEMAS
from tests.tiny_model import VOCAB, build_tiny_tokenizer

TOKENIZER = build_tiny_tokenizer()
EOS = (256, 258)
PAIRS = regex("([a-z]{3}[0-9]{3} ){20}", "guided_regex")
TOOLS = [
    ToolSchema("get", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    ToolSchema('né"w'),
]
GET = '<tool_call>\n{"name": "get", "arguments": {"n": 3}}\n</tool_call>'
NEW = '<tool_call>\n{"name": "né\\"w", "arguments": {}}\n</tool_call>'
ODD = 'a "quoted"\n\\ é😀'
BARE = '{"name": "né\\"w", "parameters": {}}'


def said(n: int, seed: int) -> list[int]:
    """A prompt of whole characters: half of one would become part of the answer."""
    return np.random.default_rng(seed).integers(33, 93, n).tolist()


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCAB, EOS)


@pytest.fixture(scope="module")
def one(llama: Path) -> Iterator[Rig]:
    with rig(llama) as one:
        yield one


def read(began: Constraint, text: str) -> tuple[bool, bool]:
    """Whether all of a text fits, and whether nothing may follow."""
    ended = False
    for token in TOKENIZER.encode(text):
        mask = began.mask(VOCAB)
        if ended or mask is None or not mask[token]:
            return False, ended
        ended = began.advance(token)
    return True, ended


def complete(grammars: Grammars, grammar: Grammar, text: str) -> bool:
    """Whether an answer may be `text`, and end there."""
    began = grammars.start(grammar)
    fits, ended = read(began, text)
    mask = None if ended else began.mask(VOCAB)
    return fits and (ended or (mask is not None and mask[list(EOS)].all()))


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (json_object("x"), ['{"a": [1, {"b": null}]}', "{\n  \n}"], ["[1]", '{"a" 1}', "{}\n", "{" + " " * 41 + "}"]),
        (json_schema({"type": "integer"}, "x"), ["7", "-12"], ["1.5", "07", '"7"', ""]),
        (regex("a|bc+", "x"), ["a", "bc", "bccc"], ["ab", "b", " a"]),
        (choice(["yes", "yesterday", ODD], "x"), ["yes", "yesterday", ODD], ["ye", "no"]),
        (grammar('root ::= "a" b\nb ::= [0-9]+', "x"), ["a1", "a12"], ["a", "b1"]),
        (grammar('start: "a" B\nB: /[0-9]+/', "x"), ["a1", "a12"], ["a", "b1"]),
        (tool_calls(TOOLS, "x"), [GET, NEW, f"{GET}\n{NEW}"], ["hi", GET + NEW, GET.replace("3", '"3"')]),
        (tool_calls(TOOLS, "x", several=False), [GET], [f"{GET}\n{NEW}"]),
        (
            tool_calls(TOOLS, "x", form="bare"),
            [BARE, f"{BARE}; {BARE}"],
            [GET, '{"name": "got", "parameters": {}}'],
        ),
        (answer_or_tool_calls(json_object("x"), TOOLS, "y"), ["{}", GET, f"{GET}\n{NEW}"], [f"{{}}{GET}", "hi"]),
        (
            text_with_tool_calls(TOOLS, "x"),
            ["", "hello", f"Well <tool {GET}\n{NEW} so"],
            ["<tool_call>", GET.replace("get", "got"), f"hi {GET.replace('3', 'three')}"],
        ),
    ],
)  # fmt: skip
def test_what_fits(grammars: Grammars, asked: Grammar, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not complete(grammars, asked, text)] == []
    assert [text for text in bad if complete(grammars, asked, text)] == []


@pytest.mark.parametrize("form", ["tagged", "bare"])
def test_forced_calls_are_in_the_form_that_is_parsed(grammars: Grammars, form: str) -> None:
    rng = np.random.default_rng(0)
    schema = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 9}}, "required": ["s"]}
    asked = tool_calls([ToolSchema(name, schema) for name in ('a"b', "ü", "<tool_call>")], "tools", form=form)
    for _ in range(20):
        began, tokens, ended = grammars.start(asked), [], False
        while not ended and len(tokens) < 600:
            mask = began.mask(VOCAB)
            assert mask is not None
            tokens.append(int(rng.choice(mask.nonzero()[0])))
            ended = tokens[-1] in EOS or began.advance(tokens[-1])
        if tokens[-1] in EOS:
            parser, text = ToolCallParser(), TOKENIZER.decode(tokens[:-1])
            found = [*parser.push(text), *parser.finish()]
            assert found
            assert all(isinstance(part, ToolCall) for part in found), text


def test_errors_name_the_field_of_their_own_request(grammars: Grammars) -> None:
    for param in ("guided_regex", "structured_outputs.regex"):
        with pytest.raises(RequestError, match=f"^{param} cannot be enforced: .*unclosed.*[.]$") as caught:
            grammars.prepare(regex("(", param))
        assert caught.value.param == param


def test_the_text_of_an_end_is_no_end(grammars: Grammars) -> None:
    began = grammars.start(json_schema({"enum": ["a<|im_end|>"]}, "x"))
    assert read(began, '"a') == (True, False)
    assert began.mask(VOCAB) is None


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(RequestError, match="'f' must be a schema of type"):
        tool_calls([ToolSchema("f", {"type": "string"})], "tools")


def test_a_schema_nested_without_end_is_refused(grammars: Grammars) -> None:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(20_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError) as caught:
        grammars.prepare(json_schema(schema, "guided_json"))
    assert caught.value.param == "guided_json"


def test_long_chains_do_not_end_the_process(grammars: Grammars) -> None:
    n = 3000
    links = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(n)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, f"a{n}": {"type": "integer"}}}
    assert complete(grammars, json_schema(schema, "x"), "[]")
    rules = [f'r{i}:"x"r{i + 1}' for i in range(n)]
    grammars.prepare(grammar("\n".join(["start:r0", *rules, f'r{n}:"y"']), "x"))


def test_sources_that_are_too_long_are_refused() -> None:
    for text in ("root ::= " + "a" * 20_000, "start: " + "a" * 50_000):
        with pytest.raises(RequestError, match="simplify it") as caught:
            grammar(text, "guided_grammar")
        assert caught.value.param == "guided_grammar"


def test_what_costs_too_much_is_refused(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "SLOWEST_MASK", -1.0)
    with pytest.raises(RequestError, match="takes too long to tell"):
        grammars.prepare(regex("never seen before", "guided_regex"))


def test_a_grammar_is_compiled_once_and_every_answer_stands_for_itself() -> None:
    grammars = Grammars(TOKENIZER, VOCAB, EOS)
    grammars.prepare(json_schema(SCHEMAS["person"], "a"))
    with ThreadPoolExecutor(4) as pool:
        begun = list(pool.map(lambda n: grammars.start(json_schema(SCHEMAS["person"], f"b{n}")), range(40)))
    assert grammars._compiled.cache_info().misses == 1
    text = json.dumps({"name": "Ada", "age": 36})
    assert read(begun[0], text) == (True, True)
    assert all(not read(other, '{"age"')[0] for other in begun[1:20])
    assert all(read(other, text) == (True, True) for other in begun[20:])


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_ends_with_its_grammar(one: Rig, ignore_eos: bool, temperature: float) -> None:
    asked = one.ask(said(20, 1), 500, temperature=temperature, ignore_eos=ignore_eos, grammar=PAIRS)
    assert re.fullmatch(PAIRS.source, asked.text)
    assert asked.reason == "stop"
    assert asked.tokens[-1] not in EOS
    one.idle()


def test_an_open_end_is_an_end_of_sequence(one: Rig) -> None:
    for ignore_eos in (False, True):
        asked = one.ask(said(20, 1), 500, temperature=1, ignore_eos=ignore_eos, grammar=regex("a{1,5}", "x"))
        assert re.fullmatch("a{1,5}", asked.text)
        assert asked.reason == "stop"


def test_max_tokens_and_stops_still_hold(one: Rig) -> None:
    cut = one.ask(said(20, 1), 4, grammar=PAIRS)
    assert (cut.reason, len(cut.tokens)) == ("length", 4)
    stopped = one.ask(said(20, 1), 500, grammar=PAIRS, stop=(" ",))
    assert (stopped.reason, stopped.last.stop) == ("stop", " ")
    assert re.fullmatch("[a-z]{3}[0-9]{3}", stopped.text)


def test_other_settings_do_not_lead_out_of_it(one: Rig) -> None:
    bias = dict.fromkeys((*EOS, 33, 34), 100.0) | dict.fromkeys(range(97, 123), -100.0)
    asked = one.ask(
        said(20, 1), 500, temperature=2, top_k=1000, top_p=0.01, min_p=0.5, logit_bias=bias, grammar=PAIRS,
        presence_penalty=2, frequency_penalty=-2, repetition_penalty=5, logprobs=3,
    )  # fmt: skip
    assert re.fullmatch(PAIRS.source, asked.text)
    assert all(logprob is not None and np.isfinite(logprob) for logprob, _ in asked.logprobs)


def test_min_tokens_with_a_grammar_is_refused() -> None:
    with pytest.raises(RequestError, match="guided_regex") as caught:
        SamplingParams(min_tokens=3, grammar=PAIRS)
    assert caught.value.param == "min_tokens"


def test_a_hit_changes_no_answer(one: Rig, llama: Path) -> None:
    with rig(llama, cache=False) as cold:
        for seed, (name, schema) in enumerate(SCHEMAS.items()):
            prompt = [*said(100, 5), *said(20, seed)]
            settings = {"temperature": 1, "seed": seed, "grammar": json_schema(schema, name), "logprobs": 2}
            one.ask(prompt, 1)
            warm, miss = one.ask(prompt, 800, **settings), cold.ask(prompt, 800, **settings)
            assert warm.cached == {"device": 119}
            assert miss.cached == {}
            assert warm.tokens == miss.tokens
            assert warm.reason == miss.reason == "stop"
            Draft202012Validator(schema).validate(json.loads(warm.text))
    one.idle()


def test_preempted_answers_go_on_where_they_were(llama: Path) -> None:
    prompts = [said(40, seed) for seed in range(6)]
    with rig(llama) as wide, rig(llama, device_tokens=260) as narrow:
        asked = [
            [r.submit(prompt, 190, temperature=1, seed=seed, grammar=PAIRS) for seed, prompt in enumerate(prompts)]
            for r in (wide, narrow)
        ]
        preempted = 0
        preempt = narrow.scheduler._preempt

        def counting(sequence: object) -> None:
            nonlocal preempted
            preempted += 1
            preempt(sequence)

        narrow.scheduler._preempt = counting
        wide.run(*asked[0])
        narrow.run(*asked[1])
        assert preempted > 1
        for right, found in zip(*asked, strict=True):
            assert found.text == right.text
            assert re.fullmatch(PAIRS.source, found.text)
        narrow.idle()


def test_neighbours_without_a_grammar_do_not_notice(one: Rig) -> None:
    prompts = [said(30, seed) for seed in range(4)]
    alone = [one.ask(prompt, 30, temperature=seed % 2, seed=seed).tokens for seed, prompt in enumerate(prompts)]
    held = one.submit(said(25, 9), 500, temperature=1, grammar=PAIRS)
    beside = [one.submit(prompt, 30, temperature=seed % 2, seed=seed) for seed, prompt in enumerate(prompts)]
    one.run(held, *beside)
    assert [asked.tokens for asked in beside] == alone
    assert re.fullmatch(PAIRS.source, held.text)


def test_an_answer_that_cannot_go_on_ends_alone(one: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    right = one.ask(said(30, 1), 12, grammar=PAIRS).tokens
    stuck, fine = (one.submit(said(30, seed), 12, grammar=PAIRS) for seed in (2, 1))
    while not (stuck.tokens and fine.tokens):
        one.step()
    [sequence] = [s for s in one.scheduler.running if s.request is stuck.request]
    monkeypatch.setattr(sequence.state.constraint, "mask", lambda width: None)
    one.run(stuck, fine)
    assert stuck.reason == "error"
    assert isinstance(stuck.last.error, GrammarFailed)
    assert fine.tokens == right
    one.idle()


def test_a_vocabulary_without_a_way_on_is_an_error_of_that_answer(llama: Path) -> None:
    """Logits narrower than the vocabulary: what the grammar wants cannot be said."""
    narrow = Grammars(TOKENIZER, 60, EOS)
    with pytest.raises(RequestError, match="no answer can begin so"):
        narrow.start(regex("[a-z]+", "guided_regex"))
    assert TOKENIZER.encode("!")[0] < 60
    began = narrow.start(regex("![a-z]+", "guided_regex"))
    assert not began.advance(TOKENIZER.encode("!")[0])
    assert began.mask(60) is None


def test_the_library_is_loaded_only_for_grammars() -> None:
    code = (
        "import sys; import longturn.engine.service, longturn.serve, longturn.engine.sampling; "
        "assert 'llguidance' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
