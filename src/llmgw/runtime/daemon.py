"""Runs a daemon's main coroutine to an end that comes: nothing that is stuck holds the process."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from llmgw.runtime.signals import stop_on_signals

logger = logging.getLogger(__name__)

LEFT_BEHIND_S_MAX: Final = 5.0
EXIT_LEFT_BEHIND: Final = 70  # EX_SOFTWARE


def run_daemon(
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    left_behind_s_max: float = LEFT_BEHIND_S_MAX,
) -> None:
    """Run `main(stop)`, where SIGTERM or SIGINT sets `stop`; return or raise as `main` does.

    Tasks that ignore their cancellation and threads that do not return are named, and then the
    process exits with EXIT_LEFT_BEHIND, since the interpreter itself would wait for them for ever.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_main_and_no_more(main, left_behind_s_max))
    stuck = [thread for thread in threading.enumerate() if _would_hold_the_exit(thread)]
    for thread in stuck:
        thread.join(left_behind_s_max / len(stuck))
    _exit_if_any([thread.name for thread in stuck if thread.is_alive()], "threads")


async def _main_and_no_more(
    main: Callable[[asyncio.Event], Awaitable[None]], left_behind_s_max: float
) -> None:
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop):
            await main(stop)
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            _, late = await asyncio.wait(left, timeout=left_behind_s_max)
            _exit_if_any([task.get_name() for task in late], "tasks")


def _would_hold_the_exit(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def _exit_if_any(names: list[str], kind: str) -> None:
    if not names:
        return
    logger.error("exiting without the %s that do not end: %s", kind, ", ".join(sorted(names)))
    logging.shutdown()
    os._exit(EXIT_LEFT_BEHIND)
