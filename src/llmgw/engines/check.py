"""Whether every profile of a catalog can be turned into commands: plans a trial placement each."""

from dataclasses import replace
from typing import Final

from llmgw.core.fleet.catalog import Catalog, Model, Problem, Profile
from llmgw.core.fleet.placement import PlacedShard, Placement, Rendezvous
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.engines.base import Refused
from llmgw.engines.registry import ENGINES

_ADDRESS: Final = "127.0.0.1"
_PORT: Final = 18100


def check_plans(catalog: Catalog) -> tuple[Problem, ...]:
    """Return what the engines refuse, under the path of the profile's field."""
    problems: list[Problem] = []
    for i, model in enumerate(catalog.models):
        for j, profile in enumerate(model.profiles):
            plan = ENGINES[profile.engine].plan(trial(model, profile))
            if isinstance(plan, Refused):
                path = f"models[{i}].profiles[{j}]"
                problems += [replace(p, field=f"{path}.{p.field}") for p in plan.problems]
    return tuple(problems)


def trial(model: Model, profile: Profile) -> Placement:
    """Return a placement of the profile's shape on nodes that do not exist."""
    # The shape may itself be wrong (that is found elsewhere): a plan needs one shard at least.
    shards = tuple(
        PlacedShard(
            NodeId(f"trial-{rank}"),
            rank,
            _ADDRESS,
            _PORT,
            tuple(f"GPU-{rank}-{index}" for index in range(profile.gpus_per_node)),
        )
        for rank in range(max(profile.nodes, 1))
    )
    rendezvous = Rendezvous(_ADDRESS, _PORT + 1) if len(shards) > 1 else None
    return Placement(
        ReplicaId("trial"), 1, model.name, model.served_names, profile, shards, rendezvous
    )
