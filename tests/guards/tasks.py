"""Tasks that nobody waits for: noted when their event loop closes, which would hide them."""

import asyncio
import contextlib
from asyncio import runners
from collections.abc import Iterator


@contextlib.contextmanager
def abandoned_tasks_noted() -> Iterator[list[str]]:
    """Note each task that is left when asyncio.run, or a test's own runner, comes to its end.

    asyncio cancels these in silence, at one place, which this wraps: so it sees the loops that
    code under test makes as well as the test's, and whatever runs inside a fixture is still its
    fixture's until that has ended.
    """
    noted: list[str] = []
    cancel_all_tasks = runners._cancel_all_tasks  # type: ignore[attr-defined]

    def note_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        noted.extend(f"task {task.get_name()} ({_work(task)})" for task in asyncio.all_tasks(loop))
        cancel_all_tasks(loop)

    runners._cancel_all_tasks = note_and_cancel  # type: ignore[attr-defined]
    try:
        yield noted
    finally:
        runners._cancel_all_tasks = cancel_all_tasks  # type: ignore[attr-defined]


def _work(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", repr(coroutine))
