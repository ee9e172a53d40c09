"""The one bounded pool of threads for calls that block."""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

THREADS_MAX: Final = 8
CALLS_MAX: Final = 256
CLOSE_S_MAX: Final = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class PoolFullError(RuntimeError):
    """More calls wait for a thread than may: something that they all need is stuck."""


class ThreadPool:
    """Runs blocking calls beside the event loop, `threads_max` at a time; `calls_max` may wait.

    A call cannot be interrupted: when its caller is cancelled, its thread goes on to the end.
    """

    def __init__(
        self,
        name: str,
        *,
        threads_max: int = THREADS_MAX,
        calls_max: int = CALLS_MAX,
        close_s_max: float = CLOSE_S_MAX,
    ) -> None:
        self._name = name
        self._calls_max = calls_max
        self._close_s_max = close_s_max
        self._calls: dict[Future[Any], str] = {}
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call(*args, **kwargs)` returns; raise PoolFullError beyond the bound."""
        return await asyncio.wrap_future(self._submit(call, *args, **kwargs))

    async def acquire(self, call: Callable[[], T], release: Callable[[T], object]) -> T:
        """Return what `call()` opened; raise PoolFullError beyond the bound.

        A caller that is cancelled meanwhile would never see it: then `release` gets it, in the
        thread, as soon as it is there.
        """
        future = self._submit(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(functools.partial(_release, release))
            raise

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if len(self._calls) >= self._calls_max:
            oldest = next(iter(self._calls.values()), "just ended")
            raise PoolFullError(f"{self._name} holds {self._calls_max} calls; oldest: {oldest}")
        context = contextvars.copy_context()
        future = self._executor.submit(functools.partial(context.run, call, *args, **kwargs))
        self._calls[future] = getattr(call, "__qualname__", repr(call))
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:  # in the thread that ran it
        self._calls.pop(future, None)

    async def close(self) -> None:
        """Drop what waits, give what runs `close_s_max`, and name what is still running then."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        running = [asyncio.wrap_future(future) for future in tuple(self._calls)]
        if running:
            await asyncio.wait(running, timeout=self._close_s_max)
        for name in tuple(self._calls.values()):
            logger.error("%s: call %s did not end in %s s", self._name, name, self._close_s_max)


def _release(release: Callable[[T], object], future: Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        release(future.result())
