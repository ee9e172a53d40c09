"""Blocking calls in the event loop: llmgw may make none, but in the places named here."""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import blockbuster.blockbuster
from blockbuster import BlockBuster
from blockbuster.blockbuster import BlockBusterFunction

import llmgw

SOURCE: Final = str(Path(llmgw.__file__).parent)

# Where the loop may wait for a file: module, and why.
ALLOWED: Final = {
    "llmgw/gateway/journal.py": "the append: one write to the page cache per turn of the loop",
    "/logging/__init__.py": "a line of the log, to stderr",
    "/asyncpg/connect_utils.py": "password file and certificates, as a connection is made",
    "/linecache.py": "the source lines in a traceback that is logged",
}

# The guard's library does not know these.
ALSO_BLOCKING: Final = (
    "builtins.open",
    "io.open",
    "os.open",
    "os.fsync",
    "os.fdatasync",
    "os.truncate",
    "os.posix_fallocate",
    "fcntl.flock",
    "socket.getaddrinfo",
    "socket.create_connection",
)

# A mutex that another thread holds for microseconds is no wait worth a failure, and when one is
# met is chance: a guard on them would fail tests at random.
NOT_BLOCKING: Final = ("threading.Lock.acquire", "threading.Lock.acquire_lock")


class EveryFunction(frozenset[str]):
    """Contains any name: allows a module as a whole."""

    def __contains__(self, name: object) -> bool:
        return True


@contextlib.contextmanager
def blocking_calls_noted() -> Iterator[list[str]]:
    """Make blocking calls raise, and note each: who catches the error does not hide the call."""
    noted: list[str] = []

    class NotedBlockingError(blockbuster.blockbuster.BlockingError):
        """A blocking call was made in the event loop."""

        def __init__(self, function: str) -> None:
            super().__init__(f"{function}, from {_caller()}")
            noted.append(str(self))

    guard = BlockBuster("llmgw", excluded_modules=["llmgw.testing"])
    for name in NOT_BLOCKING:
        del guard.functions[name]
    for name in ALSO_BLOCKING:
        guard.functions[name] = BlockBusterFunction(
            None, name, scanned_modules="llmgw", excluded_modules=["llmgw.testing"]
        )
    for function in guard.functions.values():
        for module in ALLOWED:
            function.can_block_in(module, EveryFunction())
    original = blockbuster.blockbuster.BlockingError
    blockbuster.blockbuster.BlockingError = NotedBlockingError  # type: ignore[assignment,misc]
    guard.activate()
    try:
        yield noted
    finally:
        guard.deactivate()
        blockbuster.blockbuster.BlockingError = original  # type: ignore[misc]


def _caller() -> str:
    for frame in inspect.stack(context=0):
        if frame.filename.startswith(SOURCE):
            return f"{frame.filename.removeprefix(SOURCE)[1:]}:{frame.lineno} in {frame.function}"
    return "nowhere"
