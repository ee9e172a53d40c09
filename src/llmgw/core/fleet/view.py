"""Everything that decide() may look at: immutable, built by the owner of the fleet's state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmgw.core.fleet.ages import Moment
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.placement import Placement
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import NodeId, ReplicaId, ShardKey

ENDED = frozenset({Phase.STOPPED, Phase.FAILED})
"""Phases in which nothing of a shard is alive."""

Planner = Callable[[Placement], tuple[ShardSpec, ...] | str]
"""Turns a placement into its shards' specs by rank, or says why the engine cannot run so."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that belongs to the fleet."""

    node: NodeId
    name: str
    report: Report | None = None
    """Its last one; None until it has reported to this control plane."""
    linked: bool = False
    """Whether the link that the report came by is still open."""
    silent_s: float = 0.0
    """How long it has not been heard, at most since this control plane's start."""
    pending: frozenset[ShardKey] = frozenset()
    """Shards of assignments sent on this link that the report does not know of yet."""

    @property
    def heard(self) -> bool:
        """Whether what it reports is current."""
        return self.linked and self.report is not None

    def shard(self, key: ShardKey) -> ShardReport | None:
        """Return what it last reported of a shard."""
        if self.report is None:
            return None
        return next((s for s in self.report.shards if s.key == key), None)


@dataclass(frozen=True, slots=True)
class GatewayView:
    """One gateway that belongs: the snapshot that it acts on, and what it has in flight."""

    gateway: str
    order: tuple[int, int] = (0, 0)
    """(term, revision) of that snapshot."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds that the operator sets for the whole fleet."""

    settle_s: float = 30.0
    """How long a control plane that must adopt waits for nodes that it knows of."""
    brake_share: float = 0.5
    """More nodes silent at once than this share: nothing is replaced."""
    gateway_silent_s: float = 10.0


@dataclass(frozen=True, slots=True)
class View:
    """What is wanted and what is known at one moment."""

    catalog: Catalog
    intents: Mapping[ReplicaId, Intent] = field(default_factory=dict)
    nodes: Mapping[NodeId, NodeView] = field(default_factory=dict)
    gateways: tuple[GatewayView, ...] = ()
    unrouted: Mapping[ReplicaId, tuple[int, int]] = field(default_factory=dict)
    """(term, revision) of the first snapshot without that replica's route."""
    ready_s: Mapping[ReplicaId, float] = field(default_factory=dict)
    """How long each replica has been ready."""
    condemned: frozenset[ReplicaId] = frozenset()
    """Replicas that an operator has asked to stop."""
    age_s: float = 0.0
    """Since this control plane began to lead."""
    stored: bool = True
    """Whether there is a store; without one the fleet itself is the only memory."""
    rules: Rules = Rules()
    ages: Mapping[Moment, float] = field(default_factory=dict)
    """How long ago the intents' stored moments were (see ages.py); one that is absent is new."""
    fresh_ids: tuple[ReplicaId, ...] = ()
    """Ids that nothing has ever had, for new replicas."""
