from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.traffic.snapshot import (
    ApiKey,
    Route,
    Snapshot,
    Target,
    change,
    changed,
    usable,
)

targets = st.builds(
    Target,
    st.sampled_from(["r1", "r2", "r3"]),
    st.integers(1, 2),
    st.just("127.0.0.1"),
    st.integers(1, 3),
    confirmed=st.booleans(),
)
routes = st.builds(
    Route, st.sampled_from(["a", "b", "c"]), targets=st.lists(targets, max_size=3).map(tuple)
)
keys = st.builds(ApiKey, st.sampled_from(["k1", "k2"]), st.sampled_from(["x", "y"]), st.just("acc"))
snapshots = st.builds(
    Snapshot,
    st.just(1),
    st.integers(1, 99),
    st.lists(routes, unique_by=lambda r: r.name).map(lambda found: tuple(sorted(found, key=str))),
    st.lists(keys, unique_by=lambda k: k.id).map(lambda found: tuple(sorted(found, key=str))),
)
OLD = Snapshot(1, 4, (Route("a"),), (ApiKey("k", "x", "acc"),))


@given(snapshots, snapshots)
def test_a_change_turns_the_one_into_the_other(old: Snapshot, new: Snapshot) -> None:
    turned = changed(old, change(old, new))
    assert turned is not None
    assert turned.revision == new.revision
    assert {r.name: r for r in turned.routes} == {r.name: r for r in new.routes}
    assert {k.id: k for k in turned.keys} == {k.id: k for k in new.keys}


def test_a_change_for_another_snapshot_is_not_applied() -> None:
    step = change(OLD, replace(OLD, revision=5, routes=()))
    assert changed(replace(OLD, revision=3), step) is None
    assert changed(replace(OLD, term=2), step) is None


def test_an_unconfirmed_target_is_kept_where_it_was_and_never_begun() -> None:
    had, new = Target("r1", 1, "h", 1, confirmed=False), Target("r2", 1, "h", 2, confirmed=False)
    again = Target("r1", 2, "h", 3, confirmed=False)
    before = Snapshot(1, 1, (Route("a", targets=(replace(had, confirmed=True),)),))
    received = Snapshot(2, 1, (Route("a", targets=(had, new, again)),))
    assert usable(before, received).routes[0].targets == (had,)


def test_a_confirmed_target_is_used_whoever_had_it() -> None:
    new = Target("r2", 1, "h", 2)
    assert usable(Snapshot(), Snapshot(1, 1, (Route("a", targets=(new,)),))).routes[0].targets == (
        new,
    )
