from dataclasses import replace

import pytest

from llmgw.core.fleet.catalog import Catalog, OnSilence
from llmgw.core.fleet.decision import WAKE_S_MAX
from llmgw.core.fleet.intent import Intent, Remains, Wanted
from llmgw.core.fleet.reconcile import decide
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.restart import Failure
from llmgw.core.fleet.shard import Phase
from llmgw.core.fleet.view import GatewayView, NodeView
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.testing.fleet import (
    NOW_S,
    PLAN,
    catalog,
    key,
    node_view,
    placement,
    profile,
    shard_report,
    view,
)

NOW = NOW_S
RUNS = Intent(placement(), reported=True)
READY = shard_report(placement())


def silent(node: str, *shards: ShardReport, for_s: float = 60.0) -> NodeView:
    return node_view(node, *shards, linked=False, silent_s=for_s)


def unheard(node: str, for_s: float = 1.0) -> NodeView:
    return NodeView(NodeId(node), node, silent_s=for_s)


def test_a_wanted_replica_is_placed_saved_and_assigned_at_once() -> None:
    decision = decide(view(catalog(profile()), nodes=[node_view()]), NOW, PLAN)
    assert [i.placement.shards[0].gpus for i in decision.saves] == [("GPU-n1-0",)]
    assert [s.key for s in decision.duties[NodeId("n1")].shards] == [key("new0")]
    assert decision.routes == ()


def test_nothing_is_placed_on_a_node_that_has_not_reported() -> None:
    decision = decide(view(catalog(profile()), nodes=[unheard("n1")]), NOW, PLAN)
    assert decision.saves == ()
    assert [s.missing for s in decision.shortfalls] == [1]


def test_two_replicas_spread_and_a_third_says_what_is_in_the_way() -> None:
    wanted = catalog(profile(replicas=3))
    nodes = [node_view("n1", gpus=1), node_view("n2", gpus=1)]
    decision = decide(view(wanted, nodes=nodes), NOW, PLAN)
    assert [i.placement.head.node for i in decision.saves] == ["n1", "n2"]
    assert "GPU 0 is taken" in decision.shortfalls[0].why
    assert decision.shortfalls[0].missing == 1


def test_a_ready_replica_is_routed_and_a_second_look_changes_nothing() -> None:
    decision = decide(view(catalog(profile()), [RUNS], [node_view("n1", READY)]), NOW, PLAN)
    assert [(r.replica, r.port, r.confirmed) for r in decision.routes] == [("r1", 18100, True)]
    assert decision.saves == ()
    assert decision.forgets == ()


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.STOPPED])
def test_an_end_that_nobody_asked_for_is_a_failure_and_the_shard_leaves_the_duty(
    phase: Phase,
) -> None:
    ended = shard_report(placement(), phase, why="exit status 1")
    decision = decide(view(catalog(profile()), [RUNS], [node_view("n1", ended)]), NOW, PLAN)
    assert [f.why for f in decision.saves[0].failures] == ["shard 0 on n1: exit status 1"]
    assert decision.duties[NodeId("n1")].shards == ()
    assert decision.statuses[0].phase is ReplicaPhase.FAILED
    assert "starts anew in 1 s" in decision.statuses[0].why


def test_a_shard_that_was_reported_and_is_missing_has_failed() -> None:
    decision = decide(view(catalog(profile()), [RUNS], [node_view("n1")]), NOW, PLAN)
    assert "missing" in decision.saves[0].failures[0].why
    assert decision.duties[NodeId("n1")].shards == ()


def test_a_shard_that_no_report_has_had_yet_is_waited_for() -> None:
    granted = replace(RUNS, reported=False)
    decision = decide(view(catalog(profile()), [granted], [node_view("n1")]), NOW, PLAN)
    assert decision.saves == ()
    assert [s.key for s in decision.duties[NodeId("n1")].shards] == [key("r1")]
    assert decision.statuses[0].phase is ReplicaPhase.PLACED


def failed(at: float, incarnation: int = 1) -> Intent:
    return replace(RUNS, failures=(Failure(incarnation, "boom", at),))


def test_the_next_incarnation_starts_when_its_time_has_come() -> None:
    ended = shard_report(placement(), Phase.FAILED)
    nodes = [node_view("n1", ended)]
    decision = decide(view(catalog(profile()), [failed(NOW - 2)], nodes), NOW, PLAN)
    assert decision.saves[0].placement.incarnation == 2
    assert decision.saves[0].reported is False


def test_no_incarnation_starts_while_a_shard_of_the_last_one_lives() -> None:
    stopping = shard_report(placement(), Phase.STOPPING)
    nodes = [node_view("n1", stopping)]
    decision = decide(view(catalog(profile()), [failed(NOW - 99)], nodes), NOW, PLAN)
    assert decision.saves == ()
    assert "waits for its shards to end" in decision.statuses[0].why


def test_the_next_incarnation_is_above_whatever_any_node_has_seen() -> None:
    old = shard_report(placement(incarnation=7), Phase.FAILED)
    nodes = [node_view("n1", old), node_view("n2")]
    decision = decide(view(catalog(profile()), [failed(NOW - 9)], nodes), NOW, PLAN)
    assert decision.saves[0].placement.incarnation == 8


def test_a_port_that_was_taken_is_avoided_by_the_next_incarnation() -> None:
    taken = replace(RUNS, failures=(Failure(1, "port taken", NOW - 9, ports=(18100,)),))
    ended = shard_report(placement(), Phase.FAILED)
    decision = decide(view(catalog(profile()), [taken], [node_view("n1", ended)]), NOW, PLAN)
    assert decision.saves[0].placement.head.port != 18100


def test_a_silent_node_keeps_its_replica_and_its_route() -> None:
    decision = decide(view(catalog(profile()), [RUNS], [silent("n1", READY)]), NOW, PLAN)
    assert decision.saves == ()
    assert [r.confirmed for r in decision.routes] == [True]
    assert decision.statuses[0].phase is ReplicaPhase.SILENT


def test_a_node_that_has_not_reported_to_this_control_plane_keeps_its_route_unconfirmed() -> None:
    decision = decide(view(catalog(profile()), [RUNS], [unheard("n1")]), NOW, PLAN)
    assert decision.saves == ()
    assert [r.confirmed for r in decision.routes] == [False]


REPLACE = profile(on_silence=OnSilence.REPLACE, lost_after_s=30.0)
ON_N1 = Intent(placement(wanted=REPLACE), reported=True)


def test_a_lost_node_leads_to_the_next_incarnation_elsewhere_and_leaves_a_trace() -> None:
    nodes = [silent("n1", READY, for_s=31), node_view("n2")]
    decision = decide(view(catalog(REPLACE), [ON_N1], nodes), NOW, PLAN)
    judged = decision.saves[0]
    assert judged.remains == (Remains(NodeId("n1"), 1),)
    assert decision.routes == ()
    later = decide(view(catalog(REPLACE), [judged], nodes, now_s=NOW + 2), NOW + 2, PLAN)
    assert later.saves[0].placement.head.node == "n2"
    assert later.saves[0].placement.incarnation == 2


def test_a_silent_node_within_its_grace_loses_nothing() -> None:
    nodes = [silent("n1", READY, for_s=29), node_view("n2")]
    decision = decide(view(catalog(REPLACE), [ON_N1], nodes), NOW, PLAN)
    assert decision.saves == ()
    assert len(decision.routes) == 1


def test_the_next_look_is_due_when_a_silent_node_would_be_lost() -> None:
    nodes = [silent("n1", READY, for_s=29.5), node_view("n2")]
    assert decide(view(catalog(REPLACE), [ON_N1], nodes), NOW, PLAN).wake_s == 0.5
    keep = profile(lost_after_s=30.0)
    kept = Intent(placement(wanted=keep), reported=True)
    assert decide(view(catalog(keep), [kept], nodes), NOW, PLAN).wake_s == WAKE_S_MAX


def test_the_brake_holds_when_more_nodes_are_silent_than_a_share() -> None:
    nodes = [silent("n1", READY, for_s=99), silent("n2", for_s=99), node_view("n3")]
    decision = decide(view(catalog(REPLACE), [ON_N1], nodes), NOW, PLAN)
    assert decision.saves == ()
    assert "2 of 3 nodes are silent" in decision.brake


def test_the_brake_holds_when_no_node_is_heard_at_all() -> None:
    decision = decide(view(catalog(REPLACE), [ON_N1], [silent("n1", READY, for_s=99)]), NOW, PLAN)
    assert decision.saves == ()
    assert len(decision.routes) == 1
    assert "1 of 1 nodes are silent" in decision.brake


def test_what_remained_on_a_lost_node_is_stopped_when_it_returns_and_then_forgotten() -> None:
    moved = Intent(
        placement(node="n2", wanted=REPLACE, incarnation=2),
        reported=True,
        remains=(Remains(NodeId("n1"), 1),),
    )
    now_ready = shard_report(moved.placement)
    back = [node_view("n1", shard_report(ON_N1.placement)), node_view("n2", now_ready)]
    decision = decide(view(catalog(REPLACE), [moved], back), NOW, PLAN)
    assert decision.duties[NodeId("n1")].shards == ()
    assert decision.duties[NodeId("n1")].keep == ()
    assert decision.saves == ()
    gone = [node_view("n1"), node_view("n2", now_ready)]
    assert decide(view(catalog(REPLACE), [moved], gone), NOW, PLAN).saves[0].remains == ()


def test_a_model_that_left_while_its_node_is_away_is_stopped_when_the_node_returns() -> None:
    away = decide(view(Catalog(), [RUNS], [silent("n1", READY)]), NOW, PLAN)
    draining = away.saves[0]
    assert draining.wanted is Wanted.DRAIN
    stopped = decide(view(Catalog(), [draining], [silent("n1", READY)]), NOW, PLAN).saves[0]
    assert stopped.wanted is Wanted.STOP
    waiting = decide(view(Catalog(), [stopped], [silent("n1", READY)]), NOW, PLAN)
    assert waiting.forgets == ()
    back = decide(view(Catalog(), [stopped], [node_view("n1", READY)]), NOW, PLAN)
    assert back.duties[NodeId("n1")].shards == ()
    assert back.forgets == ()
    gone = decide(view(Catalog(), [stopped], [node_view("n1")]), NOW, PLAN)
    assert gone.forgets == ("r1",)


def test_a_stop_is_not_over_while_an_assignment_that_has_the_shard_may_still_arrive() -> None:
    stopping = replace(RUNS, wanted=Wanted.STOP, reported=False)
    node = node_view("n1", pending=frozenset({key("r1")}))
    assert decide(view(Catalog(), [stopping], [node]), NOW, PLAN).forgets == ()
    assert decide(view(Catalog(), [stopping], [node_view("n1")]), NOW, PLAN).forgets == ("r1",)


DRAINS = replace(RUNS, wanted=Wanted.DRAIN, drain_since_wall_s=NOW - 10, why="too many")


@pytest.mark.parametrize(
    ("gateway", "stops"),
    [
        (GatewayView("g", (1, 5), {}), True),
        (GatewayView("g", (1, 5), {"r1": 2}), False),
        (GatewayView("g", (1, 4), {}), False),
        (GatewayView("g", (1, 4), {}, silent_s=99), False),
    ],
)
def test_a_drain_waits_for_every_gateway_to_let_go(gateway: GatewayView, stops: bool) -> None:
    looks = view(
        Catalog(), [DRAINS], [node_view("n1", READY)], gateways=(gateway,), unrouted={"r1": (1, 5)}
    )
    decision = decide(looks, NOW, PLAN)
    assert [i.wanted for i in decision.saves] == ([Wanted.STOP] if stops else [])
    assert bool(decision.duties[NodeId("n1")].shards) != stops


def test_a_drain_ends_at_its_deadline_and_says_what_it_cut() -> None:
    late = replace(DRAINS, drain_since_wall_s=NOW - 301)
    gateway = GatewayView("g", (1, 5), {"r1": 2})
    looks = view(Catalog(), [late], [node_view("n1", READY)], gateways=(gateway,))
    decision = decide(looks, NOW, PLAN)
    assert decision.saves[0].wanted is Wanted.STOP
    assert "2 requests in flight" in decision.happened[0].what


def test_a_silent_gateway_is_waited_for_until_the_engine_itself_is_idle() -> None:
    gateway = GatewayView("g", (1, 4), {"r1": 2}, silent_s=99)
    idle = node_view("n1", shard_report(placement(), running=0))
    busy = node_view("n1", shard_report(placement(), running=1))
    wants = [
        [
            i.wanted
            for i in decide(view(Catalog(), [DRAINS], [n], gateways=(gateway,)), NOW, PLAN).saves
        ]
        for n in (idle, busy)
    ]
    assert wants == [[Wanted.STOP], []]


def test_fewer_replicas_keep_the_one_that_serves() -> None:
    starting = Intent(placement("r2", "n2"), reported=True)
    nodes = [
        node_view("n1", READY),
        node_view("n2", shard_report(starting.placement, Phase.LOADING)),
    ]
    decision = decide(view(catalog(profile(replicas=1)), [RUNS, starting], nodes), NOW, PLAN)
    assert [(i.replica, i.wanted) for i in decision.saves] == [("r2", Wanted.STOP)]


CHANGED = profile(context_tokens=4096)


def test_a_changed_profile_starts_anew_beside_the_old_one_which_goes_when_the_new_serves() -> None:
    first = decide(view(catalog(CHANGED), [RUNS], [node_view("n1", READY)]), NOW, PLAN)
    assert [i.replica for i in first.saves] == ["new0"]
    new = replace(first.saves[0], reported=True)
    nodes = [node_view("n1", READY, shard_report(new.placement))]
    second = decide(view(catalog(CHANGED), [RUNS, new], nodes), NOW, PLAN)
    assert [(i.replica, i.wanted) for i in second.saves] == [("r1", Wanted.DRAIN)]


def test_a_change_without_room_waits_and_says_so_unless_replicas_may_be_missing() -> None:
    nodes = [node_view("n1", READY, gpus=1)]
    waits = decide(view(catalog(CHANGED), [RUNS], nodes), NOW, PLAN)
    assert waits.saves == ()
    assert "missing_max" in waits.shortfalls[0].why
    allowed = replace(CHANGED, missing_max=1)
    goes = decide(view(catalog(allowed), [RUNS], nodes), NOW, PLAN)
    assert [(i.replica, i.wanted) for i in goes.saves] == [("r1", Wanted.DRAIN)]


def test_a_change_of_how_it_is_looked_after_restarts_nothing() -> None:
    policy = profile(drain_s_max=1.0, priority=5)
    decision = decide(view(catalog(policy), [RUNS], [node_view("n1", READY)]), NOW, PLAN)
    assert decision.saves == ()


def test_a_start_that_takes_too_long_fails_with_its_last_line() -> None:
    slow = shard_report(
        placement(), Phase.LOADING, why="loads", started_ago_s=1801.0, last_log="tensor 7"
    )
    decision = decide(view(catalog(profile()), [RUNS], [node_view("n1", slow)]), NOW, PLAN)
    why = decision.saves[0].failures[0].why
    assert "not ready 1800 s after" in why
    assert "tensor 7" in why


def test_without_a_store_nothing_happens_until_the_nodes_have_reported() -> None:
    nodes = [node_view("n1", READY), unheard("n2")]
    looks = view(catalog(profile()), [], nodes, stored=False, age_s=3.0)
    held = decide(looks, NOW, PLAN)
    assert "n2" in held.hold
    assert (held.saves, dict(held.duties), held.routes) == ((), {}, ())
    settled = decide(replace(looks, age_s=31.0), NOW, PLAN)
    assert [i.replica for i in settled.saves] == ["r1"]
    assert settled.saves[0].reported
    assert len(settled.routes) == 1


def test_a_running_replica_that_fits_nothing_is_left_running_until_an_operator_stops_it() -> None:
    looks = view(Catalog(), [], [node_view("n1", READY)])
    decision = decide(looks, NOW, PLAN)
    assert decision.duties[NodeId("n1")].keep == (key("r1"),)
    assert "not in the catalog" in decision.strays[0].why
    told = decide(replace(looks, condemned=frozenset({ReplicaId("r1")})), NOW, PLAN)
    assert told.duties[NodeId("n1")].keep == ()


def test_a_running_replica_that_runs_otherwise_than_its_profile_says_is_not_taken_over() -> None:
    odd = shard_report(placement(wanted=profile(arguments=("--odd",))))
    decision = decide(view(catalog(profile()), [], [node_view("n1", odd)]), NOW, PLAN)
    assert "does not run as profile p now says" in decision.strays[0].why
    assert decision.saves[0].placement.head.gpus == ("GPU-n1-1",)


def test_a_later_incarnation_than_the_stores_is_taken_over_when_it_fits() -> None:
    later = shard_report(placement(incarnation=3))
    decision = decide(view(catalog(profile()), [RUNS], [node_view("n1", later)]), NOW, PLAN)
    assert [i.placement.incarnation for i in decision.saves] == [3]
    assert decision.duties[NodeId("n1")].shards[0].incarnation == 3


def test_a_refused_start_is_a_failure_with_the_nodes_reason() -> None:
    node = node_view("n1")
    assert node.report is not None
    node = replace(node, report=replace(node.report, refused={"r1.1.0": "has seen 2"}))
    granted = replace(RUNS, reported=False)
    decision = decide(view(catalog(profile()), [granted], [node]), NOW, PLAN)
    assert "has seen 2" in decision.saves[0].failures[0].why


def test_right_after_the_start_nodes_are_expected_and_nobody_is_told_to_start_some() -> None:
    young = decide(view(catalog(profile()), age_s=1.0), NOW, PLAN)
    assert "waiting for a node to report" in young.shortfalls[0].why
    late = decide(view(catalog(profile())), NOW, PLAN)
    assert "start llmgw agent" in late.shortfalls[0].why


@pytest.mark.parametrize(("count", "said"), [(1, "p wants 1 replica"), (2, "p wants 2 replicas")])
def test_how_many_are_wanted_is_said_in_good_grammar(count: int, said: str) -> None:
    decision = decide(view(catalog(profile(replicas=count)), [], [node_view()]), NOW, PLAN)
    assert {intent.why for intent in decision.saves} == {said}
