"""Who is computed when: batches, chunks, fairness, preemption, cancellation. Answers never depend on it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from longturn.engine.build import CPU_CHUNK
from longturn.engine.scheduler import Scheduler
from tests.engine.rig import PAGE_BYTES, Asked, Reference, Rig, random_tokens, rig


@pytest.fixture
def preemptions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sequences that were preempted."""
    seen: list[Any] = []
    original = Scheduler._preempt

    def preempt(self: Scheduler, sequence: Any) -> None:
        seen.append(sequence)
        original(self, sequence)

    monkeypatch.setattr(Scheduler, "_preempt", preempt)
    return seen


def test_the_reference_is_right(llama: Path, right: Reference) -> None:
    """What all other tests compare with agrees with `transformers`' own generation."""
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    prompt = random_tokens(70, 1)
    with torch.inference_mode():
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=-1)
    assert right(prompt, 20) == whole[0, 70:].tolist()


# -- batches ---------------------------------------------------------------------------------------------------------


def crowd() -> list[list[int]]:
    """Prompts of all lengths, some of which share a beginning."""
    shared = random_tokens(90, 5)
    return [random_tokens(n, n) for n in (1, 2, 40, 300, 17)] + [shared + random_tokens(n, n) for n in (3, 50, 60)]


@pytest.mark.parametrize("chunk_tokens", [8, 64, 512])
@pytest.mark.parametrize("max_running", [1, 3, 16])
def test_together_as_alone(llama: Path, right: Reference, chunk_tokens: int, max_running: int) -> None:
    with rig(llama, chunk_tokens=chunk_tokens, max_running=max_running) as one:
        asked = [one.submit(prompt, 5 + i) for i, prompt in enumerate(crowd())]
        one.step()
        assert len(one.scheduler.running) <= max_running
        one.run(*asked)
        one.idle()
        for i, each in enumerate(asked):
            assert each.tokens == right(each.prompt, 5 + i)
            assert each.reason == "length"


def test_arriving_one_by_one(llama: Path, right: Reference) -> None:
    with rig(llama, chunk_tokens=32) as one:
        asked = []
        for prompt in crowd():
            asked.append(one.submit(prompt, 12))
            one.step(3)
        one.run(*asked)
        assert [each.tokens for each in asked] == [right(prompt, 12) for prompt in crowd()]


def test_a_cpu_takes_small_steps_unless_told_otherwise(llama: Path) -> None:
    with rig(llama) as one:
        one.ask(random_tokens(CPU_CHUNK + 1, 1), 1)
        assert one.engine.counters.steps == 2
    with rig(llama, chunk_tokens=2 * CPU_CHUNK) as one:
        one.ask(random_tokens(CPU_CHUNK + 1, 1), 1)
        assert one.engine.counters.steps == 1


def test_a_step_stays_within_its_budget(llama: Path) -> None:
    sizes: list[list[int]] = []
    with rig(llama, chunk_tokens=64) as one:
        execute = one.runner.execute
        one.runner.execute = lambda spans: (sizes.append([len(span.tokens) for span in spans]), execute(spans))[1]
        asked = [one.submit(random_tokens(n, n), 10) for n in (150, 90, 40, 5)]
        one.run(*asked)
    assert max(map(sum, sizes)) == 64
    # While anyone decodes, prompts get a quarter.
    mixed = [step for step in sizes if 1 in step and max(step) > 1]
    assert mixed
    assert max(sum(n for n in step if n > 1) for step in mixed) <= 64 // 4


def test_decoding_is_not_held_up_by_a_prompt(llama: Path) -> None:
    with rig(llama, chunk_tokens=32) as one:
        stream = one.submit(random_tokens(10, 1), 60)
        one.step()
        one.submit(random_tokens(400, 2))
        for n in range(2, 30):
            one.step()
            assert len(stream.tokens) == n


def test_prompts_get_on_when_decoding_fills_the_step(llama: Path) -> None:
    """More requests decode than a step has tokens: the others still advance."""
    with rig(llama, chunk_tokens=4) as one:
        streams = [one.submit(random_tokens(4, i), 200) for i in range(4)]
        while not all(stream.tokens for stream in streams):
            one.step()
        late = one.submit(random_tokens(8, 9), 1)
        one.run(late, limit=20)
        assert not any(stream.done for stream in streams)


# -- fairness --------------------------------------------------------------------------------------------------------


def test_a_short_request_overtakes_a_long_prompt(llama: Path, right: Reference) -> None:
    with rig(llama, chunk_tokens=64) as one:
        long = one.submit(random_tokens(1500, 1), 4)
        one.step(2)
        short = one.submit(random_tokens(20, 2), 4)
        one.run(short, limit=6)
        assert not long.outputs
        one.run(long)
        assert (long.tokens, short.tokens) == (right(long.prompt, 4), right(short.prompt, 4))


def test_a_short_request_overtakes_in_the_queue_too(llama: Path) -> None:
    with rig(llama, chunk_tokens=64, max_running=1) as one:
        running = one.submit(random_tokens(30, 1), 4)
        one.step()
        long, short = one.submit(random_tokens(700, 2)), one.submit(random_tokens(20, 3))
        one.run(running, short)
        assert not long.outputs
        one.run(long)


@pytest.mark.parametrize("max_running", [2, 16])
def test_a_long_prompt_does_not_starve(llama: Path, max_running: int) -> None:
    """More short requests arrive than can be computed; the long one is answered all the same."""
    with rig(llama, chunk_tokens=64, max_running=max_running) as one:
        one.stop_the_clock()
        long = one.submit(random_tokens(1200, 1), 2)
        for i in range(400):
            one.submit(random_tokens(40, 100 + i), 2)
            one.step()
            one.now += 0.02
            if long.done:
                break
        assert long.done
        assert one.scheduler.waiting  # it was an overload


def test_priority_goes_first(llama: Path) -> None:
    with rig(llama, max_running=1, chunk_tokens=64) as one:
        first = one.submit(random_tokens(30, 1), 3)
        one.step()
        low, high = one.submit(random_tokens(20, 2), 3), one.submit(random_tokens(500, 3), 3, priority=5)
        one.run(first, high)
        assert not low.outputs
        one.run(low)


# -- preemption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_pages", [0, 100])
@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_preempted_requests_give_the_same_answers(
    llama: Path, right: Reference, preemptions: list[Any], host_pages: int, write_policy: str
) -> None:
    with rig(llama, device_tokens=260, host_bytes=host_pages * PAGE_BYTES, write_policy=write_policy) as one:
        asked = [one.submit(random_tokens(40, i), 100) for i in range(6)]
        one.run(*asked)
        one.idle()
        assert preemptions
        for each in asked:
            assert each.tokens == right(each.prompt, 100)
            assert each.line.use.logical == 40
            assert each.line.use.output == 100


def test_the_youngest_is_preempted_and_the_oldest_never(llama: Path, preemptions: list[Any]) -> None:
    with rig(llama, device_tokens=200) as one:
        asked = [one.submit(random_tokens(30, i), 120, arrived=i / 1000) for i in range(4)]
        one.run(*asked)
        assert preemptions
        assert asked[0].request not in [sequence.request for sequence in preemptions]


def test_low_priority_is_preempted_first(llama: Path, preemptions: list[Any]) -> None:
    with rig(llama, device_tokens=200) as one:
        low = one.submit(random_tokens(30, 1), 120, arrived=0.0)
        one.step()
        high = one.submit(random_tokens(30, 2), 120, arrived=0.1, priority=1)
        one.run(low, high)
        assert {sequence.request.id for sequence in preemptions} == {low.request.id}


def test_preemption_without_a_cache(llama: Path, right: Reference, preemptions: list[Any]) -> None:
    with rig(llama, device_tokens=200, cache=False) as one:
        asked = [one.submit(random_tokens(30, i), 80) for i in range(4)]
        one.run(*asked)
        assert preemptions
        assert [each.tokens for each in asked] == [right(each.prompt, 80) for each in asked]


def test_the_whole_pool_can_be_used_by_one(llama: Path) -> None:
    with rig(llama, device_tokens=130) as one:
        asked = one.submit(random_tokens(100, 1), None)
        one.run(asked)
        assert asked.reason == "length"
        assert len(asked.tokens) == 30
        other = one.ask(random_tokens(129, 2), None)
        assert len(other.tokens) == 1
        one.idle()


# -- cancellation ----------------------------------------------------------------------------------------------------


def cancelled(one: Rig, asked: Asked) -> None:
    one.engine.cancel(asked.request.id)
    assert asked.reason == "cancelled"
    assert asked.line.finish_reason == "cancelled"
    assert asked.last.token_ids == ()
    one.cache.check_integrity()


def test_cancelled_while_it_waits(llama: Path) -> None:
    with rig(llama, max_running=1) as one:
        first = one.submit(random_tokens(20, 1), 4)
        one.step()
        second = one.submit(random_tokens(50, 2), 4)
        one.step()
        cancelled(one, second)
        assert second.line.use.output == 0
        one.run(first)
        one.idle()


def test_cancelled_mid_prefill(llama: Path) -> None:
    with rig(llama, chunk_tokens=64) as one:
        asked = one.submit(random_tokens(1000, 1))
        one.step(3)
        cancelled(one, asked)
        one.idle()
        # What was computed stays useful.
        assert one.tiers()["device"] == 192
        assert one.ask(asked.prompt).cached == {"device": 192}


def test_cancelled_mid_decode(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        asked, other = one.submit(random_tokens(50, 1), 100), one.submit(random_tokens(60, 2), 30)
        one.step(10)
        cancelled(one, asked)
        assert len(asked.tokens) == 10
        assert asked.line.use.output == 10
        one.run(other)
        assert other.tokens == right(other.prompt, 30)
        one.idle()


def test_cancelled_after_preemption(llama: Path, preemptions: list[Any]) -> None:
    with rig(llama, device_tokens=200) as one:
        asked = {each.request.id: each for each in (one.submit(random_tokens(30, i), 120) for i in range(4))}
        while not preemptions:
            one.step()
        victim = asked.pop(preemptions[0].request.id)
        n = len(victim.tokens)
        assert n
        cancelled(one, victim)
        assert victim.line.use.output == n
        one.run(*asked.values())
        one.idle()


def test_cancelled_while_its_pages_are_fetched(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: Reference
) -> None:
    tiers = {"disk_dir": tmp_path, "disk_bytes": 1 << 20, "host_bytes": 40 * PAGE_BYTES}
    with rig(llama, **tiers) as one:
        prompt = random_tokens(200, 1)
        one.ask(prompt)
        one.clear("device", "host")
        go, get = threading.Event(), one.disk.get
        monkeypatch.setattr(one.disk, "get", lambda keys: (go.wait(10), get(keys))[1])
        first, second = one.submit(prompt), one.submit([*prompt, 40])
        assert not one.engine.step()
        assert one.engine.mover.fetching
        assert len(one.scheduler.waiting) == 2
        cancelled(one, first)
        go.set()
        one.run(second)
        assert second.tokens == right(second.prompt)
        assert second.cached["disk"] >= 192
        cancelled_again = one.submit(prompt)
        cancelled(one, cancelled_again)
        one.idle()


def test_cancelling_nobody_changes_nothing(llama: Path, right: Reference) -> None:
    with rig(llama) as one:
        asked = one.submit(random_tokens(30, 1))
        one.engine.cancel("nobody")
        one.run(asked)
        one.engine.cancel(asked.request.id)
        assert sum(output.finish_reason is not None for output in asked.outputs) == 1
        assert asked.tokens == right(asked.prompt)


# -- reuse while it happens ------------------------------------------------------------------------------------------


def test_a_second_request_hits_the_chunks_of_a_running_prefill(llama: Path, right: Reference) -> None:
    with rig(llama, chunk_tokens=128) as one:
        prompt = random_tokens(1000, 1)
        first = one.submit(prompt)
        one.step(4)
        second = one.submit(prompt[:900] + random_tokens(30, 2))
        one.run(first, second)
        # At least what was there when it came, and it did not wait for more than it could use.
        assert second.cached["device"] in range(512, 901)
        assert first.tokens == right(first.prompt)
        assert second.tokens == right(second.prompt)


@pytest.mark.parametrize("n", [60, 300])
def test_those_who_ask_the_same_at_once_end_in_the_same_slots(llama: Path, right: Reference, n: int) -> None:
    with rig(llama, chunk_tokens=32) as one:
        prompt = random_tokens(n, 1)
        asked = [one.submit(prompt, 20) for _ in range(4)]
        one.run(*asked)
        assert [each.tokens for each in asked] == [right(prompt, 20)] * 4
        one.idle()
        # The last token of an answer is never computed.
        assert one.tiers()["device"] == n + 19


def test_a_long_prefix_is_computed_once_for_all_who_come_together(llama: Path, right: Reference) -> None:
    with rig(llama, chunk_tokens=64) as one:
        trunk = random_tokens(600, 1)
        asked = [one.submit(trunk + random_tokens(10 + i, i), 5) for i in range(5)]
        one.run(*asked)
        assert [each.tokens for each in asked] == [right(each.prompt, 5) for each in asked]
        assert sum(each.line.use.computed for each in asked) < 600 + 5 * 100


def test_whoever_waits_for_a_prefix_gets_on_when_its_owner_is_cancelled(llama: Path, right: Reference) -> None:
    with rig(llama, chunk_tokens=64) as one:
        trunk = random_tokens(600, 1)
        first, second = one.submit(trunk), one.submit([*trunk, 40])
        one.step(3)
        cancelled(one, first)
        one.run(second)
        assert second.tokens == right(second.prompt)
        one.idle()


@pytest.mark.parametrize("deterministic", [False, True])
def test_requests_that_wait_for_pages_do_not_hold_up_others(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: Reference, deterministic: bool
) -> None:
    tiers = {"disk_dir": tmp_path, "disk_bytes": 1 << 20, "host_bytes": 60 * PAGE_BYTES}
    with rig(llama, **tiers, deterministic=deterministic) as one:
        prompt = random_tokens(400, 1)
        one.ask(prompt)
        one.clear("device", "host")
        go, get = threading.Event(), one.disk.get
        monkeypatch.setattr(one.disk, "get", lambda keys: (go.wait(10), get(keys))[1])
        waits, passes = one.submit(prompt), one.submit(random_tokens(30, 2))
        one.run(passes)
        assert not waits.outputs
        go.set()
        one.run(waits)
        assert waits.tokens == right(prompt)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_answers_do_not_depend_on_preemption(llama: Path, dtype: str, preemptions: list[Any]) -> None:
    prompts = [random_tokens(300 + 10 * i, i) for i in range(3)]

    def logprobs(device_tokens: int) -> list[Any]:
        with rig(llama, deterministic=True, dtype=dtype, device_tokens=device_tokens) as one:
            asked = [one.submit(prompt, 150, logprobs=5) for prompt in prompts]
            one.run(*asked)
            return [each.logprobs for each in asked]

    roomy = logprobs(4000)
    assert not preemptions
    assert logprobs(1150) == roomy
    assert preemptions
