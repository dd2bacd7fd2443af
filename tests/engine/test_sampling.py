import math

import numpy as np
import pytest
import torch

from longturn.engine.sampling import Sampled, Sampler, SampleState
from longturn.engine.sampling_params import SamplingParams
from longturn.errors import BadLogits, RequestError

VOCAB = 50


def state(prompt=(), output=(), eos=(), **params):
    return SampleState(SamplingParams(**params), np.array(prompt, dtype=np.int32), eos, list(output))


def logits_of(*probs):
    return torch.tensor([probs], dtype=torch.float64).log().float()


def draws(logits, times=200, **params):
    """The set of tokens that one request draws from the same [1, vocab] logits."""
    request = state(seed=1, **params)
    return {Sampler().sample(logits, [request])[0].token for _ in range(times)}


def test_greedy_takes_the_best_of_each_row_in_any_dtype():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = logits.to(dtype)
        expected = [Sampled(token) for token in rows.argmax(-1).tolist()]
        assert Sampler().sample(rows, [state(temperature=0), state(top_k=1)] * 2) == expected


def test_a_seed_gives_the_same_answer_whatever_else_is_in_the_batch():
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)).bfloat16()
    wishes = [
        {"seed": 1},
        {"seed": 1, "top_k": 5},
        {"seed": 2, "top_p": 0.8, "temperature": 1.7},
        {"seed": 3, "min_p": 0.05, "top_k": 30, "top_p": 0.9, "frequency_penalty": 0.5},
        {"temperature": 0},
        {"seed": -4, "logprobs": 3, "logit_bias": {3: 2.0}},
    ]

    def run(rows):
        states = [state(**wishes[row]) for row in rows]
        for _ in range(20):
            for request, sampled in zip(states, Sampler().sample(logits[rows], states), strict=True):
                request.output_ids.append(sampled.token)
        return {row: request.output_ids for row, request in zip(rows, states, strict=True)}

    together = run([0, 1, 2, 3, 4, 5])
    assert run([5, 3, 1]) == {row: together[row] for row in (5, 3, 1)}
    for row in range(6):
        assert run([row]) == {row: together[row]}


def test_without_a_seed_answers_differ():
    logits = torch.zeros(1, 10_000)
    assert len({Sampler().sample(logits, [state()])[0].token for _ in range(5)}) > 1


def test_draws_follow_the_distribution():
    probs = (0.1, 0.6, 0.0, 0.3)
    request = state(seed=1)
    count = torch.zeros(4)
    for _ in range(3000):
        count[Sampler().sample(logits_of(*probs), [request])[0].token] += 1
    assert torch.allclose(count / 3000, torch.tensor(probs), atol=0.03)
    assert count[2] == 0


def test_truncation():
    logits = logits_of(0.15, 0.5, 0.05, 0.3)
    assert draws(logits) == {0, 1, 2, 3}
    assert draws(logits, top_k=2) == {1, 3}
    assert draws(logits, top_k=-1) == draws(logits, top_k=100) == {0, 1, 2, 3}
    assert draws(logits, top_p=0.01) == {1}
    assert draws(logits, top_p=0.49) == {1}
    assert draws(logits, top_p=0.6) == {1, 3}
    assert draws(logits, min_p=0.25) == {0, 1, 3}
    assert draws(logits, min_p=1.0) == {1}
    # Of the two that top_k leaves, the best holds 62 %, which is enough for top_p.
    assert draws(logits, top_k=2, top_p=0.6) == {1}
    assert draws(logits, temperature=1e-9) == {1}
    # Doubling the temperature halves the distances: the least likely is at sqrt(0.1) of the best, above min_p.
    assert draws(logits, temperature=2.0, min_p=0.25) == {0, 1, 2, 3}


def test_tokens_that_tie_with_the_last_admitted_are_admitted():
    assert draws(logits_of(0.4, 0.2, 0.2, 0.2), top_k=2) == {0, 1, 2, 3}


def test_a_flat_distribution_needs_more_than_the_guessed_nucleus():
    logits = torch.zeros(1, 3000)
    logits[0, :1500] = -0.01
    drawn = draws(logits, times=50, top_p=0.5)
    assert min(drawn) >= 1500
    assert len(drawn) > 40


def test_logit_bias():
    logits = logits_of(0.9, 0.05, 0.05)
    assert Sampler().sample(logits, [state(temperature=0, logit_bias={2: 100.0, 999: 5.0})])[0].token == 2
    assert draws(logits, logit_bias={0: -100.0}) == {1, 2}


def test_presence_and_frequency_penalties_count_the_output_only():
    logits = torch.tensor([[3.0, 2.5, 1.0]])

    def best(**request):
        return Sampler().sample(logits, [state(temperature=0, **request)])[0].token

    assert best(prompt=[0], presence_penalty=2.0) == 0
    assert best(output=[0], presence_penalty=0.4) == 0
    assert best(output=[0], presence_penalty=0.6) == 1
    assert best(output=[0], frequency_penalty=0.3) == 0
    assert best(output=[0, 0], frequency_penalty=0.3) == 1


def test_penalties_follow_a_growing_output():
    logits = torch.tensor([[3.0, 2.5, 0.9]])
    request = state(temperature=0, frequency_penalty=1.0)
    for _ in range(6):
        request.output_ids.append(Sampler().sample(logits, [request])[0].token)
    assert request.output_ids == [0, 1, 0, 1, 0, 2]


def test_repetition_penalty_is_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(100, VOCAB, generator=torch.Generator().manual_seed(3))
    prompt, output = list(range(30)), [28, 29, 30, 35]
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output] * 100), logits.clone()).argmax(-1)
    states = [state(prompt, output, temperature=0, repetition_penalty=1.3) for _ in range(100)]
    assert [sampled.token for sampled in Sampler().sample(logits, states)] == theirs.tolist()
    assert theirs.tolist() != logits.argmax(-1).tolist()


def test_min_tokens_holds_back_the_end():
    logits = logits_of(0.8, 0.15, 0.05)
    request = state(eos=(0,), temperature=0, min_tokens=2, stop_token_ids=(1,))
    assert Sampler().sample(logits, [request])[0].token == 2
    request.output_ids += [2, 2]
    assert Sampler().sample(logits, [request])[0].token == 0


def test_min_tokens_without_an_end_token_changes_nothing():
    assert Sampler().sample(logits_of(0.8, 0.2), [state(temperature=0, min_tokens=2, logprobs=0)])[0].token == 0


def test_logprobs_are_of_the_raw_distribution():
    logits = logits_of(0.1, 0.6, 0.3).repeat(3, 1)
    states = [
        state(temperature=0, logprobs=2, logit_bias={0: 100.0}),
        state(seed=1, logprobs=0, top_k=2, temperature=0.1),
        state(temperature=0),
    ]
    biased, plain, none = Sampler().sample(logits, states)
    assert biased.token == 0
    assert biased.logprob == pytest.approx(math.log(0.1), abs=1e-5)
    assert [token for token, _ in biased.top] == [1, 2]
    assert biased.top[0][1] == pytest.approx(math.log(0.6), abs=1e-5)
    assert plain.top == []
    assert plain.logprob == pytest.approx(math.log(0.6), abs=1e-5)
    assert none == Sampled(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}])
def test_logits_that_are_not_finite_name_their_row_and_change_nothing(bad, params):
    logits = torch.randn(3, VOCAB)
    logits[1, 7] = bad
    states = [state(**params) for _ in range(3)]
    before = [request.generator and request.generator.get_state() for request in states]
    with pytest.raises(BadLogits) as caught:
        Sampler().sample(logits, states)
    assert caught.value.rows == [1]
    for request, old in zip(states, before, strict=True):
        assert request.generator is None or torch.equal(request.generator.get_state(), old)


def test_the_logits_are_left_unchanged():
    logits = torch.randn(2, VOCAB)
    copy = logits.clone()
    Sampler().sample(logits, [state(seed=1, logit_bias={1: 5.0}, top_p=0.5), state([1], [2], repetition_penalty=1.2)])
    assert torch.equal(logits, copy)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", "1"),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 1.1),
        ("seed", 2**63),
        ("logprobs", 21),
        ("logprobs", -1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.inf),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("min_tokens", -1),
        ("stop", "END"),
        ("stop", ("",)),
        ("stop", ("a",) * 17),
        ("stop_token_ids", (-1,)),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1}),
    ],
)
def test_params_out_of_range(name, bad):
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: bad})
    assert caught.value.param == name


def test_min_tokens_within_max_tokens():
    with pytest.raises(RequestError, match="lower it"):
        SamplingParams(max_tokens=1, min_tokens=2)


def test_what_the_dialect_parses_the_engine_takes():
    from longturn.dialects.openai import parse_completion

    body = {"model": "m", "prompt": "p", "temperature": 1, "stop": "x", "logit_bias": {"3": 1}, "logprobs": 2}
    assert SamplingParams(**parse_completion(body).sampling()).logit_bias == {3: 1.0}
