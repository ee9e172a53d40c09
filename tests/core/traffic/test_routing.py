from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.traffic.routing import choose


def test_nobody_is_chosen_from_nobody() -> None:
    assert choose([], 0) is None


def test_equals_take_turns() -> None:
    turn, chosen = 0, []
    for _ in range(6):
        index = choose([1, 1, 1], turn)
        assert index is not None
        chosen.append(index)
        turn = index + 1
    assert chosen == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.integers(0, 5), min_size=1), st.integers(0, 50))
def test_the_chosen_is_never_busier_than_another(in_flight: list[int], turn: int) -> None:
    index = choose(in_flight, turn)
    assert index is not None
    assert in_flight[index] == sorted(in_flight)[0]
