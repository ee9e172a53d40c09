"""The control plane's metrics, made from its state at each scrape; docs/reference has the list."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw.control.plane import ControlPlane
from llmgw.control.reconciler import Seen
from llmgw.control.views import state_of
from llmgw.core.fleet.decision import count_phases
from llmgw.core.fleet.replica import ReplicaPhase

NODE_STATES: Final = ("heard", "silent", "unknown")

Labelled = Iterable[tuple[Sequence[str], float]]


class ControlCollector(Collector):
    """Reads what there is when somebody scrapes."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; what only a turn can tell is absent before the first."""
        yield from self._own()
        if (seen := self._plane.reconciler.seen) is not None:
            yield from _fleet(seen)

    def _own(self) -> Iterator[Metric]:
        plane = self._plane
        figures = plane.reconciler.figures
        term = plane.leader.term
        yield _gauge("leads", "1 while this control plane leads.", term > 0)
        yield _gauge("term", "Term of the lead; 0 while it stands by.", term)
        yield _counter("turns", "Turns of the reconciler.", figures.turns)
        yield _counter("turns_failed", "Turns that failed.", figures.turns_failed)
        yield _gauge("turn_seconds", "How long the last turn took.", figures.turn_s_last)
        yield _counter(
            "assignments_sent", "Assignments sent to agents.", plane.links.assignments_sent
        )
        yield _counter(
            "snapshots_sent",
            "Snapshots and changes sent to gateways.",
            plane.publisher.changes_sent,
        )
        yield _counter(
            "usage_records_stored", "Records new in the ledger.", plane.usage.records_stored
        )
        troubles = (
            ("lead", plane.leader.trouble),
            ("reading", plane.reader.trouble),
            ("turn", plane.reconciler.trouble),
            ("usage", plane.usage.trouble),
        )
        yield _gauges(
            "trouble",
            "1 while something of this kind does not work.",
            ["kind"],
            (([kind], float(bool(why))) for kind, why in troubles),
        )
        current = plane.publisher.current
        yield _gauge(
            "snapshot_revision",
            "Revision of what was published last.",
            current.revision if current else 0,
        )


def _fleet(seen: Seen) -> Iterator[Metric]:
    phases = count_phases(seen.decision)
    yield _gauges(
        "replicas",
        "Replicas by phase.",
        ["phase"],
        (([phase], phases[phase]) for phase in ReplicaPhase),
    )
    states = Counter(state_of(node) for node in seen.view.nodes.values())
    yield _gauges(
        "nodes",
        "Nodes that belong.",
        ["state"],
        (([state], states[state]) for state in NODE_STATES),
    )
    linked = sum(gateway.silent_s == 0.0 for gateway in seen.view.gateways)
    yield _gauges(
        "gateways",
        "Gateways that belong.",
        ["state"],
        ((["linked"], linked), (["silent"], len(seen.view.gateways) - linked)),
    )
    missing = sum(shortfall.missing for shortfall in seen.decision.shortfalls)
    yield _gauge("replicas_missing", "Replicas that are wanted and have no place.", missing)
    yield _gauge("strays", "Running replicas that nobody planned.", len(seen.decision.strays))
    yield _gauge("hold", "1 while nothing is started or stopped yet.", bool(seen.decision.hold))
    yield _gauge("brake", "1 while lost replicas are not replaced.", bool(seen.decision.brake))
    yield _gauge(
        "catalog_revision", "Revision of the catalog that is acted on.", seen.view.catalog.revision
    )


PREFIX: Final = "llmgw_control_"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauges(name: str, text: str, labels: Sequence[str], values: Labelled) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label, value in values:
        family.add_metric(label, value)
    return family


def render(plane: ControlPlane) -> bytes:
    """Return all metrics as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ControlCollector(plane))
    return generate_latest(registry)
