"""`HardwareProfile`: what a machine can do, from a datasheet or from a calibration on it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A way that bytes take. bandwidth: bytes per second, one direction; latency: seconds per operation."""

    bandwidth: Rate
    latency: Seconds


class Attention(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of attention of n tokens behind `start` earlier ones.

    pair: per token and token that it sees; context: per earlier token, however many look back to it; floor: the whole
    takes at least this per token whose KV is read (the memory's side of a roofline).
    """

    pair: Seconds
    context: Seconds
    floor: Seconds

    def seconds(self, n: int, start: int) -> float:
        """Seconds for one span."""
        computing = self.pair * n * (start + (n + 1) / 2) + self.context * start
        return max(computing, self.floor * (start + n))


class Coefficients(Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of a step, the same shape whether it was derived from a datasheet or fitted to real steps.

    rows: (tokens in the step, seconds) for all that does not depend on how far the tokens look back, with the fixed
    cost of a step; by tokens from 1 on, straight between them and beyond the last. prompt, decode: attention of a
    chunk of a prompt and of a generated token; prompt_span, decode_span: seconds more for each of them.
    """

    rows: Annotated[tuple[tuple[Annotated[int, Meta(gt=0)], Seconds], ...], Meta(min_length=2)]
    prompt: Attention
    decode: Attention
    prompt_span: Seconds
    decode_span: Seconds

    def __post_init__(self) -> None:
        tokens = [n for n, _ in self.rows]
        if tokens != sorted(set(tokens)) or tokens[0] != 1:
            raise ValueError("the tokens of rows must rise from 1 on")


class Calibration(Struct, frozen=True, forbid_unknown_fields=True):
    """A fit to real steps of one model on one machine, and how well it foretold steps that it had not seen.

    model: name of its profile; date: ISO; machine, software: for people; fitted, held_out: numbers of kinds of steps;
    median_error, p95_error: relative error of a step's time over those held out. layers: in how many parts the engine
    could compute tokens of prompts, one after the other.
    """

    model: str
    date: str
    machine: str
    software: str
    fitted: int
    held_out: int
    median_error: Seconds
    p95_error: Seconds
    coefficients: Coefficients
    layers: Annotated[int, Meta(ge=1)] = 1


class HardwareProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """One device, its memory and its links.

    flops: peak dense FLOP/s by dtype, at least "bf16"; memory_bytes, memory_bandwidth: of the device, bytes and bytes
    per second. Shares of the peaks that are reached: compute_efficiency by linear layers, attention_efficiency by
    attention, memory_efficiency by reading weights and KV. step_seconds: fixed cost of a step on the device.
    scheduling_step, scheduling_span: CPU seconds of the engine per step, and per request in it; request_seconds: once
    per request, all without tokenising. links: "device-host", "host-disk", "network" and, where devices are coupled,
    "device-device". sources: where each number comes from, by field.
    """

    name: str
    title: str
    flops: dict[str, Rate]
    memory_bytes: Rate
    memory_bandwidth: Rate
    compute_efficiency: Share
    attention_efficiency: Share
    memory_efficiency: Share
    step_seconds: Seconds
    scheduling_step: Seconds
    scheduling_span: Seconds
    request_seconds: Seconds
    links: dict[str, Link]
    sources: dict[str, str]
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if "bf16" not in self.flops:
            raise ValueError("flops must name bf16")
