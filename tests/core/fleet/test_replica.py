from dataclasses import replace

import pytest

from llmgw.core.fleet.intent import Intent, Wanted
from llmgw.core.fleet.placement import PlacedShard
from llmgw.core.fleet.replica import MOVES, ReplicaPhase, phase_of, seen, to_mermaid
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.restart import Failure
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import NodeId
from llmgw.testing.fleet import catalog, key, node_view, placement, profile, view

HEAD = placement()
WORKER = PlacedShard(NodeId("n2"), 1, "10.0.0.2", 18100)
GANG = Intent(replace(HEAD, shards=(*HEAD.shards, WORKER)), reported=True)


def phase(head: Phase, worker: Phase, gang: Intent = GANG) -> ReplicaPhase:
    nodes = [
        node_view("n1", ShardReport(key("r1"), head, "head")),
        node_view("n2", ShardReport(key("r1", 1, 1), worker, "worker")),
    ]
    return phase_of(gang, seen(gang, view(catalog(profile()), [gang], nodes)))[0]


@pytest.mark.parametrize(
    ("head", "worker", "expected"),
    [
        (Phase.READY, Phase.ALIVE, ReplicaPhase.READY),
        (Phase.READY, Phase.STARTING, ReplicaPhase.STARTING),
        (Phase.LOADING, Phase.ALIVE, ReplicaPhase.LOADING),
        (Phase.LOADING, Phase.WAITING, ReplicaPhase.WAITING),
        (Phase.STARTING, Phase.ALIVE, ReplicaPhase.STARTING),
    ],
)
def test_a_gang_is_as_far_as_the_shard_that_is_furthest_behind(
    head: Phase, worker: Phase, expected: ReplicaPhase
) -> None:
    assert phase(head, worker) is expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (replace(GANG, wanted=Wanted.DRAIN), ReplicaPhase.DRAINING),
        (replace(GANG, wanted=Wanted.STOP), ReplicaPhase.STOPPING),
        (replace(GANG, failures=(Failure(1, "boom", 0.0),)), ReplicaPhase.FAILED),
    ],
)
def test_what_is_wanted_and_what_has_failed_comes_before_what_shards_say(
    changed: Intent, expected: ReplicaPhase
) -> None:
    assert phase(Phase.READY, Phase.ALIVE, changed) is expected


def test_a_node_that_is_not_heard_makes_the_gang_silent() -> None:
    nodes = [node_view("n1"), node_view("n2", linked=False, silent_s=7.0)]
    gang = replace(GANG, reported=False)
    parts = seen(gang, view(catalog(profile()), [gang], nodes))
    assert phase_of(gang, parts[1:]) == (ReplicaPhase.SILENT, "n2 has not been heard for 7 s")


def test_every_phase_can_be_left_but_the_last_and_the_diagram_names_all() -> None:
    assert set(MOVES) == set(ReplicaPhase)
    assert [p for p, ends in MOVES.items() if not ends] == [ReplicaPhase.STOPPING]
    assert all(str(phase) in to_mermaid() for phase in ReplicaPhase)
