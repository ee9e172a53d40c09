"""Tests of llmgw.runtime.tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from llmgw.runtime.tasks import (
    OwnedTasks,
    Service,
    ServiceEndedError,
    TasksFullError,
    keep_level,
    run_services,
)
from llmgw.testing.clock import ManualClock
from llmgw.testing.waiting import eventually


class Scripted:
    """A service that notes its end and runs `body`."""

    def __init__(self, name: str, ended: list[str], body: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self._ended = ended
        self._body = body

    async def run(self) -> None:
        try:
            await self._body()
        finally:
            self._ended.append(self.name)


async def forever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    await asyncio.sleep(0)


async def boom() -> None:
    raise ValueError("boom")


async def cancelled_from_inside() -> None:
    raise asyncio.CancelledError


def forever_named(*names: str, ended: list[str]) -> list[Service]:
    return [Scripted(name, ended, forever) for name in names]


async def test_services_stop_in_reverse_order_of_start() -> None:
    ended: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    await run_services(forever_named("store", "links", "http", ended=ended), stop)
    assert ended == ["http", "links", "store"]


async def test_a_failing_service_takes_the_daemon_down_and_the_order_still_holds() -> None:
    ended: list[str] = []
    services = [
        *forever_named("store", "links", ended=ended),
        Scripted("x", [], boom),
        *forever_named("http", ended=ended),
    ]
    with pytest.raises(ExceptionGroup) as caught:
        await run_services(services, asyncio.Event())
    assert caught.group_contains(ValueError, match="boom")
    assert ended == ["http", "links", "store"]


@pytest.mark.parametrize(
    ("body", "words"),
    [(at_once, "service x returned"), (cancelled_from_inside, "service x was cancelled")],
)
async def test_a_service_that_just_ends_takes_the_daemon_down(
    body: Callable[[], Awaitable[None]], words: str
) -> None:
    ended: list[str] = []
    services = [*forever_named("store", ended=ended), Scripted("x", [], body)]
    with pytest.raises(ExceptionGroup) as caught:
        await run_services(services, asyncio.Event())
    assert caught.group_contains(ServiceEndedError, match=words)
    assert ended == ["store"]


async def test_a_service_may_swallow_its_cancellation_and_return() -> None:
    async def polite() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            return

    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    ended: list[str] = []
    await run_services([Scripted("polite", ended, polite)], stop)
    assert ended == ["polite"]


async def test_a_failure_while_stopping_is_raised_after_all_have_stopped() -> None:
    async def fails_at_its_end() -> None:
        try:
            await forever()
        finally:
            raise ValueError("cannot flush")

    ended: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    services = [*forever_named("store", ended=ended), Scripted("bad", ended, fails_at_its_end)]
    with pytest.raises(ExceptionGroup) as caught:
        await run_services(services, stop)
    assert caught.group_contains(ValueError, match="cannot flush")
    assert ended == ["bad", "store"]


async def test_a_service_that_does_not_stop_is_named_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    ended: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    services = [*forever_named("store", ended=ended), Scripted("stubborn", ended, stubborn)]
    await run_services(services, stop, stop_s_max=0.05)
    assert ended == ["store"]
    assert "service stubborn did not stop in 0.05 s" in caplog.text
    release.set()
    await eventually(lambda: ended == ["store", "stubborn"])


async def test_a_cancelled_daemon_stops_its_services_in_order() -> None:
    ended: list[str] = []
    services = forever_named("store", "http", ended=ended)
    async with asyncio.TaskGroup() as group:
        daemon = group.create_task(run_services(services, asyncio.Event()))
        await asyncio.sleep(0)
        daemon.cancel()
    assert daemon.cancelled()
    assert ended == ["http", "store"]


class Steps:
    """Counts calls of a step and fails as told."""

    def __init__(self, *failures: BaseException | None) -> None:
        self.calls = 0
        self._failures = list(failures)

    async def __call__(self) -> None:
        self.calls += 1
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure


async def test_a_loop_steps_when_woken_and_when_its_period_is_over() -> None:
    clock, wake, steps = ManualClock(), asyncio.Event(), Steps()
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(keep_level(steps, wake, 10.0, 5.0, clock, "test"))
        await eventually(lambda: steps.calls == 1 and clock.sleepers == 1)
        wake.set()
        await eventually(lambda: steps.calls == 2 and clock.sleepers == 1)
        clock.advance(9.9)
        for _ in range(5):
            await asyncio.sleep(0)
        assert steps.calls == 2
        clock.advance(0.2)
        await eventually(lambda: steps.calls == 3)
        loop.cancel()


@pytest.mark.parametrize("failure", [ValueError("first"), asyncio.CancelledError()])
async def test_a_loop_outlives_a_failing_step_and_says_so_once(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, wake, steps = ManualClock(), asyncio.Event(), Steps(failure, failure, None)
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(keep_level(steps, wake, 10.0, 5.0, clock, "reconcile"))
        for call in (1, 2, 3, 4):
            await eventually(lambda call=call: steps.calls == call and clock.sleepers == 1)  # type: ignore[misc]
            wake.set()
        loop.cancel()
    said = [record.message for record in caplog.records]
    assert said == ["reconcile started failing", "reconcile recovered"]


async def test_a_step_that_hangs_is_cancelled_and_counts_as_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(keep_level(forever, asyncio.Event(), 10.0, 0.01, clock, "probe"))
        await eventually(lambda: clock.sleepers == 1)
        loop.cancel()
    assert "probe started failing" in caplog.text
    assert "TimeoutError" in caplog.text


async def test_an_owner_cancels_what_is_left_and_logs_what_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with OwnedTasks("connections", tasks_max=3) as owner:
        failed = owner.start(boom(), "one")
        left = owner.start(forever(), "two")
        await eventually(failed.done)
        assert not left.done()
        assert len(owner) == 1
    assert left.cancelled()
    assert "connections: task one failed" in caplog.text
    assert "ValueError: boom" in caplog.text


async def test_an_owner_takes_no_more_than_its_bound_and_nothing_after_its_end() -> None:
    async with OwnedTasks("connections", tasks_max=1) as owner:
        _ = owner.start(forever(), "one")
        with pytest.raises(TasksFullError, match=r"connections is full \(1 tasks\): two"):
            _ = owner.start(forever(), "two")
    with pytest.raises(TasksFullError, match="at its end"):
        _ = owner.start(forever(), "three")


async def test_an_owner_names_the_task_that_does_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            await release.wait()

    async with OwnedTasks("connections", tasks_max=1, stop_s_max=0.05) as owner:
        task = owner.start(stubborn(), "stubborn")
        await asyncio.sleep(0)
    assert "connections: task stubborn did not stop in 0.05 s" in caplog.text
    release.set()
    await eventually(task.done)
