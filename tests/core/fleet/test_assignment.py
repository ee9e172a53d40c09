from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.assignment import Assignment, Difference, ShardSpec, difference
from llmgw.core.ids import ReplicaId, ShardKey
from llmgw.testing.fleet import key, placement, plan

SPEC = plan(placement("r1"))[0]
keys = st.builds(
    ShardKey,
    st.sampled_from([ReplicaId("r1"), ReplicaId("r2")]),
    st.integers(1, 3),
    st.integers(0, 1),
)


def spec(of: ShardKey) -> ShardSpec:
    return replace(SPEC, replica=of.replica, incarnation=of.incarnation, node_rank=of.node_rank)


def test_what_is_new_starts() -> None:
    assert difference(Assignment(1, 1, (SPEC,)), [], []) == Difference(start=(SPEC,))


def test_what_is_there_stays_as_it_is_and_sending_again_changes_nothing() -> None:
    assert difference(Assignment(1, 1, (SPEC,)), [SPEC.key], []) == Difference()


def test_what_has_ended_is_never_started_again() -> None:
    assert difference(Assignment(1, 1, (SPEC,)), [SPEC.key], [SPEC.key]) == Difference()


def test_what_left_the_assignment_stops_unless_it_is_to_be_kept() -> None:
    other = key("r2")
    assert difference(Assignment(1, 1), [other], []).stop == (other,)
    assert difference(Assignment(1, 1, keep=(other,)), [other], []) == Difference()


def test_the_next_incarnation_waits_for_the_last_one_to_end() -> None:
    following = spec(key("r1", 2))
    blocked = difference(Assignment(1, 1, (following,)), [SPEC.key], [])
    assert (blocked.stop, blocked.start) == ((SPEC.key,), ())
    assert blocked.blocked == {following.key: "waits for r1.1.0 to end"}
    free = difference(Assignment(1, 1, (following,)), [SPEC.key], [SPEC.key])
    assert free.start == (following,)


def test_an_older_incarnation_than_one_that_was_here_is_refused() -> None:
    later = key("r1", 2)
    refused = difference(Assignment(1, 1, (SPEC,)), [later], [later])
    assert list(refused.refused) == [SPEC.key]
    assert refused.start == ()


@given(st.sets(keys), st.sets(keys), st.data())
def test_whatever_is_there_nothing_starts_twice_or_beside_an_older_start(
    wanted: set[ShardKey], here: set[ShardKey], data: st.DataObject
) -> None:
    ended = data.draw(st.sets(st.sampled_from(sorted(here)))) if here else set()
    todo = difference(Assignment(1, 1, tuple(spec(k) for k in sorted(wanted))), here, ended)
    started = {s.key for s in todo.start}
    assert started <= wanted - here
    alive = here - ended
    for start in started:
        others = {k.incarnation for k in alive if k.replica == start.replica}
        assert not others
    assert set(todo.stop) == alive - wanted
    assert started | set(todo.refused) | set(todo.blocked) == wanted - here
