"""Replicas that run but that nobody planned: taken over where they fit, else left alone.

They appear after a backup was restored, and always where there is no store. What fits becomes an
intent as it stands; the rest is a stray, which runs on until an operator decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.placement import PlacedShard, Placement
from llmgw.core.fleet.view import ENDED, Planner, View
from llmgw.core.ids import NodeId, ReplicaId, ShardKey


@dataclass(frozen=True, slots=True)
class Found:
    """One alive shard on one node."""

    node: NodeId
    key: ShardKey
    spec: ShardSpec | None


@dataclass(frozen=True, slots=True)
class Stray:
    """A running replica that is in no intent and fits nothing."""

    replica: ReplicaId
    shards: tuple[Found, ...]
    why: str


def unplanned(view: View) -> dict[ReplicaId, tuple[Found, ...]]:
    """Return the alive shards of replicas that have no intent, or run a later incarnation of one.

    A later incarnation than the intent's means that the store went back in time.
    """
    found: dict[ReplicaId, list[Found]] = {}
    for node in view.nodes.values():
        for shard in node.report.shards if node.report else ():
            intent = view.intents.get(shard.key.replica)
            newer = intent is not None and shard.key.incarnation > intent.placement.incarnation
            if shard.phase not in ENDED and (intent is None or newer):
                found.setdefault(shard.key.replica, []).append(
                    Found(node.node, shard.key, shard.spec)
                )
    return {id_: tuple(shards) for id_, shards in sorted(found.items())}


def adopted(
    shards: tuple[Found, ...], catalog: Catalog, plan: Planner, missing: Mapping[str, int]
) -> Intent | str:
    """Return the intent that describes a running replica, or why none does.

    It fits when the catalog's profile, planned onto the same nodes, GPUs and ports, gives the very
    specs that run, and when the profile still lacks a replica.
    """
    newest = max(found.key.incarnation for found in shards)
    parts = sorted((f for f in shards if f.key.incarnation == newest), key=lambda f: f.key)
    specs = [found.spec for found in parts if found.spec is not None]
    if len(specs) != len(parts):
        return "its node cannot read what it runs any more"
    first = specs[0]
    if [spec.node_rank for spec in specs] != list(range(first.node_count)):
        return f"only {len(specs)} of its {first.node_count} shards are there"
    model = next((m for m in catalog.models if m.name == first.model), None)
    profile = catalog.profile(first.profile)
    if model is None or profile is None:
        return f"profile {first.profile} of model {first.model} is not in the catalog"
    if missing.get(profile.name, 0) < 1:
        return f"profile {profile.name} has all the replicas that it wants"
    placement = Placement(
        first.replica,
        newest,
        model.name,
        model.served_names,
        profile,
        tuple(
            PlacedShard(found.node, spec.node_rank, spec.address, spec.port, spec.gpus)
            for found, spec in zip(parts, specs, strict=True)
        ),
        first.rendezvous,
    )
    planned = plan(placement)
    if isinstance(planned, str) or not _same(planned, tuple(specs)):
        return f"it does not run as profile {profile.name} now says"
    return Intent(placement, why="taken over as it was found running", reported=True)


def _same(planned: tuple[ShardSpec, ...], running: tuple[ShardSpec, ...]) -> bool:
    """Compare what would be started with what was; how it is looked after may differ."""

    def bare(spec: ShardSpec) -> ShardSpec:
        return replace(spec, start_timeout_s=0.0, stop_grace_s=0.0, readiness=None, unknown={})

    return [bare(spec) for spec in planned] == [bare(spec) for spec in running]
