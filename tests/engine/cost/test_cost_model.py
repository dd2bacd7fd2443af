"""The cost of steps: rooflines by hand, bounds that no step can beat, and where calibrated numbers hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.engine.cost import (
    Attention,
    Calibration,
    Coefficients,
    CostModel,
    HardwareProfile,
    ModelProfile,
    StepSpan,
    load_hardware_profile,
    load_model_profile,
)
from longturn.errors import ConfigError

LLAMA, QWEN_MOE = load_model_profile("llama-3.1-8b"), load_model_profile("qwen3-30b-a3b")
DEEPSEEK, DEMO = load_model_profile("deepseek-v3"), load_model_profile("smollm2-135m")
H100, CPU = load_hardware_profile("h100-sxm"), load_hardware_profile("cpu-2core")
COMPUTE = H100.flops["bf16"] * H100.compute_efficiency
ATTEND = H100.flops["bf16"] * H100.attention_efficiency
MEMORY = H100.memory_bandwidth * H100.memory_efficiency

COEFFICIENTS = Coefficients(
    rows=((1, 0.1), (50, 0.2), (100, 0.4), (150, 0.5)),
    prompt=Attention(pair=1e-6, context=2e-6, floor=0.0),
    decode=Attention(pair=0.0, context=0.0, floor=1e-5),
    prompt_span=0.01,
    decode_span=0.002,
)

spans = st.lists(
    st.one_of(
        st.builds(StepSpan, st.integers(1, 4096), st.integers(0, 50_000), st.just(True), st.just(1.0)),
        st.builds(StepSpan, st.just(1), st.integers(0, 50_000), st.just(False), st.just(1.0)),
    ),
    min_size=1,
    max_size=8,
)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    cost, n, start = CostModel(LLAMA, H100), 4096, 10_000
    body = LLAMA.active_parameters - LLAMA.head_parameters
    expected = H100.step_seconds + 2 * body * n / COMPUTE + 2 * LLAMA.head_parameters / COMPUTE
    expected += 4 * 32 * 32 * 128 * (n * start + n * (n + 1) / 2) / ATTEND
    assert cost.model_seconds([StepSpan(n, start, True)]) == pytest.approx(expected, rel=1e-6)


def test_decoding_is_bound_by_memory() -> None:
    cost, batch, start = CostModel(LLAMA, H100), 16, 3000
    weights = (LLAMA.active_parameters * 2 + batch * 131_072) / MEMORY
    kv = batch * (start + 1) * 131_072 / MEMORY
    expected = H100.step_seconds + weights + kv + batch * 2 * LLAMA.head_parameters / COMPUTE
    assert cost.model_seconds([StepSpan(1, start, False)] * batch) == pytest.approx(expected, rel=1e-6)
    assert cost.step_seconds([StepSpan(1, start, False)] * batch) == pytest.approx(
        expected + H100.scheduling_step + batch * H100.scheduling_span, rel=1e-6
    )


def test_weights_are_read_once_per_step() -> None:
    cost = CostModel(LLAMA, H100)
    one, eight = (cost.model_seconds([StepSpan(1, 100, False)] * batch) for batch in (1, 8))
    assert eight < 1.1 * one


def test_a_mixed_step_is_cheaper_than_two() -> None:
    cost = CostModel(LLAMA, H100)
    prompt, decode = [StepSpan(64, 500, True)], [StepSpan(1, 500, False)] * 8
    assert cost.step_seconds(prompt + decode) < 0.7 * (cost.step_seconds(prompt) + cost.step_seconds(decode))


def test_a_mixture_reads_the_experts_that_are_taken() -> None:
    routed = 48 * 128 * 3 * 2048 * 768
    assert QWEN_MOE.parameters_read(1) == QWEN_MOE.active_parameters
    assert QWEN_MOE.parameters_read(1 << 14) == pytest.approx(QWEN_MOE.parameters - QWEN_MOE.head_parameters)
    two = QWEN_MOE.parameters_read(2) - QWEN_MOE.parameters_read(1)
    # The second token's eight experts are new ones but for the one in sixteen that the first has taken.
    assert two == pytest.approx(routed * 8 / 128 * (1 - 8 / 128))
    cost = CostModel(QWEN_MOE, H100)
    alone, many = (cost.model_seconds([StepSpan(1, 0, False)] * batch) - H100.step_seconds for batch in (1, 256))
    assert many / alone > 5


def test_mla_keeps_one_latent_per_token_and_expands_it_for_prompts() -> None:
    assert DEEPSEEK.token_bytes == 61 * (512 + 64) * 2
    cost = CostModel(DEEPSEEK, H100, devices=16)
    coefficients = cost.coefficients
    assert coefficients.prompt.pair == pytest.approx(2 * 61 * 128 * (192 + 128) / (ATTEND * 16))
    assert coefficients.decode.pair == pytest.approx(2 * 61 * 128 * (512 + 64 + 512) / (ATTEND * 16))
    fp8 = H100.flops["fp8"] * H100.compute_efficiency * 16
    assert coefficients.prompt.context == pytest.approx(2 * 61 * 512 * 128 * 256 / fp8)
    # The latent cannot be divided: every device reads it whole.
    assert coefficients.decode.floor == pytest.approx(70_272 / MEMORY)


def test_devices_divide_the_work_and_add_sums() -> None:
    one, four = CostModel(LLAMA, H100), CostModel(LLAMA, H100, devices=4)
    n = 8192
    link = H100.links["device-device"]
    summing = 2 * 32 * (link.latency + n * 2 * 3 / 4 * 4096 * 2 / link.bandwidth)
    fixed = H100.step_seconds
    divided = (one.model_seconds([StepSpan(n, 0, True)]) - fixed) / 4
    assert four.model_seconds([StepSpan(n, 0, True)]) == pytest.approx(fixed + divided + summing, rel=1e-6)
    assert four.shape == one.shape


def test_weights_must_fit() -> None:
    assert CostModel(load_model_profile("llama-3.1-70b"), H100).devices == 2
    assert CostModel(load_model_profile("llama-3.1-70b"), load_hardware_profile("h200-sxm")).devices == 2
    with pytest.raises(ConfigError, match=r"141 GB of weights.*take 2 devices or more"):
        CostModel(load_model_profile("llama-3.1-70b"), H100, devices=1)
    with pytest.raises(ConfigError, match=r"needs a link between devices"):
        CostModel(load_model_profile("llama-3.1-70b"), CPU)


@given(spans, st.sampled_from([LLAMA, QWEN_MOE]))
def test_no_step_beats_the_peaks(step: list[StepSpan], model: ModelProfile) -> None:
    cost = CostModel(model, H100)
    seconds = cost.model_seconds(step)
    kv = sum(span.n + span.start for span in step) * cost.shape.token_bytes
    assert seconds >= (cost.model.parameters_read(1) * 2 + kv) / H100.memory_bandwidth
    body = 2 * (cost.model.active_parameters - cost.model.head_parameters) * sum(span.n for span in step)
    assert seconds >= body / H100.flops["bf16"]


@given(spans, st.integers(0, 7), st.integers(1, 5000))
def test_more_work_never_takes_less(step: list[StepSpan], which: int, more: int) -> None:
    cost = CostModel(LLAMA, H100)
    seconds, at = cost.step_seconds(step), which % len(step)
    n, start, prompt, _ = step[at]
    further = [*step[:at], StepSpan(n, start + more, prompt), *step[at + 1 :]]
    assert cost.step_seconds(further) > seconds
    assert cost.step_seconds([*step, StepSpan(more, 0, True)]) > seconds


@given(st.integers(1, 100_000))
def test_between_known_numbers_of_tokens_the_curve_stays_near(n: int) -> None:
    """Straight lines between powers of two follow the roofline of a mixture, the most curved one, within 4%."""
    cost = CostModel(QWEN_MOE, H100)
    weights = QWEN_MOE.parameters_read(n) * 2 + n * QWEN_MOE.token_bytes
    body = 2 * (QWEN_MOE.active_parameters - QWEN_MOE.head_parameters) * n
    expected = H100.step_seconds + max(weights / MEMORY, body / COMPUTE)
    spent = cost.model_seconds([StepSpan(n, 0, True)]) - cost.coefficients.prompt_span
    assert spent - cost.coefficients.prompt.seconds(n, 0) == pytest.approx(expected, rel=0.04)


def test_nothing_takes_no_time() -> None:
    assert CostModel(LLAMA, H100).step_seconds([]) == 0


def test_transfers_wait_for_latency_and_bandwidth() -> None:
    cost = CostModel(LLAMA, H100)
    assert cost.transfer_seconds("device-host", 5e10) == pytest.approx(1 + 2e-5)
    assert cost.transfer_seconds("host-disk", 6e9, operations=100) == pytest.approx(1.01)
    with pytest.raises(ConfigError, match=r"no link 'moon': it has device-device, device-host, host-disk, network"):
        cost.transfer_seconds("moon", 1)


def test_flops_are_counted_as_the_ledger_does() -> None:
    cost = CostModel(DEMO, CPU)
    shape = cost.shape
    step = [StepSpan(100, 50, True), StepSpan(1, 7, False)]
    assert cost.flops(step) == 101 * shape.linear_flops + shape.attention_flops * (100 * 100 + 7.5)


def test_calibrated_numbers_hold_for_their_model_alone() -> None:
    fitted = calibrated()
    cost = CostModel(DEMO, fitted)
    assert cost.calibrated
    # At known numbers of tokens, between them, and beyond.
    for n, seconds in ((1, 0.1), (75, 0.3), (100, 0.4), (200, 0.6)):
        attention = 1e-6 * n * (300 + (n + 1) / 2) + 2e-6 * 300
        assert cost.model_seconds([StepSpan(n, 300, True)]) == pytest.approx(seconds + 0.01 + attention)
    assert cost.model_seconds([StepSpan(1, 1000, False)] * 50) == pytest.approx(0.2 + 50 * (0.002 + 1e-5 * 1001))
    assert "calibrated: fitted to smollm2-135m on 2026-01-02" in cost.provenance
    assert "6.0% median, 14.0% p95" in cost.provenance
    other = CostModel(LLAMA, fitted)
    assert not other.calibrated
    assert "not calibrated for this model: rates fitted to smollm2-135m" in other.provenance
    assert other.coefficients == CostModel(LLAMA, CPU).coefficients


def test_datasheet_numbers_say_so() -> None:
    cost = CostModel(LLAMA, H100, devices=2)
    assert cost.provenance.startswith("modelled: Llama 3.1 8B on 2 x NVIDIA H100 SXM 80 GB; not calibrated: datasheet")


@pytest.mark.parametrize("tokens", [(1, 10, 10), (1, 20, 10), (2, 10, 20)])
def test_rows_must_rise_from_one(tokens: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise from 1"):
        msgspec.structs.replace(COEFFICIENTS, rows=tuple((n, 0.1) for n in tokens))


def calibrated() -> HardwareProfile:
    calibration = Calibration(
        model="smollm2-135m",
        date="2026-01-02",
        machine="a test",
        software="none",
        fitted=10,
        held_out=5,
        median_error=0.06,
        p95_error=0.14,
        coefficients=COEFFICIENTS,
    )
    return msgspec.structs.replace(CPU, name="local", calibration=calibration)
