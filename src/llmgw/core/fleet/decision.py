"""What decide() answers: everything that follows from one view, each part with a why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.fleet.adopt import Stray
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.ids import NodeId, ReplicaId, ShardKey

WAKE_S_MAX: Final = 5.0
"""Deciding again is cheap; no deadline is noticed later than this."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What one node is assigned."""

    shards: tuple[ShardSpec, ...] = ()
    keep: tuple[ShardKey, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteTo:
    """One replica that requests for a model may go to."""

    model: str
    replica: ReplicaId
    incarnation: int
    host: str
    port: int
    engine: str
    keyed: bool
    confirmed: bool
    """False where its node has not reported to this control plane yet."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica for people to read."""

    replica: ReplicaId
    model: str
    profile: str
    incarnation: int
    phase: ReplicaPhase
    why: str
    nodes: tuple[str, ...] = ()
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Replicas that are wanted and have no place."""

    profile: str
    model: str
    missing: int
    why: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Something worth an event."""

    subject: str
    what: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that follows from one view."""

    saves: tuple[Intent, ...] = ()
    forgets: tuple[ReplicaId, ...] = ()
    duties: Mapping[NodeId, Duty] = field(default_factory=dict)
    """Complete, for every node that is heard. Empty while `hold` says why nothing is done."""
    routes: tuple[RouteTo, ...] = ()
    statuses: tuple[ReplicaStatus, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    strays: tuple[Stray, ...] = ()
    happened: tuple[Happened, ...] = ()
    hold: str = ""
    """Why nothing is started, stopped or routed anew yet; empty in normal life."""
    brake: str = ""
    """Why lost replicas are not replaced; empty in normal life."""
    wake_s: float = WAKE_S_MAX


def count_phases(decision: Decision) -> Counter[ReplicaPhase]:
    """Count replicas by phase, for metrics and summaries."""
    return Counter(status.phase for status in decision.statuses)
