"""`llmgw up`: control plane, gateway and agent on one machine, kept running until told to stop.

`Up` is the supervisor. It starts both daemons in sessions of their own, the agent when the control
plane is ready, starts again the one that ends, and at its own end stops them and then every engine:
here, and only here, the end of a daemon is the end of the work. A lock in the state directory is
held while it lives; the file up.json says which processes are its daemons. When it is killed they
go on. The next `up` on that directory starts daemons anew, which find the engines as they are;
`down` ends what is left.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.agent.clearing import clear
from llmgw.apps import spelling
from llmgw.apps.processes import Child, ProcessId, end, how, identify, is_alive, send, trim
from llmgw.apps.readiness import VARIABLES, Readiness
from llmgw.config.loader import Surroundings
from llmgw.config.settings import ADMIN_KEY_FILE, CTL_FILE, LOOPBACK, UpSettings
from llmgw.core.document import InvalidDocumentError, Json, dump, load
from llmgw.core.errors import ConflictError, DependencyError
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Clock, Random
from llmgw.runtime.files import (
    LockHeldError,
    StateFileError,
    hold_lock,
    make_private_folder,
    read_bounded,
    write_atomic,
)
from llmgw.runtime.threads import ThreadPool

RECORD_FILE: Final = "up.json"
LOCK_FILE: Final = "up.lock"
SERVE: Final = "serve"
AGENT: Final = "agent"
LOOK_S: Final = 0.25
SETTLED_S: Final = 60.0
FAILURES_MAX: Final = 5
"""Lives in a row, each shorter than SETTLED_S, after which `up` gives up."""
SERVE_GRACE_S: Final = 45.0
"""For answers under way, and then what is left of a daemon's own bounds."""
AGENT_GRACE_S: Final = 35.0
DOWN_S_MAX: Final = 600.0
"""For an `up` to stop everything: its daemons' graces, and the longest of its engines'."""

Say = Callable[[str], None]


class AlreadyUpError(ConflictError):
    """Another `llmgw up` works on this state directory."""

    code = "already_running"


class DaemonFailedError(DependencyError):
    """A daemon does not start, or ends again and again."""

    code = "daemon_failed"


class LeftError(DependencyError):
    """Something could not be stopped."""

    code = "left"


@dataclass(frozen=True, slots=True)
class Record:
    """The file up.json: which processes belong to this `up`."""

    supervisor: ProcessId
    daemons: Mapping[str, ProcessId] = field(default_factory=dict)
    ready: bool = False
    """Whether each of them has been ready: so they have their ports."""
    version: int = 1
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class _Daemon:
    name: str
    argv: tuple[str, ...]
    log: Path
    child: Child | None = None
    readiness: Readiness | None = None
    """Of this life."""
    started_s: float = 0.0
    start_at_s: float = 0.0
    short_lives: int = 0
    was_ready: bool = False
    """In any life."""

    @property
    def is_ready(self) -> bool:
        """Whether it has said so in this life."""
        return self.readiness is not None and self.readiness.ready.is_set()


class Up:
    """Keeps everything running on one machine."""

    def __init__(
        self,
        settings: UpSettings,
        around: Surroundings,
        say: Say,
        pool: ThreadPool,
        clock: Clock,
    ) -> None:
        self._settings = settings
        # Settings of the daemons come from the files that are written here, and from nowhere else.
        self._environment = {
            name: value
            for name, value in around.environment.items()
            if not name.startswith("LLMGW_") and name not in VARIABLES
        }
        self._down = spelling.down(settings, around)
        self._say = say
        self._pool = pool
        self._clock = clock
        self._random = Random()
        self._backoff = Backoff(0.5, 15.0)
        self._daemons = tuple(self._daemon(name) for name in (SERVE, AGENT))

    def _daemon(self, name: str) -> _Daemon:
        folder = self._settings.state_dir
        config = str(folder / f"{name}.json")
        argv = (sys.executable, "-P", "-m", "llmgw.cli", name, "--config", config)
        return _Daemon(name, argv, folder / f"{name}.log")

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run until `stop`, then stop all there is; where `hurry` is set, by force.

        Raises AlreadyUpError, DaemonFailedError (engines go on then) or LeftError.
        """
        state = self._settings.state_dir
        async with held(state, self._pool, f"`{self._down}` stops it"):
            earlier = await self._pool.run(_recorded, state)
            await end_daemons(earlier, hurry, self._say, self._pool, self._clock)
            await self._pool.run(self._write_settings)
            await self._pool.run(self._write_record)
            try:
                await self._keep_running(stop)
            except DaemonFailedError:
                await end_daemons(self._alive(), hurry, self._say, self._pool, self._clock)
                if any(daemon.was_ready for daemon in self._daemons):
                    self._say(f"engines that run go on; `{self._down}` stops them")
                raise
            finally:
                self._let_go()
            # Not from the record: somebody may have removed it.
            await end_daemons(self._alive(), hurry, self._say, self._pool, self._clock)
            await end_all(self._settings, hurry, self._say, self._pool, self._clock)

    def _alive(self) -> dict[str, ProcessId]:
        return {d.name: d.child.id for d in self._daemons if d.child is not None}

    def _let_go(self) -> None:
        for daemon in self._daemons:
            if daemon.child is not None:
                daemon.child.leave()
            if daemon.readiness is not None:
                daemon.readiness.close()

    def _write_settings(self) -> None:
        settings = self._settings
        ports = {"port_first": settings.port_first, "port_last": settings.port_last}
        files = {
            SERVE: {
                "state_dir": str(settings.serve_dir),
                "gateway_port": settings.gateway_port,
                "admin_port": settings.admin_port,
                "agents_port": settings.agents_port,
            },
            AGENT: {
                "state_dir": str(settings.agent_dir),
                "control": [f"{LOOPBACK}:{settings.agents_port}"],
                "address": LOOPBACK,
                "metrics_port": settings.metrics_port,
                "engines": {kind.value: program for kind, program in settings.engines.items()},
                **ports,
            },
        }
        for name, content in files.items():
            path = settings.state_dir / f"{name}.json"
            write_atomic(path, json.dumps(content, indent=2).encode())
        write_atomic(
            settings.state_dir / CTL_FILE,
            f"# For `llmgw ctl`, while this `llmgw up` runs.\n"
            f"url: http://{LOOPBACK}:{settings.admin_port}\n"
            f"key_file: {settings.serve_dir.name}/{ADMIN_KEY_FILE}\n".encode(),
        )

    async def _keep_running(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for daemon in self._daemons:
                await self._tend(daemon)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()

    async def _tend(self, daemon: _Daemon) -> None:
        now_s = self._clock.monotonic_s()
        if daemon.child is None:
            if now_s >= daemon.start_at_s and self._may_start(daemon):
                await self._start(daemon)
            return
        if daemon.is_ready and not daemon.was_ready:
            daemon.was_ready = True
            await self._pool.run(self._write_record)
        code = daemon.child.poll()
        if code is not None:
            child, daemon.child = daemon.child, None
            words = await self._pool.run(child.last_words)
            self._ended(daemon, code, now_s - daemon.started_s, words)
        await self._pool.run(trim, daemon.log)

    def _may_start(self, daemon: _Daemon) -> bool:
        """Whether our own control plane has its ports: an agent must not join another one there."""
        return daemon.name == SERVE or any(
            other.was_ready for other in self._daemons if other.name == SERVE
        )

    async def _start(self, daemon: _Daemon) -> None:
        if daemon.readiness is not None:
            daemon.readiness.close()
        daemon.readiness = Readiness()
        environment = {**self._environment, **daemon.readiness.environment}
        try:
            daemon.child = await self._pool.run(Child, daemon.argv, environment, daemon.log)
        except OSError as error:
            raise DaemonFailedError(
                f"cannot start llmgw {daemon.name}: {error.strerror or error}"
            ) from error
        daemon.started_s = self._clock.monotonic_s()
        await self._pool.run(self._write_record)

    def _write_record(self) -> None:
        path = self._settings.state_dir / RECORD_FILE
        ready = all(daemon.was_ready for daemon in self._daemons)
        write_atomic(path, dump(Record(identify_self(), self._alive(), ready)).encode())

    def _ended(self, daemon: _Daemon, code: int, lived_s: float, words: str) -> None:
        """Plan its next start, or give up with its last words."""
        what = f"llmgw {daemon.name} ended ({how(code)})"
        daemon.short_lives = 0 if lived_s >= SETTLED_S else daemon.short_lives + 1
        could_not_start = code >= 0 and not daemon.was_ready
        if could_not_start:
            raise DaemonFailedError(
                f"llmgw {daemon.name} cannot start: {words} (its log: {daemon.log})"
            )
        if daemon.short_lives >= FAILURES_MAX:
            raise DaemonFailedError(
                f"{what}, {FAILURES_MAX} times in a row: {words} (its log: {daemon.log})"
            )
        wait_s = self._backoff.wait_s(max(daemon.short_lives, 1), self._random)
        daemon.start_at_s = self._clock.monotonic_s() + wait_s
        self._say(f"{what}; starting it again in {wait_s:.1f} s (log: {daemon.log})")


@asynccontextmanager
async def held(state: Path, pool: ThreadPool, else_do: str) -> AsyncIterator[None]:
    """Hold the state directory of an `up`; raise AlreadyUpError where another one does.

    `else_do` says what to do then.
    """
    await pool.run(make_private_folder, state)
    lock = hold_lock(state / LOCK_FILE, purpose="running llmgw up on this directory")
    try:
        await pool.run(lock.__enter__)
    except LockHeldError as error:
        raise AlreadyUpError(f"{error}; {else_do}") from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def read_record(state: Path) -> Record | None:
    """Return what the last `up` wrote; None where there is nothing. Raises StateFileError."""
    path = state / RECORD_FILE
    try:
        return load(Record, read_bounded(path))
    except FileNotFoundError:
        return None
    except InvalidDocumentError as error:
        raise StateFileError(
            None,
            f"{path} is broken ({error}): which daemons run is not known. End `llmgw serve` and"
            " `llmgw agent` by hand if they do, then remove the file",
        ) from error


def is_started(state: Path, supervisor: ProcessId) -> bool:
    """Whether the daemons of this supervisor are there, each with its ports."""
    record = read_record(state)
    return record is not None and record.supervisor == supervisor and record.ready


def running(state: Path) -> int | None:
    """Return the pid of the `up` that works on this state directory, if one does."""
    record = read_record(state)
    if record is None or not is_alive(record.supervisor):
        return None
    return record.supervisor.pid


def identify_self() -> ProcessId:
    """Return who this process is."""
    ours = identify(os.getpid())
    assert ours is not None
    return ours


def _recorded(state: Path) -> Mapping[str, ProcessId]:
    record = read_record(state)
    return {} if record is None else record.daemons


async def end_daemons(
    daemons: Mapping[str, ProcessId],
    hurry: asyncio.Event,
    say: Say,
    pool: ThreadPool,
    clock: Clock,
) -> None:
    """End daemons; engines go on.

    The control plane ends first, while engines and agent still serve what its gateway has open.
    """
    for name, grace_s in ((SERVE, SERVE_GRACE_S), (AGENT, AGENT_GRACE_S)):
        process = daemons.get(name)
        if process is None or not await pool.run(is_alive, process):
            continue
        say(f"stopping llmgw {name} (pid {process.pid})")
        if not await end(process, grace_s, hurry, pool, clock):
            raise LeftError(f"llmgw {name} (pid {process.pid}) does not end, not even by SIGKILL")


async def end_all(
    settings: UpSettings, hurry: asyncio.Event, say: Say, pool: ThreadPool, clock: Clock
) -> None:
    """End daemons and engines, see that nothing is left, and forget them; raise LeftError."""
    recorded = await pool.run(_recorded, settings.state_dir)
    await end_daemons(recorded, hurry, say, pool, clock)
    left = await clear(settings.agent_dir, hurry, say, pool, clock)
    if left:
        named = "\n".join(f"  {one.run}: {one.why}" for one in left)
        raise LeftError(f"not everything could be stopped, or nobody can tell:\n{named}")
    # SQL is loaded when it is needed: `up` starts without.
    from llmgw.apps.forgetting import forget_placements

    if why := await forget_placements(settings, clock):
        say(f"replicas will start as if they had failed: {why}")
    for name in (RECORD_FILE, CTL_FILE):
        await pool.run((settings.state_dir / name).unlink, missing_ok=True)


async def down(
    settings: UpSettings, hurry: asyncio.Event, say: Say, pool: ThreadPool, clock: Clock
) -> bool:
    """Stop what an `up` on this state directory runs, dead or alive; False if nothing did."""
    state = settings.state_dir
    if not await pool.run(state.exists):
        return False
    record = await pool.run(read_record, state)
    if record is not None and await pool.run(is_alive, record.supervisor):
        say(f"stopping llmgw up (pid {record.supervisor.pid})")
        await _ask_to_end(record.supervisor, hurry, pool, clock)
    async with held(state, pool, "try again once it has ended, or when it runs"):
        left = await pool.run(read_record, state)
        await end_all(settings, hurry, say, pool, clock)
    return record is not None or left is not None


async def _ask_to_end(
    supervisor: ProcessId, hurry: asyncio.Event, pool: ThreadPool, clock: Clock
) -> None:
    """Have it stop everything, and wait; a second signal makes it quick."""
    await pool.run(send, supervisor, signal.SIGTERM)
    deadline_s = clock.monotonic_s() + DOWN_S_MAX
    hurried = False
    while clock.monotonic_s() < deadline_s and await pool.run(is_alive, supervisor):
        if hurry.is_set() and not hurried:
            hurried = await pool.run(send, supervisor, signal.SIGTERM)
        await clock.sleep(LOOK_S)
