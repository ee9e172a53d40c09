"""Everything one node should run, complete; and how what runs there differs from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.document import Json
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.placement import Rendezvous
from llmgw.core.ids import ReplicaId, ShardKey

TERM_BELIEVED_MAX: Final = 2**40
"""No control plane gets there, one that takes the lead each second not in 30,000 years. Who says a
higher term is broken, and to go past it would break all others."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process of a shard. All but the last are sidecars; the last is the engine."""

    name: str
    argv: tuple[str, ...]
    """argv[0] is the engine's usual program name; the agent puts the path that it found there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    waits_for_rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class Readiness:
    """How to ask an engine whether it is ready; None in a spec means nobody can be asked."""

    health_path: str
    models_path: str
    served_name: str
    """Must be in the model list."""
    loading_status: int | None = None
    """The status that the health path answers while loading, if the engine listens by then."""
    token_probe: bool = False


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard as its node needs it; never holds a key."""

    replica: ReplicaId
    incarnation: int
    node_rank: int
    node_count: int
    model: str
    profile: str
    engine: EngineKind
    commands: tuple[Command, ...]
    address: str
    port: int
    gpus: tuple[str, ...] = ()
    memory_share: float = 1.0
    rendezvous: Rendezvous | None = None
    readiness: Readiness | None = None
    key_variable: str | None = None
    """Environment variable in which the engine expects its key."""
    metrics_path: str | None = None
    source: str = ""
    """A local path that must be there before the start; empty where the engine fetches it."""
    start_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def key(self) -> ShardKey:
        """The shard's name."""
        return ShardKey(self.replica, self.incarnation, self.node_rank)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a node should run. What is neither in `shards` nor in `keep` is to be stopped."""

    term: int
    generation: int
    shards: tuple[ShardSpec, ...] = ()
    keys: Mapping[ReplicaId, str] = field(default_factory=dict, repr=False)
    """Engine keys beside the specs; downwards only."""
    keep: tuple[ShardKey, ...] = ()
    """Running shards that nobody planned: left alone until an operator decides."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What to do so that a node runs its assignment."""

    start: tuple[ShardSpec, ...] = ()
    stop: tuple[ShardKey, ...] = ()
    refused: Mapping[ShardKey, str] = field(default_factory=dict)
    """Assigned, but older than what this node has already seen of the replica."""
    blocked: Mapping[ShardKey, str] = field(default_factory=dict)
    """To be started as soon as what is named has ended."""


def difference(
    assignment: Assignment, present: Iterable[ShardKey], ended: Iterable[ShardKey]
) -> Difference:
    """Compare an assignment with the shards that a node has.

    `present` are all shards with a record here, `ended` those of them whose processes are gone. A
    shard with a record is never started again, whatever became of it; one of an incarnation older
    than a present one is refused; one whose predecessor still lives waits for it.
    """
    here, gone = set(present), set(ended)
    wanted = {spec.key: spec for spec in assignment.shards}
    keep = set(wanted) | set(assignment.keep)
    stop = tuple(sorted(here - gone - keep))
    start: list[ShardSpec] = []
    refused: dict[ShardKey, str] = {}
    blocked: dict[ShardKey, str] = {}
    for key, spec in sorted(wanted.items()):
        if key in here:
            continue
        seen = [k for k in here if k.replica == key.replica]
        newer = [k for k in seen if k.incarnation > key.incarnation]
        alive = [k for k in seen if k not in gone]
        if newer:
            refused[key] = f"this node has seen incarnation {max(newer).incarnation} already"
        elif alive:
            blocked[key] = f"waits for {alive[0]} to end"
        else:
            start.append(spec)
    return Difference(tuple(start), stop, refused, blocked)
