"""The lead on SQLite: a lock on a file of its own beside the database.

The kernel drops it with its process, so nothing has to be renewed and nothing runs out.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import StorageError
from llmgw.runtime.clock import Clock
from llmgw.store import term as terms
from llmgw.store.database import Database
from llmgw.store.errors import StoreUnreachableError
from llmgw.store.lease import Lead, Patience, Waiting

LOOK_S: Final = 2.0
"""How often a leader makes sure that the term is still its own."""

_MODE: Final = 0o600
_HOLDER_BYTES_MAX: Final = 512


class FileLease:
    """Takes the lock; see Lease."""

    def __init__(self, database: Database, clock: Clock, path: Path) -> None:
        self._database = database
        self._clock = clock
        self._path = path

    @asynccontextmanager
    async def hold(
        self, holder: str, wait_s: float | None, on_wait: Waiting
    ) -> AsyncIterator[Lead]:
        """See Lease."""
        patience = Patience(self._clock, self._database.place, wait_s, on_wait)
        lock = _LockFile(self._path, holder)
        try:
            while not await asyncio.to_thread(lock.take):
                await patience.wait(await self.leader())
            grip = _LockGrip(self._database, self._clock)
            yield Lead(self._database, await self._raise_term(holder), holder, grip)
        finally:
            await asyncio.to_thread(lock.release)

    async def leader(self) -> str:
        """See Lease."""
        return await asyncio.to_thread(_read_holder, self._path)

    async def _raise_term(self, holder: str) -> int:
        async def work(connection: AsyncConnection) -> int:
            await terms.make_row(connection)
            old = await terms.current(connection)
            await terms.move(connection, old, old + 1, holder)
            return old + 1

        return await self._database.write(work)


class _LockGrip:
    # The lock cannot be taken away, but its file can be deleted and made anew by a second leader;
    # then the term in the store tells.
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def rest(self) -> None:
        await self._clock.sleep(LOOK_S)

    async def holds(self, term: int) -> bool:
        try:
            return await self._database.read(terms.current) == term
        except StorageError:
            return True  # a store that cannot be read takes nothing from who holds the lock


class _LockFile:
    """Used from threads, one of which may outlive the task that waits for it."""

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._turn = threading.Lock()
        self._descriptor: int | None = None
        self._over = False

    def take(self) -> bool:
        """Take the lock if it is free."""
        with self._turn:
            if not self._over:
                self._descriptor = _lock(self._path)
            if self._descriptor is None:
                return False
            # On a full disk the lock holds all the same, only its holder's name is not there.
            with contextlib.suppress(OSError):
                os.truncate(self._descriptor, 0)
                os.pwrite(self._descriptor, self._holder.encode()[:_HOLDER_BYTES_MAX], 0)
            return True

    def release(self) -> None:
        """Give it back, and never take it again."""
        with self._turn:
            self._over = True
            if self._descriptor is not None:
                with contextlib.suppress(OSError):
                    os.truncate(self._descriptor, 0)
                os.close(self._descriptor)
                self._descriptor = None


def _lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
    except OSError as error:
        raise StoreUnreachableError(
            f"cannot open {path}: {error.strerror}; make the directory of the store writable for "
            "llmgw"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was deleted meanwhile keeps nobody out.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _read_holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HOLDER_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
