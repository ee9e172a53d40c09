"""SQLite as a store: one file, one writer per process, readers that never wait for it.

Every write begins with BEGIN IMMEDIATE. A transaction that begins by reading and then writes gets
"database is locked" at once, whatever the busy timeout says, when another process wrote between.
The file is never opened or closed but by SQLite: closing any descriptor of it would drop the locks
that SQLite holds on it in this process.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import URL, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from llmgw.core.errors import StorageError
from llmgw.runtime.clock import Clock
from llmgw.store.driver import WAIT_S_MAX, Engines
from llmgw.store.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    import aiosqlite
    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
    from sqlalchemy.pool import ConnectionPoolEntry

logger = logging.getLogger(__name__)

READERS_MAX: Final = 4
WAL_KEPT_BYTES: Final = 16 * 1024 * 1024
MODE: Final = 0o600
_RETRY_S: Final = 0.05

# FULL, not NORMAL: what a gateway was told is stored, a revoked key, a term, must outlive a power
# cut too, and usage comes in batches, so it costs one sync for many records.
_BOTH: Final = (
    "PRAGMA foreign_keys=ON",
    "PRAGMA synchronous=FULL",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}",
)
_WRITER: Final = ("PRAGMA journal_mode=WAL", *_BOTH)
_READER: Final = (*_BOTH, "PRAGMA query_only=ON")

_PRIMARY_CODE: Final = 0xFF
_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# After these a connection may hold on to what is no longer there; a fresh one finds what is.
_NEEDS_FRESH: Final = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
}


class SqliteDriver:
    """A store in one file."""

    def __init__(self, path: Path, clock: Clock, wait_s: float = WAIT_S_MAX) -> None:
        self._path = path
        self._clock = clock
        self._wait_s = wait_s
        self._made: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """See Driver."""
        return str(self._path)

    @property
    def raw_errors(self) -> tuple[type[Exception], ...]:
        """See Driver."""
        return (sqlite3.Error,)

    @property
    def lease_path(self) -> Path:
        """The file whose lock is the lead; one of its own, see the module's docstring."""
        return self._path.with_name(f"{self._path.name}.lease")

    async def prepare(self) -> None:
        """Make the file, so that it is nobody else's to read even before SQLite sees it."""
        try:
            self._made = await asyncio.to_thread(_make, self._path)
        except FileNotFoundError as error:
            raise StoreUnreachableError(
                f"cannot make {self._path}: its directory does not exist; make it first"
            ) from error
        except OSError as error:
            raise StoreUnreachableError(
                f"cannot make {self._path} readable for its owner only: {error.strerror}; "
                "the directory and the file must belong to the user that llmgw runs as"
            ) from error

    async def vouch(self) -> None:
        """Old connections go on with a file that lost its name, fresh ones begin an empty one."""
        found = await asyncio.to_thread(_found, self._path)
        if self._made is None or found == self._made:
            return
        what = "removed" if found is None else "replaced"
        raise StoreDamagedError(
            f"{self._path} was {what} while llmgw used it, so it uses it no more: what it "
            "wrote would be lost; put the right file there and start llmgw again"
        )

    def engines(self) -> Engines:
        """See Driver."""
        return Engines(
            writer=self._engine("BEGIN IMMEDIATE", _WRITER, 1),
            readers=self._engine("BEGIN", _READER, READERS_MAX),
        )

    def refusal(self, error: BaseException) -> StorageError:
        """See Driver."""
        code = _code(error)
        if code in _BUSY:
            return StoreBusyError(
                f"another process kept {self._path} locked for more than {self._wait_s:g} s; "
                "find it with `fuser` and end it, or let it finish"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreFullError(
                f"there is no space for {self._path}; free some on its disk, llmgw goes on by "
                "itself"
            )
        if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
            return StoreReadOnlyError(
                f"{self._path} cannot be written ({_text(error)}); make the file and its directory "
                "writable for llmgw, which goes on by itself"
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return StoreDamagedError(
                f"{self._path} is damaged or no SQLite database ({_text(error)}); stop llmgw, move "
                "the file away and restore a backup"
            )
        return StoreUnreachableError(
            f"cannot use {self._path} ({_text(error)}); see to its disk and directory, llmgw tries "
            "again by itself"
        )

    def _engine(self, begin: str, pragmas: tuple[str, ...], connections: int) -> AsyncEngine:
        engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=str(self._path)),
            # Autocommit as far as Python is concerned: transactions begin where SQLAlchemy says.
            connect_args={"timeout": self._wait_s, "isolation_level": None},
            pool_size=connections,
            max_overflow=0,
            pool_timeout=WAIT_S_MAX,
            hide_parameters=True,  # an error's text may reach a log, the secret may not
        )
        clock, wait_s = self._clock, self._wait_s

        def on_connect(connection: "DBAPIConnection", _entry: "ConnectionPoolEntry") -> None:
            async def prepare(raw: "aiosqlite.Connection") -> None:
                for pragma in pragmas:
                    await _patiently(raw, pragma, clock, wait_s)

            connection.run_async(prepare)

        def on_begin(connection: "Connection") -> None:
            connection.exec_driver_sql(begin)

        event.listen(engine.sync_engine, "connect", on_connect)
        event.listen(engine.sync_engine, "begin", on_begin)
        event.listen(engine.sync_engine, "handle_error", _renew_when_needed)
        return engine


async def _patiently(raw: "aiosqlite.Connection", pragma: str, clock: Clock, wait_s: float) -> None:
    # Two processes that turn WAL on at the same time meet SQLITE_BUSY without the busy timeout.
    give_up_s = clock.monotonic_s() + wait_s
    while True:
        try:
            await raw.execute_fetchall(pragma)
        except sqlite3.OperationalError as error:
            if _code(error) not in _BUSY or clock.monotonic_s() > give_up_s:
                raise
        else:
            return
        await clock.sleep(_RETRY_S)


def _renew_when_needed(context: "ExceptionContext") -> None:
    if _code(context.original_exception) in _NEEDS_FRESH:
        context.is_disconnect = True


def _code(error: BaseException | None) -> int | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return code & _PRIMARY_CODE if isinstance(code, int) else None


def _text(error: BaseException) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error)


def _found(path: Path) -> tuple[int, int] | None:
    try:
        return _identity(path.stat())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnreachableError(
            f"cannot look at {path}: {error.strerror}; see to its disk and directory, llmgw tries "
            "again by itself"
        ) from error


def _make(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        _make_empty(path)
        return _identity(path.stat())
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~MODE:
        logger.warning("%s had mode %o, others could read it; now it has %o", path, mode, MODE)
        path.chmod(MODE)
    return _identity(found)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _make_empty(path: Path) -> None:
    # Under its final name only after it was closed: another thread may open it there at once.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(descriptor, MODE)
        os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        os.unlink(draft)
