"""Tests of llmgw.runtime.backoff."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.runtime.backoff import Backoff


def test_longest_waits_double_up_to_the_cap() -> None:
    backoff = Backoff(first_s=0.5, cap_s=5.0)
    assert [backoff.longest_s(n) for n in range(7)] == [0, 0.5, 1, 2, 4, 5, 5]


def test_a_wait_without_growth_stays_what_it_is() -> None:
    assert Backoff(first_s=2.0, cap_s=5.0, factor=1.0).longest_s(10**9) == 2.0


@given(st.integers(1, 10**6), st.integers(0, 2**32))
def test_a_wait_lies_in_the_upper_half_of_its_longest(failures: int, seed: int) -> None:
    backoff = Backoff(first_s=0.25, cap_s=30.0)
    longest_s = min(30.0, 0.25 * 2 ** min(failures - 1, 20))
    assert longest_s / 2 <= backoff.wait_s(failures, random.Random(seed)) <= longest_s


def test_two_peers_that_failed_together_come_back_apart() -> None:
    backoff = Backoff(first_s=1.0, cap_s=60.0)
    waits = {backoff.wait_s(5, random.Random(seed)) for seed in range(50)}
    assert max(waits) - min(waits) > 4.0


@pytest.mark.parametrize(("first_s", "cap_s", "factor"), [(0, 1, 2), (2, 1, 2), (1, 2, 0.5)])
def test_a_backoff_that_would_not_back_off_is_refused(
    first_s: float, cap_s: float, factor: float
) -> None:
    with pytest.raises(ValueError, match="a back-off grows"):
        Backoff(first_s, cap_s, factor)
