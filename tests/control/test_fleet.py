"""The reducer: events in, views out; what an ended link says changes nothing."""

from dataclasses import replace

import pytest

from llmgw.control.fleet import Desired, Fleet
from llmgw.control.messages import (
    Assigned,
    Condemned,
    GatewayAttached,
    GatewayLeft,
    GatewaysBelong,
    GatewayTold,
    LeadTaken,
    Message,
    NodeAttached,
    NodeLeft,
    NodeReported,
    NodesBelong,
    Published,
)
from llmgw.core.fleet.assignment import Assignment
from llmgw.core.fleet.intent import Intent, Wanted
from llmgw.core.fleet.report import Event, Report, ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.fleet.view import NodeView, View
from llmgw.core.ids import LinkId, NodeId, ReplicaId
from llmgw.testing.fleet import catalog, inventory, key, placement, plan, profile, shard_report
from llmgw.wire.messages import Load

N1, N2 = NodeId("n1"), NodeId("n2")
A, B = LinkId("a"), LinkId("b")
START_S = 100.0


def fleet(*messages: tuple[float, Message]) -> Fleet:
    made = Fleet(START_S)
    for at_s, message in messages:
        made.take(message, at_s)
    return made


def view_of(made: Fleet, now_s: float, *intents: Intent) -> View:
    return made.view(now_s, 1e9, Desired(catalog(profile()), {i.replica: i for i in intents}))


def node_of(made: Fleet, now_s: float, node: NodeId = N1) -> NodeView:
    return view_of(made, now_s).nodes[node]


def report(*shards: ShardReport, generation: int = 0, term: int = 0, node: str = "n1") -> Report:
    return Report(inventory(node), shards, term, generation)


BELONG = (START_S, NodesBelong({N1: "one", N2: "two"}))
ATTACHED = (110.0, NodeAttached(A, N1, "one"))
REPORTED = (111.0, NodeReported(A, report(shard_report(placement()))))


def test_every_node_that_belongs_is_silent_from_the_start_until_it_reports() -> None:
    seen = node_of(fleet(BELONG), 130.0)
    assert (seen.name, seen.linked, seen.report, seen.silent_s) == ("one", False, None, 30.0)


def test_a_node_is_heard_once_its_open_link_has_reported() -> None:
    assert not node_of(fleet(BELONG, ATTACHED), 112.0).heard
    seen = node_of(fleet(BELONG, ATTACHED, REPORTED), 150.0)
    assert seen.heard
    assert seen.silent_s == 0.0


def test_a_node_that_attaches_and_does_not_report_is_silent_since_then() -> None:
    assert node_of(fleet(BELONG, ATTACHED), 115.0).silent_s == 5.0


def test_what_was_reported_stays_known_after_the_link_ended() -> None:
    seen = node_of(fleet(BELONG, ATTACHED, REPORTED, (120.0, NodeLeft(A))), 150.0)
    assert not seen.heard
    assert seen.silent_s == 30.0
    assert seen.shard(key("r1")) is not None


def test_a_new_link_is_not_heard_by_the_report_of_the_old_one() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED, (120.0, NodeAttached(B, N1, "one")))
    assert not node_of(made, 121.0).heard


@pytest.mark.parametrize(
    "late",
    [
        NodeReported(A, report()),
        NodeLeft(A),
        Assigned(A, Assignment(1, 9, plan(placement("r9")))),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_a_replaced_link_says_changes_nothing(late: Message) -> None:
    before = fleet(
        BELONG,
        ATTACHED,
        (120.0, NodeAttached(B, N1, "one")),
        (121.0, NodeReported(B, report(shard_report(placement("r2"))))),
    )
    unchanged = view_of(before, 130.0)
    assert not before.take(late, 125.0) or isinstance(late, NodeLeft)
    assert view_of(before, 130.0) == unchanged


def test_a_removed_node_is_gone_with_its_link() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED, (120.0, NodesBelong({N2: "two"})))
    assert set(view_of(made, 121.0).nodes) == {N2}
    made.take(NodeReported(A, report()), 122.0)
    assert set(view_of(made, 123.0).nodes) == {N2}


def test_shards_are_pending_until_the_report_knows_their_generation() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED)
    for generation, replica in ((4, "r4"), (5, "r5")):
        made.take(Assigned(A, Assignment(1, generation, plan(placement(replica)))), 112.0)
    assert node_of(made, 112.0).pending == {key("r4"), key("r5")}
    made.take(NodeReported(A, report(generation=4)), 113.0)
    assert node_of(made, 113.0).pending == {key("r5")}
    made.take(NodeReported(A, report(generation=5)), 114.0)
    assert node_of(made, 114.0).pending == frozenset()


def test_what_was_sent_on_an_ended_link_is_not_pending_on_the_next() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED)
    made.take(Assigned(A, Assignment(1, 1, plan(placement("r4")))), 112.0)
    made.take(NodeAttached(B, N1, "one"), 113.0)
    made.take(NodeReported(B, report()), 114.0)
    assert node_of(made, 114.0).pending == frozenset()
    assert made.sent(N1) is None


def test_generations_grow_past_what_the_node_has_seen_of_others() -> None:
    made = fleet(BELONG, ATTACHED, (111.0, NodeReported(A, report(generation=57))))
    assert made.next_generation(N1) == 58
    made.take(Assigned(A, Assignment(1, 58)), 112.0)
    assert made.next_generation(N1) == 59


def test_the_term_to_pass_comes_from_hellos_and_reports() -> None:
    made = fleet(BELONG, (110.0, NodeAttached(A, N1, "one", term=7)))
    assert made.term_to_pass(3) == 7
    made.take(NodeReported(A, report(term=9)), 111.0)
    assert made.term_to_pass(8) == 9
    assert made.term_to_pass(9) == 0


def test_a_term_as_high_as_ours_is_another_s_where_it_cannot_come_from_here() -> None:
    node = (110.0, NodeAttached(A, N1, "one", term=1))
    assert fleet(BELONG, node).term_to_pass(1) == 1
    gateway = (110.0, GatewayAttached(A, G, term=1))
    assert fleet(gateway).term_to_pass(1) == 1
    assert fleet(BELONG, node, gateway).term_to_pass(2) == 0


def test_our_own_term_is_not_another_s_when_it_comes_back() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED, (112.0, Assigned(A, Assignment(1, 1))))
    made.take(NodeAttached(B, N1, "one", term=1), 113.0)
    made.take(GatewayAttached(A, G, term=0), 113.0)
    made.take(GatewayAttached(B, G, term=1), 114.0)
    assert made.term_to_pass(1) == 0


def test_a_term_that_nobody_can_have_reached_is_not_gone_past() -> None:
    made = fleet(BELONG, (110.0, NodeAttached(A, N1, "one")))
    made.take(NodeReported(A, report(term=2**63)), 111.0)
    assert made.term_to_pass(1) == 0


def ready_s(made: Fleet, now_s: float, intent: Intent) -> float | None:
    return view_of(made, now_s, intent).ready_s.get(intent.replica)


def test_a_replica_is_ready_since_it_was_first_seen_serving_and_keeps_that_when_it_fails() -> None:
    intent = Intent(placement())
    made = fleet(BELONG, ATTACHED)
    made.take(NodeReported(A, report(shard_report(placement(), Phase.LOADING))), 111.0)
    assert ready_s(made, 112.0, intent) is None
    made.take(REPORTED[1], 113.0)
    assert ready_s(made, 120.0, intent) == 0.0
    assert ready_s(made, 150.0, intent) == 30.0
    made.take(NodeReported(A, report(shard_report(placement(), Phase.FAILED))), 151.0)
    assert ready_s(made, 170.0, intent) == 30.0
    following = Intent(placement(incarnation=2))
    assert ready_s(made, 171.0, following) is None


def test_a_replica_counts_as_unrouted_from_the_first_snapshot_without_it() -> None:
    intent = Intent(placement(), Wanted.DRAIN)
    r1 = ReplicaId("r1")
    made = fleet(BELONG)
    assert view_of(made, 110.0, intent).unrouted == {}
    made.take(Published((3, 1), frozenset({r1})), 111.0)
    assert view_of(made, 111.0, intent).unrouted == {}
    made.take(Published((3, 2)), 112.0)
    assert view_of(made, 112.0, intent).unrouted == {r1: (3, 2)}
    made.take(Published((3, 3)), 113.0)
    assert view_of(made, 113.0, intent).unrouted == {r1: (3, 2)}
    made.take(Published((3, 4), frozenset({r1})), 114.0)
    assert view_of(made, 114.0, intent).unrouted == {}


def test_under_a_new_lead_nothing_is_published_or_sent_yet() -> None:
    intent = Intent(placement(), Wanted.DRAIN)
    made = fleet(BELONG, ATTACHED, REPORTED, (112.0, Published((3, 2))))
    made.take(Assigned(A, Assignment(3, 1, plan(placement("r4")))), 112.0)
    made.take(LeadTaken(), 113.0)
    seen = view_of(made, 114.0, intent)
    assert seen.unrouted == {}
    assert seen.nodes[N1].pending == frozenset()
    assert made.sent(N1) is None


G = "g1"


def test_a_gateway_that_belongs_is_waited_for_even_before_it_comes() -> None:
    (seen,) = view_of(fleet((START_S, GatewaysBelong(frozenset({G})))), 130.0).gateways
    assert (seen.gateway, seen.order, seen.silent_s) == (G, (0, 0), 30.0)


def test_a_gateway_acts_on_nothing_new_until_it_has_said_what_is_in_flight() -> None:
    made = fleet((START_S, GatewaysBelong(frozenset({G}))), (110.0, GatewayAttached(A, G)))
    made.take(GatewayTold(A, Load(2, 5, {"r1": 3, "r2": 0})), 111.0)
    (seen,) = view_of(made, 120.0).gateways
    assert (seen.order, dict(seen.in_flight), seen.silent_s) == ((2, 5), {"r1": 3}, 0.0)
    made.take(GatewayAttached(B, G), 121.0)
    (seen,) = view_of(made, 122.0).gateways
    assert (seen.order, dict(seen.in_flight)) == ((0, 0), {"r1": 3})
    made.take(GatewayTold(A, Load(2, 9)), 123.0)
    made.take(GatewayLeft(A), 123.0)
    (seen,) = view_of(made, 124.0).gateways
    assert (seen.order, seen.silent_s) == ((0, 0), 0.0)


def test_a_gateway_that_left_is_silent_if_it_belongs_and_forgotten_if_not() -> None:
    made = fleet((START_S, GatewaysBelong(frozenset({G}))), (110.0, GatewayAttached(A, G)))
    made.take(GatewayAttached(B, "other"), 110.0)
    made.take(GatewayLeft(A), 111.0)
    made.take(GatewayLeft(B), 111.0)
    (seen,) = view_of(made, 115.0).gateways
    assert (seen.gateway, seen.silent_s) == (G, 4.0)


def test_a_condemned_stray_is_remembered_until_nothing_of_it_is_left() -> None:
    one = (START_S, NodesBelong({N1: "one"}))
    made = fleet(one, ATTACHED, REPORTED, (112.0, Condemned(ReplicaId("r1"))))
    assert view_of(made, 113.0).condemned == {"r1"}
    made.take(NodeReported(A, report(shard_report(placement(), Phase.STOPPED))), 114.0)
    assert view_of(made, 115.0).condemned == frozenset()


def test_events_of_reports_are_told_once() -> None:
    happening = Event("GPU-1", "was lost", ago_s=2.0, sequence=7)
    made = fleet(BELONG, ATTACHED)
    made.forget_news(made.news())
    told = replace(report(), events=(happening,))
    made.take(NodeReported(A, told), 120.0)
    made.take(NodeReported(A, told), 121.0)
    (news,) = made.news()
    assert (news.subject, news.what, news.at_s, news.source, news.sequence) == (
        "GPU-1",
        "was lost",
        118.0,
        N1,
        7,
    )
    made.forget_news(made.news())
    assert made.news() == ()


def test_figures_that_decide_nothing_wake_nobody_unless_something_drains() -> None:
    made = fleet(BELONG, ATTACHED, REPORTED)
    busier = report(shard_report(placement(), running=3, answered_ago_s=1.0))
    assert not made.take(NodeReported(A, busier), 112.0)
    view_of(made, 113.0, Intent(placement(), Wanted.DRAIN))
    assert made.take(NodeReported(A, busier), 114.0)
    assert made.take(NodeReported(A, report(shard_report(placement(), Phase.FAILED))), 115.0)
