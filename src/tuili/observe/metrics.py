"""Every metric, in one table; and plain counters that cost next to nothing to raise.

Names are ``tuili_`` + vLLM's suffix. Values are kept here as plain numbers; ``expose`` turns them into the Prometheus text format
through ``prometheus_client``, which is imported only when somebody asks for that. Gauges have no stored value: they are read when
they are scraped, so they can never be stale.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PREFIX = "tuili_"

_LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_REQUESTS = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. ``name`` is without prefix. ``label``: the label besides ``model_name``, if there is one."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    label: str | None = None
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("num_requests_running", "gauge", "Sequences that hold a slot: their tokens are being computed."),
    Metric("num_requests_waiting", "gauge", "Sequences that wait for a slot or for KV cache blocks."),
    Metric("kv_cache_usage_perc", "gauge", "Part of the KV cache in use, 0 to 1."),
    Metric("num_preemptions_total", "counter", "Sequences that gave up their KV cache blocks and had to be computed again."),
    Metric("spec_decode_num_drafts_total", "counter", "Steps in which a sequence had guesses at its next tokens."),
    Metric("spec_decode_num_draft_tokens_total", "counter", "Tokens guessed."),
    Metric("spec_decode_num_accepted_tokens_total", "counter", "Those of them that were right."),
    Metric("prompt_tokens_total", "counter", "Prompt tokens of requests that got their first output."),
    Metric(
        "prefix_cache_queries_total", "counter", "Prompt tokens of requests that started: what the prefix cache was asked for."
    ),
    Metric("prefix_cache_hits_total", "counter", "Those of them that the prefix cache had: they were not computed."),
    Metric("generation_tokens_total", "counter", "Generated tokens."),
    Metric("requests_accepted_total", "counter", "Requests taken in; each ends in exactly one finished_reason."),
    Metric("request_success_total", "counter", "Ended requests by reason: stop, length, abort, error.", label="finished_reason"),
    Metric("request_aborts_total", "counter", "Requests ended by their client before their time."),
    Metric("requests_refused_total", "counter", "Requests refused because the waiting queue was full."),
    Metric("time_to_first_token_seconds", "histogram", "From arrival to the first token.", buckets=_LATENCIES),
    Metric("inter_token_latency_seconds", "histogram", "Between two tokens of a sequence.", buckets=_TOKEN_GAPS),
    Metric("request_queue_time_seconds", "histogram", "From arrival to the first computed step.", buckets=_REQUESTS),
    Metric("e2e_request_latency_seconds", "histogram", "From arrival to the end.", buckets=_REQUESTS),
)

FINISHED_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts by bucket; a value on a bound belongs to the bucket below it, as Prometheus has it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        pairs: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            pairs.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
        return pairs


def _histogram(name: str) -> Callable[[], Histogram]:
    buckets = next(metric.buckets for metric in METRICS if metric.name == name)
    return lambda: Histogram(buckets)


@dataclass(slots=True)
class EngineMetrics:
    """Counters and histograms of one engine; attributes have the names of the table without ``_total`` and ``_seconds``.
    Written by one thread, the one that handles outputs."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    requests_accepted: int = 0
    request_success: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    request_aborts: int = 0
    requests_refused: int = 0
    time_to_first_token: Histogram = field(default_factory=_histogram("time_to_first_token_seconds"))
    inter_token_latency: Histogram = field(default_factory=_histogram("inter_token_latency_seconds"))
    request_queue_time: Histogram = field(default_factory=_histogram("request_queue_time_seconds"))
    e2e_request_latency: Histogram = field(default_factory=_histogram("e2e_request_latency_seconds"))


def expose(metrics: EngineMetrics, now: Mapping[str, float], model_name: str) -> bytes:
    """The Prometheus text format. ``now``: values that are read rather than counted, by name in the table
    (``EngineStats.as_metrics``)."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(metrics, now, model_name))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    metrics: EngineMetrics
    now: Mapping[str, float]
    model_name: str

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = [self.model_name]
        for row in METRICS:
            name = PREFIX + row.name
            names = ["model_name", *([row.label] if row.label else [])]
            value: Any = self.now[row.name] if row.name in self.now else self._stored(row)
            if row.kind == "gauge":
                gauge = GaugeMetricFamily(name, row.help, labels=names)
                gauge.add_metric(labels, value)
                yield gauge
            elif row.kind == "histogram":
                histogram = HistogramMetricFamily(name, row.help, labels=names)
                histogram.add_metric(labels, value.cumulative(), value.total)
                yield histogram
            else:
                counter = CounterMetricFamily(name, row.help, labels=names)
                if row.label:
                    for key, count in value.items():
                        counter.add_metric([*labels, key], count)
                else:
                    counter.add_metric(labels, value)
                yield counter

    def _stored(self, row: Metric) -> Any:
        return getattr(self.metrics, row.name.removesuffix("_total").removesuffix("_seconds"))
