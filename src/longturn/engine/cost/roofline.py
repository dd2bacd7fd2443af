"""Coefficients from peak numbers: a kernel takes as long as its arithmetic or its memory traffic, whichever is more.

The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009), applied to linear layers, attention of prompts and
attention of generated tokens each by itself, since they run one after the other. Left out: activations, which stay in
caches, and any overlap of kernels.
"""

from __future__ import annotations

from bisect import bisect_left

from longturn.engine.cost.hardware_profile import Attention, Coefficients, HardwareProfile
from longturn.engine.cost.model_profile import ModelProfile
from longturn.errors import ConfigError

# Steps of more tokens than this are extended in a straight line.
_MOST_TOKENS = 1 << 16
# Of a device's memory, what weights may take; the rest is for KV and activations.
_WEIGHTS_SHARE = 0.9


def devices_needed(model: ModelProfile, hardware: HardwareProfile) -> int:
    """The smallest power of two of devices that holds the weights."""
    devices = 1
    while model.parameters * model.weight_bytes > devices * hardware.memory_bytes * _WEIGHTS_SHARE:
        devices *= 2
    return devices


def roofline(model: ModelProfile, hardware: HardwareProfile, devices: int) -> Coefficients:
    """Derive the cost of a step on so many devices.

    Premises of tensor parallelism: weights, arithmetic and KV heads are divided evenly; KV of MLA, and KV heads beyond
    their number, are kept on every device; each layer sums its hidden states over all devices twice, in a ring; one
    link of the same speed joins them all. Raises ConfigError when there is none.
    """
    compute = hardware.flops.get(model.dtype, hardware.flops["bf16"]) * hardware.compute_efficiency * devices
    attend = hardware.flops["bf16"] * hardware.attention_efficiency * devices
    memory = hardware.memory_bandwidth * hardware.memory_efficiency
    kv_devices = 1 if model.mla is not None else min(devices, model.kv_heads)
    read_token = model.token_bytes / (memory * kv_devices)
    body_flops = 2.0 * (model.active_parameters - model.head_parameters)

    def computing(tokens: int) -> float:
        return tokens * body_flops / compute

    def moving(tokens: int) -> float:
        weights = model.parameters_read(tokens) * model.weight_bytes / (memory * devices)
        return weights + tokens * read_token

    def rows(tokens: int) -> float:
        fixed, each = _summing(model, hardware, devices)
        return hardware.step_seconds + fixed + each * tokens + max(computing(tokens), moving(tokens))

    powers = [1 << exponent for exponent in range(_MOST_TOKENS.bit_length())]
    # The curve bends where arithmetic overtakes memory; there it is exact too.
    bend = bisect_left(range(1, _MOST_TOKENS), True, key=lambda tokens: computing(tokens) >= moving(tokens)) + 1
    head = 2.0 * model.head_parameters / compute
    return Coefficients(
        rows=tuple((tokens, rows(tokens)) for tokens in sorted({*powers, max(bend - 1, 1), bend})),
        prompt=Attention(pair=model.pair_flops / attend, context=model.expand_flops / compute, floor=read_token),
        decode=Attention(pair=model.decode_pair_flops / attend, context=0.0, floor=read_token),
        prompt_span=head,
        decode_span=head,
    )


def _summing(model: ModelProfile, hardware: HardwareProfile, devices: int) -> tuple[float, float]:
    """Seconds that summing over devices takes per step and per token."""
    if devices == 1:
        return 0.0, 0.0
    link = hardware.links.get("device-device")
    if link is None:
        raise ConfigError(
            f"{model.title} on {devices} x {hardware.title} needs a link between devices, which the profile "
            f"{hardware.name!r} does not have: add [links.device-device], or choose other hardware"
        )
    sums = 2 * model.layers
    # In a ring every device sends 2 (d - 1) / d of the vector; hidden states are 2 bytes wide.
    sent = 2 * (devices - 1) / devices * model.hidden * 2
    return sums * link.latency, sums * sent / link.bandwidth
