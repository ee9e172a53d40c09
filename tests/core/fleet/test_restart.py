import pytest

from llmgw.core.fleet.ages import Ages
from llmgw.core.fleet.catalog import Restart
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.restart import Failure, wait_after
from llmgw.core.ids import ReplicaId
from llmgw.testing.fleet import placement

POLICY = Restart(delay_s=1.0, delay_s_max=60.0, reset_after_s=600.0)


def failures(count: int, ready_s: float = 0.0) -> tuple[Failure, ...]:
    return tuple(Failure(i + 1, "boom", 1000.0 + i, ready_s) for i in range(count))


@pytest.mark.parametrize(("count", "seconds"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (99, 60)])
def test_each_failure_in_a_row_doubles_the_wait_up_to_its_cap(count: int, seconds: float) -> None:
    assert wait_after(failures(count), POLICY, 0.0).seconds == seconds


def test_a_replica_that_was_ready_for_long_starts_from_the_first_delay_again() -> None:
    row = (*failures(5), Failure(6, "oom", 2000.0, ready_s=601.0))
    wait = wait_after(row, POLICY, 0.0)
    assert wait.seconds == 1.0
    assert wait.why == "failed once: oom"


def test_the_wait_passes_and_says_why_it_was_there() -> None:
    wait = wait_after(failures(3), POLICY, 3.0)
    assert wait.seconds == 1.0
    assert wait.why == "failed 3 times in a row: boom"
    assert wait_after(failures(3), POLICY, 4.0).seconds == 0.0


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 3600.0])
def test_a_wall_clock_that_steps_changes_no_age(step_s: float) -> None:
    intent = Intent(placement(), failures=failures(1))
    ages = Ages()
    ages.of([intent], 50.0, 1000.0)
    assert ages.of([intent], 57.0, 1007.0 + step_s) == {(ReplicaId("r1"), 1000.0): 7.0}


def test_a_moment_that_lies_in_the_future_is_taken_for_now() -> None:
    intent = Intent(placement(), failures=failures(1))
    assert Ages().of([intent], 50.0, 400.0) == {(ReplicaId("r1"), 1000.0): 0.0}
