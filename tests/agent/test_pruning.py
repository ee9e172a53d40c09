"""Which ended runs go: the oldest first, never one that is assigned."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.agent.pruning import Pruning, to_prune
from llmgw.core.ids import ShardKey

KEEP = Pruning(per_replica=2, bytes_max=100, runs_max=5)

names = st.builds("{}.{}.0".format, st.sampled_from("abc"), st.integers(1, 9))
worlds = st.dictionaries(names, st.integers(0, 60), max_size=15)


def test_the_last_few_of_a_replica_keep_their_logs() -> None:
    sizes = {f"a.{n}.0": 1 for n in (1, 2, 3, 10)}
    assert to_prune(sizes, (), KEEP) == ("a.1.0", "a.2.0")


def test_an_assigned_run_stays_or_it_would_start_a_second_time() -> None:
    assert to_prune({"a.1.0": 500}, (ShardKey.parse("a.1.0"),), KEEP) == ()


def test_within_the_bound_older_incarnations_go_before_later_ones() -> None:
    sizes = {"a.1.0": 50, "a.2.0": 50, "b.7.0": 50}
    assert to_prune(sizes, (), KEEP) == ("a.1.0",)


@given(worlds, st.sets(names))
def test_what_stays_is_within_the_bounds_but_for_what_is_assigned(
    sizes: dict[str, int], assigned: set[str]
) -> None:
    wanted = {ShardKey.parse(name) for name in assigned}
    gone = to_prune(sizes, wanted, KEEP)
    assert len(set(gone)) == len(gone)
    assert not set(gone) & assigned
    stays = set(sizes) - set(gone) - assigned
    assert len(stays) <= KEEP.runs_max
    per_replica: dict[str, int] = {}
    for name in stays:
        per_replica[name[0]] = per_replica.get(name[0], 0) + 1
    assert all(count <= KEEP.per_replica for count in per_replica.values())
    held = sum(sizes[name] for name in set(sizes) - set(gone))
    assert held <= KEEP.bytes_max or not stays
