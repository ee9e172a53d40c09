"""Starts runners: each the leader of a new session, with nothing inherited; reaps those that end.

The one place of the agent that starts processes. Stopping the agent never ends a runner.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from llmgw.agent.localize import inherit
from llmgw.runner.record import ExitCode
from llmgw.runtime.threads import ThreadPool

STDERR_FILE: Final = "runner.err"
STDERR_BYTES_READ: Final = 2048
PRIVATE: Final = 0o600


class CannotSpawnError(Exception):
    """The machine refused to start a process; the message says why and what to do."""


@dataclass(slots=True, eq=False)
class Started:
    """One runner that this agent has started."""

    pid: int
    ended: asyncio.Event
    status: int = 0
    """Valid when `ended` is set; see runner.record.ExitCode."""


class Spawner(Protocol):
    """Starts the runner of a directory."""

    async def start(self, folder: Path) -> Started:
        """Start it; raise CannotSpawnError."""
        ...


class Launcher:
    """The real one."""

    def __init__(self, environment: Mapping[str, str], pool: ThreadPool) -> None:
        self._environment = inherit(environment)
        self._pool = pool
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        """By pidfd."""

    async def start(self, folder: Path) -> Started:
        """See Spawner."""
        process = await self._pool.acquire(lambda: self._spawn(folder), _let_go)
        started = Started(process.pid, asyncio.Event())
        # The child cannot be reaped by anybody else, so its pid is still its own here.
        descriptor = os.pidfd_open(process.pid)
        self._children[descriptor] = process
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._reap, descriptor, started)
        return started

    def close(self) -> None:
        """Stop waiting for runners; they go on."""
        loop = asyncio.get_running_loop()
        for descriptor, process in self._children.items():
            loop.remove_reader(descriptor)
            os.close(descriptor)
            _let_go(process)
        self._children.clear()

    def _spawn(self, folder: Path) -> subprocess.Popen[bytes]:
        # No preexec_fn: then CPython starts the child by vfork, which runs no handlers of
        # libraries that would deadlock in a process full of threads.
        argv = [sys.executable, "-P", "-m", "llmgw.runner", str(folder)]
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(contextlib.closing(_Errors(folder)))
            try:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors.descriptor,
                    close_fds=True,
                    start_new_session=True,
                    cwd="/",
                    env=self._environment,
                )
            except OSError as error:
                raise CannotSpawnError(
                    f"cannot start the runner of {folder.name}: {error.strerror or error};"
                    " is the machine out of memory or processes (ulimit -u, TasksMax=)?"
                ) from error

    def _reap(self, descriptor: int, started: Started) -> None:
        process = self._children.pop(descriptor)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        started.status = process.poll() or 0  # it has ended, so this knows
        started.ended.set()


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Popen warns of a child that outlives it; these are meant to."""
    if process.poll() is None:
        process.returncode = 0


class _Errors:
    """Where a runner's own complaints go: a file in its directory, or nowhere if that refuses."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.descriptor = os.open(folder / STDERR_FILE, flags, PRIVATE)
        except OSError:
            self.descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.descriptor)


def why_ended(folder: Path, status: int) -> str:
    """Return what a runner said before it ended with this status; blocking."""
    try:
        with (folder / STDERR_FILE).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - STDERR_BYTES_READ))
            said = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        said = []
    name = f"status {status}"
    with contextlib.suppress(ValueError):
        name = ExitCode(status).name.lower().replace("_", " ")
    return f"its runner ended ({name}){': ' + said[-1] if said else ''}"
