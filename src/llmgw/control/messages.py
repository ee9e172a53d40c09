"""What the owner of the fleet's state is told: everything that can change what it knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.core.fleet.assignment import Assignment
from llmgw.core.fleet.report import Report
from llmgw.core.ids import LinkId, NodeId, ReplicaId
from llmgw.wire.messages import Load


@dataclass(frozen=True, slots=True)
class NodesBelong:
    """All nodes that belong, by id, with their names; the others are forgotten."""

    names: Mapping[NodeId, str]


@dataclass(frozen=True, slots=True)
class NodeAttached:
    """A node that belongs has opened a link; an older one of it counts no more."""

    link: LinkId
    node: NodeId
    name: str
    term: int = 0
    """The highest that its agent has obeyed."""


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A node has told its whole truth."""

    link: LinkId
    report: Report


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node's link has ended."""

    link: LinkId
    why: str = ""


@dataclass(frozen=True, slots=True)
class Assigned:
    """An assignment was handed to a node's link."""

    link: LinkId
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class GatewaysBelong:
    """All gateways that belong; the others are forgotten, unless their link is open."""

    gateways: frozenset[str]


@dataclass(frozen=True, slots=True)
class GatewayAttached:
    """A gateway has opened a link; an older one of it counts no more."""

    link: LinkId
    gateway: str
    term: int = 0
    """Of the snapshot that it acts on."""


@dataclass(frozen=True, slots=True)
class GatewayTold:
    """A gateway has said what it has in flight, and which snapshot it acts on."""

    link: LinkId
    load: Load


@dataclass(frozen=True, slots=True)
class GatewayLeft:
    """A gateway's link has ended."""

    link: LinkId
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeadTaken:
    """This control plane begins to lead: what it sent under an earlier term counts no more."""


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot is on its way to the gateways."""

    order: tuple[int, int]
    routed: frozenset[ReplicaId] = field(default_factory=frozenset)
    """Replicas with a route in it."""


@dataclass(frozen=True, slots=True)
class Condemned:
    """An operator wants this replica stopped."""

    replica: ReplicaId


ComingOrGoing = (
    NodesBelong | NodeAttached | NodeLeft | GatewaysBelong | GatewayAttached | GatewayLeft
)
Message = ComingOrGoing | NodeReported | Assigned | GatewayTold | LeadTaken | Published | Condemned
