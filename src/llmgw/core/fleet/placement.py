"""The choice of nodes, GPUs, node ranks, rendezvous and ports for one start of a replica.

Pure: what may be used comes in as `Room`s, a Placement or a NoRoom with each node's reason goes
out. One node per replica for now; the types already hold ranks and a rendezvous.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.document import Json
from llmgw.core.fleet.catalog import EngineKind, Profile
from llmgw.core.fleet.hardware import Gpu, Inventory
from llmgw.core.ids import NodeId, ReplicaId, ShardKey

SPARE_PORTS: Final = 3
"""Ports kept free behind the serving port: engines open more beside theirs."""
WHOLE: Final = 1.0
_SHARE_SLACK: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks meet: on the head."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """The part of a placement on one node."""

    node: NodeId
    node_rank: int
    address: str
    port: int
    """Serving port; SPARE_PORTS above it are the shard's too."""
    gpus: tuple[str, ...] = ()
    """UUIDs in PCI order."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one incarnation of a replica runs, and what: the profile as it was when placed."""

    replica: ReplicaId
    incarnation: int
    model: str
    served_names: tuple[str, ...]
    profile: Profile
    shards: tuple[PlacedShard, ...]
    """By node rank; the first is the head."""
    rendezvous: Rendezvous | None = None
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def key(self, shard: PlacedShard) -> ShardKey:
        """Return the name of one of this placement's shards."""
        return ShardKey(self.replica, self.incarnation, shard.node_rank)

    @property
    def head(self) -> PlacedShard:
        """The shard that serves HTTP."""
        return self.shards[0]


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of one node after everything that holds or was granted a part of it."""

    inventory: Inventory
    shares: Mapping[str, float]
    """How much of each GPU is free, by UUID: 1 is a whole one, 0 none; absent means whole."""
    ports_used: frozenset[int] = frozenset()
    closed: str = ""
    """Why nothing may be placed here; empty if it may."""
    shards: int = 0
    """How many shards it has, so that replicas spread."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nothing fits, and what is in the way on each node."""

    profile: str
    in_the_way: Mapping[str, str]

    @property
    def why(self) -> str:
        """One sentence."""
        if not self.in_the_way:
            return f"no room for {self.profile}: no node has reported; start llmgw agent on one"
        reasons = "; ".join(f"{node}: {why}" for node, why in sorted(self.in_the_way.items()))
        return f"no room for {self.profile}: {reasons}"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be placed."""

    replica: ReplicaId
    incarnation: int
    model: str
    served_names: tuple[str, ...]
    profile: Profile
    ports_avoided: frozenset[int] = frozenset()
    """Ports that failed an earlier start of this replica."""


def ports_from(port: int) -> range:
    """Return all ports of a shard that serves on `port`: that one and its spare ones."""
    return range(port, port + 1 + SPARE_PORTS)


def place(request: Request, rooms: Sequence[Room]) -> Placement | NoRoom:
    """Choose the emptiest fitting node; ties go to the smaller node id, so the answer is stable."""
    if request.profile.nodes != 1:
        every = {room.inventory.name: "placement over several nodes is not there" for room in rooms}
        return NoRoom(request.profile.name, every)
    in_the_way: dict[str, str] = {}
    for room in sorted(rooms, key=lambda r: (r.shards, r.inventory.node)):
        shard = _fit(request, room)
        if isinstance(shard, PlacedShard):
            return Placement(
                request.replica,
                request.incarnation,
                request.model,
                request.served_names,
                request.profile,
                (shard,),
            )
        in_the_way[room.inventory.name] = shard
    return NoRoom(request.profile.name, in_the_way)


def _fit(request: Request, room: Room) -> PlacedShard | str:
    node, profile = room.inventory, request.profile
    if room.closed:
        return room.closed
    if not _labels_fit(profile.node_labels, node.labels):
        return f"lacks the labels {dict(profile.node_labels)}"
    if not _has_engine(node, profile.engine):
        return f"has no {profile.engine}"
    gpus = _gpus(profile, room)
    if isinstance(gpus, str):
        return gpus
    port = _port(room, request.ports_avoided)
    if port is None:
        ports = f"{node.ports.first} to {node.ports.last}"
        return f"has no {1 + SPARE_PORTS} free ports in a row from {ports}"
    return PlacedShard(node.node, 0, node.address, port, gpus)


def _labels_fit(wanted: Mapping[str, str], there: Mapping[str, str]) -> bool:
    return all(there.get(name) == value for name, value in wanted.items())


def _has_engine(node: Inventory, kind: EngineKind) -> bool:
    return any(engine.kind == kind for engine in node.engines)


def _gpus(profile: Profile, room: Room) -> tuple[str, ...] | str:
    if profile.gpus_per_node == 0:
        return ()
    reasons: list[str] = []
    free: list[Gpu] = []
    for gpu in sorted(room.inventory.gpus, key=lambda g: g.index):
        why = _unfit(gpu, profile, room.shares.get(gpu.uuid, WHOLE))
        if why:
            reasons.append(f"GPU {gpu.index} {why}")
        else:
            free.append(gpu)
    if len(free) >= profile.gpus_per_node:
        # The fullest that still fits: shared GPUs fill up before a fresh one is opened.
        free.sort(key=lambda g: (room.shares.get(g.uuid, WHOLE), g.index))
        chosen = sorted(free[: profile.gpus_per_node], key=lambda g: g.index)
        return tuple(gpu.uuid for gpu in chosen)
    found = f"{len(free)} of {profile.gpus_per_node} GPUs free"
    return f"{found} ({', '.join(reasons) if reasons else 'it has no more'})"


def _unfit(gpu: Gpu, profile: Profile, free: float) -> str:
    if gpu.unusable:
        return gpu.unusable
    if profile.gpu_class is not None and gpu.gpu_class != profile.gpu_class:
        return f"is {gpu.gpu_class}, not {profile.gpu_class}"
    if free + _SHARE_SLACK < profile.memory_share:
        return "is taken" if free <= _SHARE_SLACK else f"has {free:.0%} left"
    return ""


def _port(room: Room, avoided: frozenset[int]) -> int | None:
    ports = room.inventory.ports
    used = room.ports_used | avoided | frozenset(room.inventory.ports_taken)
    for first in range(ports.first, ports.last - SPARE_PORTS + 1, 1 + SPARE_PORTS):
        if used.isdisjoint(ports_from(first)):
            return first
    return None
