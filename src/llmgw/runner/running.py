"""Puts a runner together for one directory and turns its loop until the shard has ended."""

import os
import time
from dataclasses import dataclass, replace
from typing import Final

from llmgw.runner.cgroup import make_cgroup, remove_cgroup
from llmgw.runner.commands import Commands
from llmgw.runner.fields import BrokenFileError
from llmgw.runner.host import Signals, redirect_errors, say_error, take_lock
from llmgw.runner.identity import IDENTITY_SUFFIX, Identity, Session
from llmgw.runner.keeper import Keeper
from llmgw.runner.launch import Launch, read_launch
from llmgw.runner.libc import Libc
from llmgw.runner.logs import LOGS_DIRECTORY
from llmgw.runner.members import members
from llmgw.runner.opening import Begin, Over, Refuse, TakeOver, first_record, open_shard, stand_in
from llmgw.runner.poller import Poller
from llmgw.runner.process import boot_id, boot_ticks, read_process
from llmgw.runner.reasons import KILLED_BEFORE_START, never_started, unobserved
from llmgw.runner.server import Server
from llmgw.runner.shard import DRAIN_S_MAX, Clocks, Shard
from llmgw.runner.shardlog import ShardLog
from llmgw.runner.state import Exit, ExitCode, Phase, Record, write_record

FAREWELL_S_MAX: Final = 1.0
SYSTEM_CLOCKS: Final = Clocks(monotonic_s=time.monotonic, wall_s=time.time)


@dataclass(frozen=True, slots=True)
class Home:
    """The shard's directory through open descriptors, so that no rename or depth matters."""

    name: str
    base: str
    identity_path: str
    lock: int


def run(directory: str) -> ExitCode:
    """Own the shard in `directory` until it has ended."""
    try:
        home = _open_home(directory)
    except OSError as fault:
        return _leave(ExitCode.CANNOT_WRITE, f"{directory} cannot be used: {fault}")
    if home is None:
        return _leave(ExitCode.OWNED, f"{directory} belongs to another runner, which lives")
    wall_s = SYSTEM_CLOCKS.wall_s()
    match open_shard(home.base, home.identity_path, wall_s):
        case Refuse(code, why):
            return _leave(code, why)
        case Over(record, code):
            return _write_over(home, record, code)
        case Begin(launch):
            return _Runner(home, launch).begin(launch)
        case TakeOver() as found:
            return _Runner(home, found.launch or stand_in(found.identity)).take_over(found)


def _leave(code: ExitCode, why: str) -> ExitCode:
    say_error(why)
    return code


def _open_home(directory: str) -> Home | None:
    path = os.path.abspath(directory)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    base = f"/proc/self/fd/{os.open(path, flags)}"
    lock = take_lock(base)
    if lock is None:
        return None
    parent, name = os.path.split(path)
    beside = f"/proc/self/fd/{os.open(parent, flags)}"
    return Home(name, base, os.path.join(beside, name + IDENTITY_SUFFIX), lock)


def _write_over(home: Home, record: Record, code: ExitCode) -> ExitCode:
    try:
        _carry_last_words(home, record)
        write_record(home.base, record)
    except OSError as fault:
        return _leave(ExitCode.CANNOT_WRITE, f"record.json cannot be written: {fault}")
    return _leave(code, record.why)


def _carry_last_words(home: Home, record: Record) -> None:
    """Log what the commands of a shard that is over had still said; bounded in time."""
    try:
        launch = read_launch(home.base)
    except (BrokenFileError, OSError):
        return
    log = ShardLog(home.base, launch, Libc())
    for state in record.commands:
        log.read_on(state.name)
    end_s = SYSTEM_CLOCKS.monotonic_s() + DRAIN_S_MAX
    while SYSTEM_CLOCKS.monotonic_s() < end_s:
        if log.drain(SYSTEM_CLOCKS.monotonic_s(), SYSTEM_CLOCKS.wall_s()):
            return


def _own_session() -> Session:
    own = read_process(os.getpid())
    if own is None:
        raise OSError("/proc is not there: it is needed to tell whose a process is")
    return Session(own.session, own.pid, own.start_ticks, boot_ticks())


class _Runner:
    """The parts of one runner."""

    def __init__(self, home: Home, launch: Launch) -> None:
        self._home = home
        self._launch = launch
        self._libc = Libc()
        self._libc.become_subreaper()
        self._libc.trim_memory()
        self._poller = Poller()
        self._signals = Signals(self._poller)

    def begin(self, launch: Launch) -> ExitCode:
        """Start the commands of a shard that no runner has had before."""
        cgroup = make_cgroup(self._home.name)
        identity = Identity(boot_id(), (_own_session(),), (), cgroup)
        record = first_record(SYSTEM_CLOCKS.wall_s())
        try:
            log = ShardLog(self._home.base, launch, self._libc)
            keeper, commands = self._keep(identity, record)
            shard, server = self._join(keeper, commands, log)
            keeper.begin()
        except OSError as fault:
            if cgroup is not None:
                remove_cgroup(cgroup)
            why = f"{self._home.name} cannot be written, so nothing was started: {fault}"
            return _leave(ExitCode.CANNOT_WRITE, why)
        shard.start()
        return self._turn(shard, server, keeper)

    def take_over(self, found: TakeOver) -> ExitCode:
        """Watch what an earlier runner has started; start nothing."""
        ticks = boot_ticks()
        before = found.identity.seen_at(members(found.identity).proven_sessions, ticks)
        identity = replace(before, sessions=(*before.sessions, _own_session()))
        try:
            log = ShardLog(self._home.base, self._launch, self._libc)
            keeper, commands = self._keep(identity, found.record)
            shard, server = self._join(keeper, commands, log)
            keeper.add_identity(identity)
            if found.launch is not None:
                for known in identity.commands:
                    log.read_on(known.name)
        except OSError as fault:
            why = f"{self._home.name} cannot be written, so it was not taken over: {fault}"
            return _leave(ExitCode.CANNOT_WRITE, why)
        self._watch_what_lives(found, shard, keeper, commands)
        return self._turn(shard, server, keeper)

    def _watch_what_lives(
        self, found: TakeOver, shard: Shard, keeper: Keeper, commands: Commands
    ) -> None:
        now_s, wall_s = SYSTEM_CLOCKS.monotonic_s(), SYSTEM_CLOCKS.wall_s()
        record = found.record
        dead = []
        for known in found.identity.commands:
            if not commands.take_over(known):
                dead.append(known.name)
                state = record.command(known.name)
                if state is not None and state.ended_at_wall_s is None:
                    record = record.with_ended(known.name, None, wall_s)
        if record.exit is not None or record.stop_asked:
            keeper.publish(replace(record, phase=Phase.STOPPING), now_s)
            shard.resume_stop()
            return
        failed = _why_failed(self._launch, [known.name for known in found.identity.commands], dead)
        if failed is not None:
            name, why = failed
            keeper.publish(record, now_s)
            shard.fail(Exit(name, None, asked=False, why=why, at_wall_s=wall_s))
            return
        why = "a new runner watches, since the old one was killed; exit statuses stay unknown"
        if found.launch is None:
            why += "; launch.json cannot be read, so the log is not carried on"
        keeper.publish(replace(record, phase=Phase.RUNNING, why=why), now_s)

    def _keep(self, identity: Identity, record: Record) -> tuple[Keeper, Commands]:
        keeper = Keeper(self._home.base, self._home.identity_path, identity, record)
        return keeper, Commands(self._poller)

    def _join(self, keeper: Keeper, commands: Commands, log: ShardLog) -> tuple[Shard, Server]:
        shard = Shard(self._launch, keeper, commands, log, SYSTEM_CLOCKS, self._home.lock)
        server = Server(self._home.base, self._poller, shard, SYSTEM_CLOCKS.monotonic_s)
        keeper.listeners.append(server.publish)
        return shard, server

    def _turn(self, shard: Shard, server: Server, keeper: Keeper) -> ExitCode:
        redirect_errors(os.path.join(self._home.base, LOGS_DIRECTORY))
        stops = 0
        pause_s = 0.0
        while not (shard.is_over and keeper.is_settled()):
            self._poller.wait(pause_s)
            if self._signals.stops > stops:
                stops = self._signals.stops
                if shard.is_over:
                    break  # told to leave, although the disk does not take the last record
                shard.stop(None)
            pause_s = shard.step()
            server.step(SYSTEM_CLOCKS.monotonic_s())
        end_s = SYSTEM_CLOCKS.monotonic_s() + FAREWELL_S_MAX
        while server.has_unsent and SYSTEM_CLOCKS.monotonic_s() < end_s:
            self._poller.wait(0.05)
        server.close()
        return ExitCode.ENDED


def _why_failed(launch: Launch, started: list[str], dead: list[str]) -> tuple[str, str] | None:
    """The command whose absence ended the shard while no runner lived, and the sentence."""
    if not started:
        return launch.engine.name, KILLED_BEFORE_START
    if launch.engine.name in dead:
        return launch.engine.name, unobserved("the engine")
    if dead:
        return dead[0], unobserved(f"the sidecar {dead[0]}")
    missing = [command.name for command in launch.commands if command.name not in started]
    return (missing[0], never_started(missing[0])) if missing else None
