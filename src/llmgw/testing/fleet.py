"""Small makers of fleet values: a test names only what it is about."""

from collections.abc import Iterable, Mapping

from llmgw.core.fleet.ages import Ages
from llmgw.core.fleet.assignment import Command, Readiness, ShardSpec
from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Profile
from llmgw.core.fleet.hardware import EngineFound, Gpu, Inventory, PortRange
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.placement import PlacedShard, Placement
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.fleet.view import NodeView, Planner, View
from llmgw.core.ids import NodeId, ReplicaId, ShardKey

GPU_CLASS = "l40s-45g"
NOW_S = 1_000_000.0


def profile(name: str = "p", **fields: object) -> Profile:
    """Return a llama.cpp profile with one GPU."""
    given = {"gpus_per_node": 1, **fields}
    return Profile(name, EngineKind.LLAMACPP, "/models/m.gguf", **given)  # type: ignore[arg-type]


def catalog(*profiles: Profile, model: str = "m") -> Catalog:
    """Return a catalog with one model that has these profiles."""
    return Catalog((Model(model, profiles),), revision=1)


def gpu(index: int, node: str = "n1") -> Gpu:
    """Return a healthy GPU."""
    return Gpu(f"GPU-{node}-{index}", index, "NVIDIA L40S", GPU_CLASS, memory_mib=46068)


def inventory(node: str = "n1", gpus: int = 2) -> Inventory:
    """Return a node with llama.cpp and some GPUs."""
    return Inventory(
        NodeId(node),
        node,
        "10.0.0.1",
        f"machine-{node}",
        "boot-1",
        gpus=tuple(gpu(i, node) for i in range(gpus)),
        engines=(EngineFound("llamacpp", "/usr/bin/llama-server"),),
        ports=PortRange(18100, 18199),
    )


def plan(placement: Placement) -> tuple[ShardSpec, ...]:
    """Plan a placement as a real engine would, in the smallest way."""
    return tuple(_spec(placement, shard) for shard in placement.shards)


def _spec(placement: Placement, shard: PlacedShard) -> ShardSpec:
    return ShardSpec(
        placement.replica,
        placement.incarnation,
        shard.node_rank,
        len(placement.shards),
        placement.model,
        placement.profile.name,
        placement.profile.engine,
        (Command("engine", ("llama-server", *placement.profile.arguments)),),
        shard.address,
        shard.port,
        shard.gpus,
        placement.profile.memory_share,
        placement.rendezvous,
        Readiness("/health", "/v1/models", placement.model),
    )


def shard_report(placement: Placement, phase: Phase = Phase.READY, **fields: object) -> ShardReport:
    """Return what a node would report of a placement's head."""
    spec = plan(placement)[0]
    given: Mapping[str, object] = {"why": f"is {phase}", "spec": spec, **fields}
    return ShardReport(spec.key, phase, **given)  # type: ignore[arg-type]


def placement(
    replica: str = "r1", node: str = "n1", wanted: Profile | None = None, incarnation: int = 1
) -> Placement:
    """Return a placement on the first GPU of a node."""
    wanted = wanted or profile()
    gpus = tuple(gpu(i, node).uuid for i in range(wanted.gpus_per_node))
    shard = PlacedShard(NodeId(node), 0, "10.0.0.1", 18100, gpus)
    return Placement(ReplicaId(replica), incarnation, "m", ("m",), wanted, (shard,))


def node_view(node: str = "n1", *shards: ShardReport, gpus: int = 2, **fields: object) -> NodeView:
    """Return a linked node that has reported these shards."""
    given: dict[str, object] = {"linked": True, **fields}
    report = Report(inventory(node, gpus), shards, term=1, generation=1)
    return NodeView(NodeId(node), node, report, **given)  # type: ignore[arg-type]


def view(
    wanted: Catalog,
    intents: Iterable[Intent] = (),
    nodes: Iterable[NodeView] = (),
    *,
    now_s: float = NOW_S,
    **more: object,
) -> View:
    """Return a view of these as a control plane that is fresh at wall-clock `now_s` has it."""
    intents = tuple(intents)
    given: dict[str, object] = {
        "fresh_ids": tuple(ReplicaId(f"new{i}") for i in range(16)),
        "age_s": 1000.0,
        "ages": Ages().of(intents, 0.0, now_s),
        **more,
    }
    return View(
        wanted,
        {i.replica: i for i in intents},
        {n.node: n for n in nodes},
        **given,  # type: ignore[arg-type]
    )


PLAN: Planner = plan


def key(replica: str, incarnation: int = 1, node_rank: int = 0) -> ShardKey:
    """Return a shard's name."""
    return ShardKey(ReplicaId(replica), incarnation, node_rank)
