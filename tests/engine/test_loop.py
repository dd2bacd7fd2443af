"""From request to answer: how answers end, what the ledger says of them, and that they keep out of each other's way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longturn.cache import Hint
from longturn.errors import BadLogits
from tests.engine.rig import PAGE, PAGE_BYTES, TOKEN_BYTES, Asked, Reference, Rig, random_tokens, rig
from tests.tiny_model import VOCAB, Kind

IM_END = 258


def forced(one: Rig, answer: list[int]) -> None:
    """Make the model say `answer`, whatever the prompt; the KV is computed as ever."""
    execute = one.runner.execute
    said = iter(answer)

    def execute_and_say(spans: Any) -> torch.Tensor:
        logits = execute(spans).clone()
        for row in logits:
            row[next(said)] += 1e4
        return logits

    one.runner.execute = execute_and_say


# -- how an answer ends ----------------------------------------------------------------------------------------------


def test_max_tokens(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        for n in (1, 2, 65, 130):  # slots are taken 64 at a time
            asked = one.ask(random_tokens(20, 1), n)
            assert asked.reason == "length"
            assert asked.tokens == right(asked.prompt, n)
            assert asked.text == one.engine.tokenizer.decode(asked.tokens)
        one.idle()


def test_end_of_turn(llama: Path) -> None:
    hello = [72, 101, 108, 108, 111]
    with rig(llama) as one:
        forced(one, [*hello, IM_END])
        asked = one.ask(random_tokens(20, 1), 50, ignore_eos=False)
        assert asked.reason == "stop"
        assert asked.last.stop is None
        assert asked.text == one.engine.tokenizer.decode(hello)
        assert asked.tokens == [*hello, IM_END]
        assert asked.line.use.output == 6
        one.idle()


def test_end_of_turn_can_be_ignored(llama: Path) -> None:
    with rig(llama) as one:
        forced(one, [72, IM_END, 73, 74])
        assert one.ask(random_tokens(20, 1), 4, ignore_eos=True).tokens == [72, IM_END, 73, 74]


def test_end_of_turn_is_held_back(llama: Path) -> None:
    with rig(llama) as one:
        execute = one.runner.execute

        def prefer_the_end(spans: Any) -> torch.Tensor:
            logits = execute(spans).clone()
            logits[:, IM_END] = 1e4
            return logits

        one.runner.execute = prefer_the_end
        asked = one.ask(random_tokens(20, 1), 30, ignore_eos=False, min_tokens=5)
        assert len(asked.tokens) == 6
        assert asked.tokens[-1] == IM_END
        assert IM_END not in asked.tokens[:-1]


def test_stop_token(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        wanted = right(random_tokens(20, 3), 40)
        last = wanted[10]
        asked = one.ask(random_tokens(20, 3), 40, stop_token_ids=(last,))
        n = wanted.index(last) + 1
        assert (asked.tokens, asked.reason, asked.last.stop) == (wanted[:n], "stop", last)
        assert asked.text == one.engine.tokenizer.decode(wanted[: n - 1])


def test_stop_string(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        text = one.engine.tokenizer.decode(right(random_tokens(20, 4), 60))
        for at in (0, 10, 30):
            stop = text[at : at + 5]
            asked = one.ask(random_tokens(20, 4), 60, stop=("never said", stop))
            assert (asked.text, asked.reason, asked.last.stop) == (text[: text.index(stop)], "stop", stop)
            # No part of it was given out on the way either.
            assert stop[0] not in asked.text or asked.text + stop in text
        one.idle()


def test_stop_string_that_never_ends_is_given_out(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        text = one.engine.tokenizer.decode(right(random_tokens(20, 4), 20))
        asked = one.ask(random_tokens(20, 4), 20, stop=(text[-3:] + "\0",))
        assert (asked.text, asked.reason) == (text, "length")


def test_end_of_the_context(llama: Path, right: Reference) -> None:
    with rig(llama, context=100) as one:
        for n in (None, 1000):
            asked = one.ask(random_tokens(90, 1), n)
            assert (asked.tokens, asked.reason) == (right(asked.prompt, 10), "length")
        one.idle()


# -- the ledger's line -----------------------------------------------------------------------------------------------


def test_the_line_adds_up(llama: Path) -> None:
    with rig(llama, host_bytes=100 * PAGE_BYTES) as one:
        prompt = random_tokens(200, 1)
        cold = one.ask(prompt, 10)
        use = cold.line.use
        assert (use.logical, dict(use.cached), use.computed, use.output) == (200, {}, 200, 10)
        warm = one.ask(prompt, 10)
        assert dict(warm.line.use.cached) == {"device": 199}
        assert warm.line.use.computed == 1
        one.clear("device")
        host = one.ask(prompt, 10)
        assert dict(host.line.use.cached) == {"host": 199}
        assert host.line.resources.transfer_bytes["device-host"] >= 199 * TOKEN_BYTES
        for line in (cold.line, warm.line, host.line):
            assert line.ttft_ms is not None
            assert line.queue_ms is not None
            assert line.total_ms is not None
            assert 0 <= line.queue_ms <= line.ttft_ms <= line.total_ms
            assert line.resources.device_seconds > 0
            assert line.resources.device_byte_seconds > 0
        # What was not computed costs nothing.
        shape = one.runner.shape
        computed = 200 + 9  # the last token of an answer is never computed
        assert cold.line.resources.device_flops == pytest.approx(
            computed * shape.linear_flops + shape.attention_flops * computed**2 / 2, rel=0.01
        )
        assert warm.line.resources.device_flops < cold.line.resources.device_flops / 10
        assert [line.request_id for line in one.lines] == [one.request.id for one in (cold, warm, host)]


def test_every_request_has_one_line_and_one_end(llama: Path) -> None:
    with rig(llama, device_tokens=200) as one:
        asked = [one.submit(random_tokens(30, i), 60) for i in range(5)]
        one.step(3)
        one.engine.cancel(asked[1].request.id)
        one.run(*asked)
        assert sorted(line.request_id for line in one.lines) == sorted(each.request.id for each in asked)
        for each in asked:
            assert [output.finish_reason for output in each.outputs[:-1]] == [None] * (len(each.outputs) - 1)
            assert sum(output.line is not None for output in each.outputs) == 1


def test_counters_and_events(llama: Path) -> None:
    with rig(llama) as one:
        events: list[Any] = []
        one.engine.on_events = events.extend
        prompt = random_tokens(100, 1)
        one.ask(prompt, 5)
        one.ask(prompt, 5)
        counters = one.engine.counters
        assert counters.tokens == 100 + 4 + 1 + 4
        assert counters.steps == 10
        assert counters.model_seconds > 0
        assert [(event.kind, event.tier, event.tokens) for event in events] == [("hit", "device", 99)]


# -- conversations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gemma3", "qwen3"])
def test_the_next_turn_finds_prompt_and_answer(tiny: Callable[[Kind], Path], kind: Kind) -> None:
    with rig(tiny(kind)) as one, rig(tiny(kind), cache=False) as cold:
        history = random_tokens(150, 1)
        for turn in range(4):
            asked = one.ask(history, 21)
            assert asked.tokens == cold.ask(history, 21).tokens
            if turn:
                # All but the last token of the answer, which was never computed, and the new message.
                assert asked.cached == {"device": len(history) - 31}
            history = history + asked.tokens + random_tokens(30, 10 + turn)
        one.idle()


def test_an_answer_is_found_while_it_grows(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        first = one.submit(random_tokens(30, 1), 200)
        one.step(101)
        second = one.ask(first.prompt + first.tokens, 4)
        assert second.cached["device"] >= (30 + 100) // PAGE * PAGE
        assert second.tokens == right(second.prompt, 4)
        one.engine.cancel(first.request.id)
        one.idle()


def test_branches_share_their_trunk(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        trunk = random_tokens(123, 1)
        for i in range(5):
            asked = one.ask(trunk + random_tokens(20, 50 + i))
            assert asked.cached == ({"device": 123} if i else {})
            assert asked.tokens == right(asked.prompt)
        one.idle()


# -- out of each other's way -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_logits_end_one_request(llama: Path, right: Reference, value: float) -> None:
    with rig(llama) as one:
        asked = [one.submit(random_tokens(30 + i, i), 20) for i in range(4)]
        one.step(5)
        execute = one.runner.execute

        def spoil(spans: Any) -> torch.Tensor:
            logits = execute(spans).clone()
            logits[2, 7] = value
            one.runner.execute = execute
            return logits

        one.runner.execute = spoil
        one.step()
        bad = asked.pop(2)
        assert bad.reason == "error"
        assert isinstance(bad.last.error, BadLogits)
        assert len(bad.tokens) == 5
        one.run(*asked)
        for each in asked:
            assert each.tokens == right(each.prompt, 20)
        one.idle()


def test_bad_logits_for_all(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        execute = one.runner.execute
        one.runner.execute = lambda spans: torch.full_like(execute(spans), float("nan"))
        asked = [one.submit(random_tokens(30, i), 20) for i in range(3)]
        one.run(*asked)
        assert {each.reason for each in asked} == {"error"}
        one.runner.execute = execute
        assert one.ask(random_tokens(30, 9)).tokens == right(random_tokens(30, 9))
        one.idle()


def test_a_listener_that_fails_ends_its_own_request_only(llama: Path, right: Reference) -> None:
    """A client that is gone must not take the others with it."""
    with rig(llama) as one:
        broken = Asked(random_tokens(30, 1), one.submit(random_tokens(30, 2), 20).request.params)

        def fail(output: Any) -> None:
            raise RuntimeError("the client is gone")

        broken.request.on_output = fail
        one.engine.add(broken.request)
        other = one.submit(random_tokens(40, 3), 20)
        one.run(other)
        assert other.tokens == right(other.prompt, 20)
        while one.scheduler.running:
            one.step()
        one.idle()
        assert len(one.lines) == 3


def test_salts_do_not_share(llama: Path, right: Reference, tmp_path: Path) -> None:
    tiers = {"host_bytes": 100 * PAGE_BYTES, "disk_bytes": 1 << 20, "disk_dir": tmp_path}
    with rig(llama, **tiers) as one:
        prompt = random_tokens(100, 1)
        for salt in ("", "a", "b"):
            asked = one.ask(prompt, salt=salt)
            assert asked.cached == {}
            assert asked.tokens == right(prompt)
        for cleared in ((), ("device",), ("device", "host")):
            one.clear(*cleared)
            assert one.ask(prompt, salt="c" + "".join(cleared)).cached == {}
            assert sum(one.ask(prompt, salt="a").cached.values()) >= 96


def test_a_seed_gives_the_same_answer_in_any_company(llama: Path) -> None:
    prompt = random_tokens(60, 1)
    with rig(llama) as one:
        alone = one.ask(prompt, 30, temperature=1.0, seed=7).tokens
        crowd = [one.submit(random_tokens(20 + i, i), 25, temperature=1.0) for i in range(5)]
        again = one.submit(prompt, 30, temperature=1.0, seed=7)
        one.run(*crowd, again)
        assert again.tokens == alone


def test_logprobs_are_those_of_the_model(llama: Path) -> None:
    with rig(llama) as one:
        plain = one.ask(random_tokens(60, 1), 10, logprobs=3)
        for token, (logprob, top) in zip(plain.tokens, plain.logprobs, strict=True):
            assert top is not None
            assert top[0] == (token, logprob)
            assert len(top) == 3
        everything = one.ask(random_tokens(60, 1), 1, logprobs=20).logprobs[0][1]
        assert everything is not None
        assert np.exp([value for _, value in everything]).sum() <= 1 + 1e-6
        assert len({token for token, _ in everything}) == 20
        assert max(token for token, _ in everything) < VOCAB


# -- hints -----------------------------------------------------------------------------------------------------------


def hint(kind: Any, tokens: list[int], **more: Any) -> Hint:
    return Hint(kind, np.array(tokens, dtype=np.int32), **more)


def test_a_pinned_conversation_survives_pressure(llama: Path) -> None:
    with rig(llama, device_tokens=600) as one:
        pinned, other = random_tokens(150, 1), random_tokens(150, 2)
        one.ask(pinned, hints=[hint("pin", pinned)])
        one.ask(other)
        for i in range(5):
            one.ask(random_tokens(150, 10 + i))
        assert one.ask(other).cached == {}
        assert one.ask(pinned).cached == {"device": 149}


def test_a_released_conversation_goes_first(llama: Path) -> None:
    with rig(llama, device_tokens=600) as one:
        prompts = [random_tokens(150, i) for i in range(3)]
        for prompt in prompts:
            one.ask(prompt)
        one.ask(random_tokens(20, 9), 1, hints=[hint("release", prompts[2])])
        one.ask(random_tokens(150, 20))
        # The least recently used one would have gone otherwise.
        assert one.ask(prompts[0], 1).cached == {"device": 149}
        assert one.ask(prompts[2], 1).cached.get("device", 0) < 120


def test_hints_reach_pages_that_only_the_host_has(llama: Path) -> None:
    with rig(llama, device_tokens=600, host_bytes=20 * PAGE_BYTES) as one:
        pinned, other = random_tokens(96, 1), random_tokens(96, 2)
        for prompt in (pinned, other):
            one.ask(prompt, 1)
        one.clear("device")
        one.ask(random_tokens(20, 3), 1, hints=[hint("pin", pinned)])
        one.ask(random_tokens(160, 4), 1)
        one.clear("device")
        assert one.ask(pinned, 1).cached == {"host": 95}
        assert one.ask(other, 1).cached.get("host", 0) < 95


def test_an_expected_conversation_stays_longer(llama: Path) -> None:
    with rig(llama, device_tokens=600) as one:
        expected, other = random_tokens(150, 1), random_tokens(150, 2)
        one.ask(expected, hints=[hint("expect", expected, seconds=60)])
        one.ask(other)
        for i in range(2):
            one.ask(random_tokens(150, 10 + i))
        assert one.ask(expected, 1).cached == {"device": 149}
        assert one.ask(other, 1).cached.get("device", 0) < 149


def test_hints_that_fit_nothing_are_harmless(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        prompt = random_tokens(50, 1)
        odd = [
            hint("pin", []),
            hint("release", random_tokens(10, 5)),
            hint("expect", prompt, start=40, stop=20),
            hint("supersede", prompt, start=1000),
            hint("pin", prompt, salt="somebody else"),
            hint("priority", prompt, level=-3),
        ]
        for _ in range(2):
            assert one.ask(prompt, hints=odd).tokens == right(prompt)
        one.idle()
