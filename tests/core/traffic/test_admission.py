import pytest

from llmgw.core.traffic.admission import FairQueue, QueueFullError


def queue(waiting_max: int = 10) -> FairQueue[str]:
    return FairQueue(waiting_max, retry_after_s=2.0)


def test_an_account_with_many_waiters_does_not_starve_another() -> None:
    line = queue()
    for waiter in ("a1", "a2", "a3"):
        line.join("a", waiter)
    line.join("b", "b1")
    assert [line.next() for _ in range(5)] == ["a1", "b1", "a2", "a3", None]


def test_no_more_wait_than_may() -> None:
    line = queue(waiting_max=2)
    line.join("a", "a1")
    line.join("b", "b1")
    with pytest.raises(QueueFullError) as full:
        line.join("c", "c1")
    assert full.value.retry_after_s == 2.0
    assert len(line) == 2
    line.leave("a", "a1")
    line.join("c", "c1")
    assert [line.next(), line.next(), line.next()] == ["b1", "c1", None]


def test_who_has_been_called_cannot_leave_again() -> None:
    line = queue()
    line.join("a", "a1")
    line.join("a", "a2")
    assert line.next() == "a1"
    line.leave("a", "a1")
    line.leave("b", "b1")
    assert len(line) == 1
