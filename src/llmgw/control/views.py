"""What the admin API shows, made from the last turn: pure, and never more than was known then."""

from collections.abc import Iterator, Mapping, Sequence

from llmgw.admin.schema import (
    FailureInfo,
    GatewayInfo,
    GpuInfo,
    ModelInfo,
    NodeInfo,
    ProfileInfo,
    ReplicaInfo,
    ShardInfo,
    ShortfallInfo,
    StrayInfo,
)
from llmgw.control.reconciler import Seen
from llmgw.control.troubles import is_failing
from llmgw.core.fleet.catalog import Model, Profile
from llmgw.core.fleet.decision import ReplicaStatus
from llmgw.core.fleet.hardware import Gpu
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.placement import PlacedShard
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.fleet.view import ENDED, NodeView
from llmgw.core.ids import ReplicaId


def intents_of(seen: Seen) -> Mapping[ReplicaId, Intent]:
    """Return all intents as the last decision left them."""
    intents = {**seen.view.intents, **{i.replica: i for i in seen.decision.saves}}
    return {id_: i for id_, i in intents.items() if id_ not in seen.decision.forgets}


def replicas(seen: Seen) -> tuple[ReplicaInfo, ...]:
    """Return every replica with its shards."""
    intents = intents_of(seen)
    return tuple(
        _replica(seen, status, intents[status.replica])
        for status in seen.decision.statuses
        if status.replica in intents
    )


def _replica(seen: Seen, status: ReplicaStatus, intent: Intent) -> ReplicaInfo:
    return ReplicaInfo(
        status.replica,
        status.model,
        status.profile,
        status.incarnation,
        status.phase,
        status.why,
        intent.wanted,
        status.nodes,
        seen.view.ready_s.get(status.replica, 0.0),
        tuple(_shard(seen, intent, shard) for shard in intent.placement.shards),
        tuple(FailureInfo(f.incarnation, f.why, f.at_wall_s) for f in intent.failures),
    )


def _shard(seen: Seen, intent: Intent, placed: PlacedShard) -> ShardInfo:
    key = intent.placement.key(placed)
    node = seen.view.nodes.get(placed.node)
    name = node.name if node else placed.node
    report = node.shard(key) if node else None
    if report is None:
        why = f"{name} has not reported it"
        return ShardInfo(str(key), name, "", why, placed.address, placed.port, placed.gpus)
    return ShardInfo(
        str(key),
        name,
        report.phase,
        report.why,
        placed.address,
        placed.port,
        placed.gpus,
        report.pid,
        report.exit_status,
        report.started_ago_s,
        report.answered_ago_s,
        report.keyed,
        report.running,
        report.last_log,
    )


def models(seen: Seen) -> tuple[ModelInfo, ...]:
    """Return every model of the catalog with how far its profiles are."""
    return tuple(
        ModelInfo(
            model.name, model.aliases, tuple(_profile(seen, model, p) for p in model.profiles)
        )
        for model in seen.wanted.catalog.models
    )


def _profile(seen: Seen, model: Model, profile: Profile) -> ProfileInfo:
    statuses = [
        s for s in seen.decision.statuses if (s.model, s.profile) == (model.name, profile.name)
    ]
    ready = sum(status.phase is ReplicaPhase.READY for status in statuses)
    why = next((s.why for s in seen.decision.shortfalls if s.profile == profile.name), "")
    if not why and ready < profile.replicas:
        why = seen.decision.hold or next(
            (_how(s) for s in statuses if s.phase is not ReplicaPhase.READY), ""
        )
    if not why:
        why = _under_way(statuses)
    return ProfileInfo(profile.name, profile.engine, profile.replicas, ready, why)


def _under_way(statuses: Sequence[ReplicaStatus]) -> str:
    """Say what a change does not come through by, where enough replicas serve all the same."""
    for status in statuses:
        if is_failing(status):
            return (
                f"a change does not come through: replica {status.replica}: {_how(status)}; the "
                "others go on serving"
            )
    late = next((s for s in statuses if s.phase is not ReplicaPhase.READY), None)
    if late is None:
        return ""
    return f"a change is under way: replica {late.replica}: {_how(late)}"


def _how(status: ReplicaStatus) -> str:
    # Why it failed begins with that it did.
    begins = status.why.startswith(f"{status.phase} ")
    return status.why if begins else f"{status.phase}: {status.why}"


def nodes(seen: Seen) -> tuple[NodeInfo, ...]:
    """Return every node that belongs, by name."""
    views = sorted(seen.view.nodes.values(), key=lambda node: node.name)
    return tuple(_node(view) for view in views)


def state_of(node: NodeView) -> str:
    """Return heard, silent or unknown."""
    if node.report is None:
        return "unknown"
    return "heard" if node.heard else "silent"


def _node(view: NodeView) -> NodeInfo:
    state = state_of(view)
    if view.report is None:
        return NodeInfo(view.node, view.name, state, view.silent_s)
    inventory = view.report.inventory
    alive = [s for s in view.report.shards if s.phase not in ENDED]
    return NodeInfo(
        view.node,
        view.name,
        state,
        view.silent_s,
        inventory.address,
        inventory.version,
        inventory.cpus,
        inventory.memory_mib,
        tuple(_gpu(view, gpu) for gpu in inventory.gpus),
        tuple(f"{e.kind} {e.version or '(version unknown)'}" for e in inventory.engines),
        inventory.labels,
        len(alive),
        inventory.warnings,
    )


def _gpu(view: NodeView, gpu: Gpu) -> GpuInfo:
    shards = view.report.shards if view.report else ()
    holders = sorted(
        {
            str(shard.key.replica)
            for shard in shards
            if shard.phase not in ENDED and shard.spec and gpu.uuid in shard.spec.gpus
        }
    )
    return GpuInfo(
        gpu.index,
        gpu.gpu_class,
        gpu.uuid,
        gpu.memory_mib,
        gpu.memory_used_mib,
        tuple(holders),
        gpu.unusable,
    )


def shortfalls(seen: Seen) -> tuple[ShortfallInfo, ...]:
    """Return what is wanted and has no place."""
    return tuple(
        ShortfallInfo(s.profile, s.model, s.missing, s.why) for s in seen.decision.shortfalls
    )


def strays(seen: Seen) -> tuple[StrayInfo, ...]:
    """Return what runs and was never planned."""
    found = []
    for stray in seen.decision.strays:
        names = {_name(seen, shard.node) for shard in stray.shards}
        found.append(StrayInfo(stray.replica, tuple(sorted(names)), stray.why))
    return tuple(found)


def _name(seen: Seen, node: str) -> str:
    return next((view.name for id_, view in seen.view.nodes.items() if id_ == node), node)


def gateways(seen: Seen) -> tuple[GatewayInfo, ...]:
    """Return every gateway that belongs."""
    return tuple(
        GatewayInfo(g.gateway, g.silent_s == 0.0, g.silent_s, *g.order, sum(g.in_flight.values()))
        for g in seen.view.gateways
    )


def warnings(seen: Seen) -> Iterator[str]:
    """Yield what an operator should know although everything works."""
    for broken in seen.wanted.broken:
        yield f"replica {broken.replica}: {broken.why}"
    for node in seen.view.nodes.values():
        for warning in node.report.inventory.warnings if node.report else ():
            yield f"node {node.name}: {warning}"
        for shard in node.report.shards if node.report else ():
            if seen.view.stored and not shard.keyed and shard.phase not in ENDED:
                yield (
                    f"the engine of {shard.key} on {node.name} has no key, since it was started "
                    "without a store: it is used as it is until its next start"
                )
