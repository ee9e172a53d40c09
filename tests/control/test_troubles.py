"""What `llmgw ctl status` says is wrong in the fleet, and how a change that fails is shown."""

from collections.abc import Iterable
from dataclasses import replace

from llmgw.admin.schema import ProfileInfo
from llmgw.control import views
from llmgw.control.reconciler import Seen
from llmgw.control.troubles import troubles
from llmgw.control.wanted import Wanted
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.reconcile import decide
from llmgw.core.fleet.restart import Failure
from llmgw.core.fleet.shard import Phase
from llmgw.core.fleet.view import NodeView
from llmgw.core.ids import NodeId
from llmgw.testing.fleet import (
    NOW_S,
    PLAN,
    catalog,
    node_view,
    placement,
    profile,
    shard_report,
    view,
)

JUNK = "shard 0 on n1: gguf_init: this is no GGUF file"
FAILED = Intent(
    placement(incarnation=3),
    reported=True,
    failures=tuple(Failure(i, JUNK, NOW_S) for i in (1, 2, 3)),
)


def seen(
    intents: Iterable[Intent], nodes: Iterable[NodeView], wanted: Catalog | None = None
) -> Seen:
    wanted = wanted or catalog(profile())
    at_once = view(wanted, intents, nodes)
    return Seen(at_once, decide(at_once, NOW_S, PLAN), Wanted(wanted, (), at_once.intents), 1)


def shown(what: Seen) -> ProfileInfo:
    """Return the only profile of the only model."""
    ((info,),) = (model.profiles for model in views.models(what))
    return info


def test_a_replica_that_keeps_failing_is_a_trouble_with_reason_and_remedy() -> None:
    (told,) = troubles(seen([FAILED], [node_view()]))
    for word in ("r1", "profile p", "n1", "failed 3 times in a row", JUNK, "llmgw ctl logs r1"):
        assert word in told


def test_it_stays_one_while_it_loads_again_and_is_none_once_it_is_ready() -> None:
    again = replace(FAILED, placement=placement(incarnation=4))
    loading = shard_report(again.placement, Phase.LOADING)
    (told,) = troubles(seen([again], [node_view("n1", loading)]))
    assert JUNK in told
    assert "loading again" in told
    ready = shard_report(again.placement)
    assert list(troubles(seen([again], [node_view("n1", ready)]))) == []


def test_a_node_that_is_not_heard_is_named_with_what_it_holds_and_what_to_do() -> None:
    runs = Intent(placement(), reported=True)
    silent = node_view("n1", shard_report(runs.placement), linked=False, silent_s=40.0)
    (told,) = troubles(seen([runs], [silent]))
    for word in ("node n1", "40 s", "replicas r1", "llmgw agent", "llmgw ctl nodes rm n1"):
        assert word in told


def test_a_node_that_may_not_have_come_yet_is_no_trouble_before_it_is_late() -> None:
    assert list(troubles(seen([], [NodeView(NodeId("n2"), "n2", silent_s=5.0)]))) == []
    (told,) = troubles(seen([], [NodeView(NodeId("n2"), "n2", silent_s=50.0)]))
    assert "n2 has not reported" in told


def test_a_change_that_does_not_come_through_is_said_although_enough_serve() -> None:
    old = Intent(placement("old"), reported=True)
    new = replace(FAILED, placement=placement("new", wanted=profile(context_tokens=512)))
    here = node_view("n1", shard_report(old.placement))
    info = shown(seen([old, new], [here], catalog(profile(context_tokens=512))))
    assert (info.ready, info.replicas) == (1, 1)
    assert JUNK in info.why
    assert "go on serving" in info.why
    settled = shown(seen([old], [here]))
    assert (settled.ready, settled.why) == (1, "")
