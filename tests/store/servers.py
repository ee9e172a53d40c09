"""A PostgreSQL server for tests: one that is named, or one of our own where it is installed."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import asyncpg

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
URL_VARIABLE = "LLMGW_TEST_POSTGRES_URL"
USER = "postgres"
START_S_MAX = 60


async def run_sql(url: str, *statements: str) -> None:
    """Run statements on PostgreSQL, each for itself, beside the store."""
    connection = await asyncpg.connect(url, timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def server_here() -> bool:
    """Whether a server is named, or can be started."""
    return URL_VARIABLE in os.environ or _programs() is not None


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a server on which databases may be made."""
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    folder = Path(tempfile.mkdtemp(prefix="llmgw-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        with _running(folder) as port:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(folder: Path) -> Iterator[int]:
    programs = _programs()
    assert programs is not None
    initdb, pg_ctl = programs
    data, log = folder / "data", folder / "log"
    _call(initdb, "-D", data, "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8")
    port = _free_port()
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k '' -c fsync=off -c max_connections=60"
    _call(pg_ctl, "-D", data, "-l", log, "-o", options, "-w", "start")
    try:
        yield port
    finally:
        _call(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")


def _call(*command: str | Path) -> None:
    # The server refuses to run as root, and nobody else may look into root's folders.
    user = USER if os.geteuid() == 0 else None
    done = subprocess.run(
        command,
        user=user,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=START_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def _programs() -> tuple[str, str] | None:
    folders = [*Path("/usr/lib/postgresql").glob("*/bin")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    initdb, pg_ctl = shutil.which("initdb", path=path), shutil.which("pg_ctl", path=path)
    return (initdb, pg_ctl) if initdb and pg_ctl else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
