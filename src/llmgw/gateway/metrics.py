"""What the gateway shows of itself: plain integers on the hot path, rendered when scraped."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmgw.gateway.entry import Entry
from llmgw.gateway.gate import Gate
from llmgw.gateway.journal import Journal
from llmgw.gateway.replicas import Replicas

L = TypeVar("L", bound=tuple[str, ...])

# From a short embedding to a long stream.
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Histogram:
    """Counts by upper bound; the last count is for all above."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return what Prometheus wants: running totals by bound."""
        total = 0
        buckets = []
        for bound, count in zip((*BOUNDS_S, "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


class GatewayMetrics:
    """The counters."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.duration: dict[str, Histogram] = {}
        self.first_byte: dict[str, Histogram] = {}

    def seen(self, entry: Entry) -> None:
        """Count a record that has closed."""
        model = entry.model
        self.requests[model, entry.ending.value, str(entry.status)] += 1
        self.tokens[model, "prompt"] += entry.prompt_tokens
        self.tokens[model, "completion"] += entry.completion_tokens
        self.tokens[model, "cached"] += entry.cached_tokens
        self.duration.setdefault(model, Histogram()).observe(entry.duration_s)
        if entry.first_byte_s is not None:
            self.first_byte.setdefault(model, Histogram()).observe(entry.first_byte_s)

    def refused(self, code: str) -> None:
        """Count an error of the gateway's own making, by its code."""
        self.refusals[code] += 1


class GatewayCollector(Collector):
    """Reads the counters, and the parts that know how things stand, at each scrape."""

    def __init__(
        self, metrics: GatewayMetrics, replicas: Replicas, gate: Gate, journal: Journal
    ) -> None:
        self._metrics = metrics
        self._replicas = replicas
        self._gate = gate
        self._journal = journal

    def text(self) -> str:
        """Render everything in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        yield from self._traffic()
        yield from self._engines()
        yield from self._upkeep()

    def _traffic(self) -> Iterable[Metric]:
        metrics = self._metrics
        yield _counter(
            "llmgw_gateway_requests",
            "Requests that have ended, by how.",
            ("model", "ending", "status"),
            metrics.requests,
        )
        yield _counter("llmgw_gateway_tokens", "Tokens used.", ("model", "kind"), metrics.tokens)
        yield _counter(
            "llmgw_gateway_errors",
            "Errors that the gateway answered with, by code.",
            ("code",),
            {(code,): count for code, count in metrics.refusals.items()},
        )
        yield _histogram(
            "llmgw_gateway_request_seconds", "From a request to its end.", metrics.duration
        )
        yield _histogram(
            "llmgw_gateway_first_byte_seconds",
            "From a request to the first byte of its answer's body.",
            metrics.first_byte,
        )

    def _engines(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "llmgw_gateway_in_flight", "Requests at a replica.", labels=("replica",)
        )
        for name, count in self._replicas.load().items():
            in_flight.add_metric((name,), count)
        yield in_flight
        yield _counter(
            "llmgw_gateway_upstream_failures",
            "Failures of a replica, by code.",
            ("replica", "code"),
            {
                (replica.target.replica, code): count
                for replica in self._replicas.replicas
                for code, count in replica.failures.items()
            },
        )
        shut = GaugeMetricFamily(
            "llmgw_gateway_breaker_open", "1 while a replica is left alone.", labels=("replica",)
        )
        for replica in self._replicas.replicas:
            shut.add_metric((replica.target.replica,), float(replica.breaker.open_until_s > 0))
        yield shut

    def _upkeep(self) -> Iterable[Metric]:
        journal = self._journal
        yield GaugeMetricFamily(
            "llmgw_gateway_waiting", "Requests in queues.", value=self._gate.waiting
        )
        yield GaugeMetricFamily(
            "llmgw_gateway_journal_bytes", "Usage records on disk.", value=journal.bytes_held
        )
        yield GaugeMetricFamily(
            "llmgw_gateway_journal_refuses",
            "1 while usage cannot be written down and requests are refused.",
            value=float(bool(journal.why)),
        )
        yield CounterMetricFamily(
            "llmgw_gateway_journal_lost",
            "Usage records that were dropped for want of room.",
            value=journal.lost,
        )


def _counter(name: str, text: str, labels: tuple[str, ...], counts: Mapping[L, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("model",))
    for model, histogram in histograms.items():
        family.add_metric((model,), histogram.buckets(), sum_value=histogram.sum_s)
    return family
