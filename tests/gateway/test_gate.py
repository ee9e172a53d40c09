"""Breaker, budget and queue by themselves."""

import asyncio
from pathlib import Path

import pytest

from llmgw.core.errors import NoCapacityError
from llmgw.core.traffic.snapshot import Route, Snapshot, Target
from llmgw.gateway.gate import RETRY_SAVINGS_MAX, Gate, RetryBudget
from llmgw.gateway.options import Deadlines, GatewayOptions, Limits
from llmgw.gateway.replicas import OPEN_S_FIRST, OPEN_S_MAX, Breaker, Model, Replicas
from llmgw.runtime.clock import SystemClock


def test_a_breaker_opens_after_three_failures_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(0.0)
        breaker.failed(0.0)
        assert breaker.lets_through(0.0)
        breaker.succeeded()
    for _ in range(3):
        breaker.failed(0.0)
    assert not breaker.lets_through(OPEN_S_FIRST - 0.01)
    assert breaker.lets_through(OPEN_S_FIRST)


def test_an_open_breaker_lets_one_through_to_try_and_waits_longer_each_time() -> None:
    breaker, now_s, waits = Breaker(), 0.0, []
    for _ in range(3):
        breaker.failed(now_s)
    for _ in range(8):
        waits.append(breaker.open_until_s - now_s)
        now_s = breaker.open_until_s
        assert breaker.lets_through(now_s)
        breaker.begin()
        assert not breaker.lets_through(now_s)
        breaker.failed(now_s)
    assert waits == [1, 2, 4, 8, 16, OPEN_S_MAX, OPEN_S_MAX, OPEN_S_MAX]
    breaker.begin()
    breaker.ended_open()  # who tried has left: somebody else may
    assert breaker.lets_through(breaker.open_until_s)
    breaker.begin()
    breaker.succeeded()
    assert breaker.lets_through(now_s)


def test_retries_are_a_share_of_requests_once_the_savings_are_spent() -> None:
    budget = RetryBudget()
    spent = sum(budget.spend() for _ in range(100))
    assert spent == RETRY_SAVINGS_MAX
    for _ in range(100):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) in range(19, 21)


def made(tmp_path: Path, *, in_flight_max: int = 1, wait_s: float = 5.0) -> tuple[Gate, Model]:
    deadlines, limits = Deadlines(wait_s=wait_s), Limits(in_flight_max=in_flight_max)
    options = GatewayOptions(tmp_path, deadlines=deadlines, limits=limits)
    replicas = Replicas(options)
    routes = (Route("m", targets=(Target("r1", 1, "127.0.0.1", 1),)),)
    replicas.obey(Snapshot(1, 1, routes), 0.0)
    model = replicas.find("m")
    assert model is not None
    return Gate(deadlines, limits, SystemClock()), model


async def test_accounts_take_turns_for_places(tmp_path: Path) -> None:
    gate, model = made(tmp_path)
    order: list[str] = []
    first = await gate.admit(model, "a")

    async def one(account: str) -> None:
        slot = await gate.admit(model, account)
        order.append(account)
        slot.leave()

    async with asyncio.TaskGroup() as group:
        for account in ("a", "a", "a", "b"):
            group.create_task(one(account))
        await asyncio.sleep(0)
        first.leave()
    assert order == ["a", "b", "a", "a"]
    assert model.replicas[0].in_flight == 0


async def test_who_is_called_and_cancelled_in_one_turn_gives_the_place_back(tmp_path: Path) -> None:
    gate, model = made(tmp_path)
    slot = await gate.admit(model, "a")
    task = asyncio.create_task(gate.admit(model, "a"))
    await asyncio.sleep(0)
    slot.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (model.replicas[0].in_flight, len(model.queue), gate.waiting) == (0, 0, 0)


class SlowClock(SystemClock):
    """Goes at half the speed of the event loop's timers, which then all come too early."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() / 2


async def test_who_waits_for_a_breaker_is_woken_though_timers_come_early(tmp_path: Path) -> None:
    gate, model = made(tmp_path, wait_s=OPEN_S_FIRST * 4)
    gate.clock = SlowClock()
    for _ in range(3):
        gate.failed(model.replicas[0], "upstream_unreachable")
    assert (await gate.admit(model, "a")).replica is model.replicas[0]


async def test_who_waits_in_vain_leaves_nothing_behind(tmp_path: Path) -> None:
    gate, model = made(tmp_path, wait_s=0.01)
    slot = await gate.admit(model, "a")
    with pytest.raises(NoCapacityError, match="all 1 replicas of m are busy"):
        await gate.admit(model, "a")
    slot.leave()
    assert (model.replicas[0].in_flight, len(model.queue), gate.waiting) == (0, 0, 0)
