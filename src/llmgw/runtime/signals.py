"""Turns SIGTERM and SIGINT into a stop event; the same signal a second time ends the process."""

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT, inside the running loop of the main thread.

    The first of each restores that signal's default action. So the second one ends the process at
    once, by the kernel and even when the loop is stuck; and a Ctrl-C that reaches a whole process
    group, followed by the SIGTERM of a parent that got it too, is still an orderly stop.
    """
    loop = asyncio.get_running_loop()

    def stop_once(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        logger.info("%s: stopping; once more ends the process at once", number.name)
        stop.set()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop_once, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
