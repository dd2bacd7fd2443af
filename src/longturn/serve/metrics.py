"""What Prometheus reads. Counters follow the ledger's lines and the cache's events; gauges are read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from longturn.cache import Event
from longturn.cache.events import EventKind
from longturn.errors import LongturnError
from longturn.ledger import RequestLine

if TYPE_CHECKING:
    from longturn.engine import EngineService

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAPS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """The metrics of one server, in a registry of their own. Updated from the engine's thread."""

    def __init__(self, service: EngineService) -> None:
        self.registry = registry = CollectorRegistry()
        # First, because it waits for the engine's step: whoever has got an answer then finds it counted.
        registry.register(_State(service))
        self._logical = Counter("longturn_logical_tokens", "Tokens that requests contained.", registry=registry)
        self._cached = Counter(
            "longturn_cached_tokens", "Tokens served from a prefix cache, by tier.", ["tier"], registry=registry
        )
        self._computed = Counter("longturn_computed_tokens", "Tokens really prefilled.", registry=registry)
        self._output = Counter("longturn_output_tokens", "Tokens generated.", registry=registry)
        self._requests = Counter(
            "longturn_requests", "Requests that ended, by reason.", ["finish_reason"], registry=registry
        )
        self._ttft = Histogram(
            "longturn_ttft_seconds", "From arrival to the first token.", registry=registry, buckets=WAITS
        )
        self._queue = Histogram("longturn_queue_seconds", "Waiting to be admitted.", registry=registry, buckets=WAITS)
        self.inter_token = Histogram(
            "longturn_inter_token_seconds", "Between two tokens of a request.", registry=registry, buckets=GAPS
        )
        self._events = {
            kind: Counter(f"longturn_cache_{kind}_tokens", f"Tokens {text}, by tier.", ["tier"], registry=registry)
            for kind, text in EVENTS.items()
        }
        # A counter that is not there yet looks to Prometheus as if nothing could ever happen.
        for tier in service.state().cache.tiers:
            for counter in (self._cached, *self._events.values()):
                counter.labels(tier.name)
        service.on_line(self._count_line)
        service.on_events(self._count_events)

    def _count_line(self, line: RequestLine) -> None:
        use = line.use
        self._logical.inc(use.logical)
        for tier, n in use.cached.items():
            self._cached.labels(tier).inc(n)
        self._computed.inc(use.computed)
        self._output.inc(use.output)
        self._requests.labels(line.finish_reason or "none").inc()
        if line.ttft_ms is not None:
            self._ttft.observe(line.ttft_ms / 1000)
        if line.queue_ms is not None:
            self._queue.observe(line.queue_ms / 1000)

    def _count_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events[event.kind].labels(event.tier).inc(event.tokens)


EVENTS: dict[EventKind, str] = {
    "hit": "of prompts found in the cache",
    "stored": "stored in the cache",
    "evicted": "evicted to make room",
    "loaded": "copied up to the device",
    "fetched": "fetched from disk while a request waited",
    "failed": "that could not be brought up, and were computed instead",
    "cleared": "cleared by hand",
}
assert set(EVENTS) == set(get_args(EventKind))


class _State(Collector):
    """Reads the engine's state whenever metrics are asked for. An engine that has stopped shows as `longturn_up` 0."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The gauges, and the counters that the engine keeps itself."""
        up = GaugeMetricFamily("longturn_up", "Whether the engine serves requests.")
        try:
            state = self._service.state()
        except LongturnError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield GaugeMetricFamily("longturn_requests_running", "Requests being computed.", state.running)
        yield GaugeMetricFamily("longturn_requests_waiting", "Requests in the queue.", state.waiting)
        capacity = GaugeMetricFamily("longturn_tier_capacity_tokens", "Tokens that a tier can hold.", labels=["tier"])
        used = GaugeMetricFamily("longturn_tier_used_tokens", "Tokens that a tier holds.", labels=["tier"])
        for tier in state.cache.tiers:
            capacity.add_metric([tier.name], tier.capacity)
            used.add_metric([tier.name], tier.used)
        yield capacity
        yield used
        moved = CounterMetricFamily("longturn_transfer_bytes", "Bytes moved between tiers, by link.", labels=["link"])
        for link, n in state.traffic_bytes.items():
            moved.add_metric([link], n)
        yield moved
        yield CounterMetricFamily("longturn_engine_steps", "Steps of the model.", state.counters.steps)
        yield CounterMetricFamily(
            "longturn_model_seconds", "Seconds in the model itself.", state.counters.model_seconds
        )
        yield CounterMetricFamily(
            "longturn_overhead_seconds", "Seconds of steps outside the model.", state.counters.overhead_seconds
        )
