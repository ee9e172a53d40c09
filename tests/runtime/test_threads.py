"""Tests of llmgw.runtime.threads."""

import asyncio
import contextvars
import threading

import pytest

from llmgw.runtime.threads import PoolFullError, ThreadPool
from llmgw.testing.waiting import eventually

REQUEST = contextvars.ContextVar("REQUEST", default="none")


async def test_a_call_runs_in_a_thread_of_the_pool_with_the_callers_context() -> None:
    pool = ThreadPool("disk", threads_max=1)
    REQUEST.set("r1")

    def look(*, suffix: str) -> tuple[str, str]:
        return threading.current_thread().name[:4], REQUEST.get() + suffix

    assert await pool.run(look, suffix="!") == ("disk", "r1!")
    await pool.close()


async def test_a_failing_call_fails_its_caller() -> None:
    pool = ThreadPool("disk")
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    await pool.close()


async def test_a_full_pool_refuses_and_names_its_oldest_call() -> None:
    pool = ThreadPool("disk", threads_max=1, calls_max=2)
    release = threading.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(pool.run(release.wait))
            await asyncio.sleep(0)
            with pytest.raises(PoolFullError, match=r"disk holds 2 calls; oldest: Event\.wait"):
                await pool.run(release.wait)
            release.set()
        assert await pool.run(abs, -1) == 1
    finally:
        release.set()
        await pool.close()


async def test_a_cancelled_caller_leaves_its_call_counted_until_it_ends() -> None:
    pool = ThreadPool("disk", threads_max=1, calls_max=1)
    release, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        release.wait()

    async with asyncio.TaskGroup() as group:
        caller = group.create_task(pool.run(wait))
        await eventually(entered.is_set)
        caller.cancel()
    with pytest.raises(PoolFullError):
        await pool.run(abs, -1)
    release.set()
    await pool.close()


async def test_a_call_that_does_not_end_is_named_at_the_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ThreadPool("disk", threads_max=1, close_s_max=0.05)
    release, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(pool.run(hang))
        await eventually(entered.is_set)
        await pool.close()
        assert "hang did not end in 0.05 s" in caplog.text
        release.set()


async def test_what_was_opened_for_a_caller_that_left_is_released() -> None:
    pool = ThreadPool("disk", threads_max=1)
    go, opened = threading.Event(), threading.Event()
    released: list[str] = []

    def open_slowly() -> str:
        opened.set()
        go.wait(5)
        return "thing"

    task = asyncio.create_task(pool.acquire(open_slowly, released.append))
    await eventually(opened.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert released == []
    go.set()
    await eventually(lambda: released == ["thing"])
    assert await pool.acquire(lambda: "kept", released.append) == "kept"
    await pool.close()
    assert released == ["thing"]
