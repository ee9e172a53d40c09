"""One shard from its start to its verified end: the runner's state machine over real processes.

    waiting --all started--> running --a command ended, or a stop--> stopping --empty--> ended

`step` is called at each turn of the loop; it looks at everything and never waits.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from llmgw.runner.cgroup import remove_cgroup
from llmgw.runner.commands import Commands, Ended
from llmgw.runner.ending import Ending, Stage
from llmgw.runner.identity import Known
from llmgw.runner.keeper import Keeper
from llmgw.runner.launch import Command, Launch
from llmgw.runner.members import Members, Purge, members
from llmgw.runner.process import boot_ticks
from llmgw.runner.reasons import asked, unasked
from llmgw.runner.shardlog import ShardLog
from llmgw.runner.socket import Memory, StatusReply
from llmgw.runner.spawn import Gate, SpawnError, explain
from llmgw.runner.starting import NeverListenedError, Starting
from llmgw.runner.state import CommandState, Exit, Phase, Record

DRAIN_S_MAX: Final = 5.0
PURGE_STEP_S: Final = 0.01
PURGE_SLOW_S: Final = 1.0  # between looks at what SIGKILL did not end within PURGE_PATIENCE_S
PURGE_PATIENCE_S: Final = 5.0
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks of a runner."""

    monotonic_s: Callable[[], float]
    wall_s: Callable[[], float]


class Shard:
    """Owns the commands, the record, and the way to the end."""

    def __init__(
        self,
        launch: Launch,
        keeper: Keeper,
        commands: Commands,
        log: ShardLog,
        clocks: Clocks,
        lock: int,
    ) -> None:
        self._launch = launch
        self._keeper = keeper
        self._commands = commands
        self._log = log
        self._clocks = clocks
        self._lock = lock
        self._starting: Starting | None = None
        self._ending: Ending | None = None
        self._purge: Purge | None = None
        self._purge_since_s = self._purge_at_s = 0.0
        self._drain_until_s: float | None = None
        self._turn_ticks = 0
        self._trouble: str | None = None
        self._base_why = keeper.record.why
        self.is_over = False

    # What the server asks.

    def record(self) -> Record:
        """The present record, on disk or not."""
        return self._keeper.record

    def status(self) -> StatusReply:
        """The present record, and the memory of the runner and of its processes."""
        pss, uss = _own_memory()
        alive = members(self._keeper.identity).processes
        rss = sum(_resident_bytes(process.pid) for process in alive)
        return StatusReply(self._keeper.record, Memory(pss, uss, rss, len(alive)))

    def stop(self, grace_s: float | None) -> None:
        """Begin to stop; harmless when asked again, and a shorter grace then counts."""
        self._take_ends()
        record = self._keeper.record
        if record.phase is Phase.ENDED:
            return
        now_s = self._clocks.monotonic_s()
        if self._ending is None:
            grace = self._launch.grace_s if grace_s is None else grace_s
            self._note("asked to stop")
            self._begin_ending(grace, now_s)
            self._publish(Phase.STOPPING, "asked to stop", stop_asked=True)
            return
        if grace_s is not None:
            self._ending.shorten(grace_s, now_s)
        if not record.stop_asked:
            self._publish(Phase.STOPPING, self._base_why, stop_asked=True)

    # Beginnings.

    def start(self) -> None:
        """Begin to start the commands."""
        self._starting = Starting(self._launch, self._spawn, self._say_waiting)

    def fail(self, end: Exit) -> None:
        """Something ended the shard: write down what, then end the rest."""
        self._note(end.why)
        self._begin_ending(self._launch.grace_s, self._clocks.monotonic_s())
        self._publish(Phase.STOPPING, end.why, end=end)

    def resume_stop(self) -> None:
        """An earlier runner was killed while it stopped the shard: go on with that."""
        self._begin_ending(self._launch.grace_s, self._clocks.monotonic_s())

    def _say_waiting(self, why: str) -> None:
        self._note(why)
        self._publish(Phase.WAITING, why)

    def _spawn(self, command: Command) -> None:
        try:
            output = self._log.open_output(command.name)
        except OSError as fault:
            what = f"cannot start {command.name}: opening its output in"
            raise SpawnError(explain(what, "logs/", fault.errno or 0)) from fault
        cgroup = self._keeper.identity.cgroup
        try:
            gate = Gate(command, output, self._lock, cgroup.path if cgroup else None)
        finally:
            os.close(output)
        process = gate.process
        known = Known(command.name, process.pid, process.start_ticks)
        try:
            self._keeper.add_identity(self._keeper.identity.with_command(known))
        except OSError as fault:
            gate.cancel()
            what = f"cannot start {command.name}: writing down its pid in"
            raise SpawnError(explain(what, "the identity file", fault.errno or 0)) from fault
        gate.open()
        self._commands.add_child(command.name, process)
        state = CommandState(command.name, process.pid, process.start_ticks, self._clocks.wall_s())
        self._note(f"started {command.name} as process {process.pid}")
        record = self._keeper.record
        is_engine = command.name == self._launch.engine.name
        self._publish(
            Phase.RUNNING if is_engine else Phase.WAITING,
            "the engine is started" if is_engine else f"{command.name} is started",
            commands=(*record.commands, state),
        )

    # Each turn.

    def step(self) -> float:
        """Look at everything once; after how many seconds at most to look again."""
        now_s, wall_s = self._clocks.monotonic_s(), self._clocks.wall_s()
        # Who is seen alive now was alive when the last turn began.
        ticks, self._turn_ticks = self._turn_ticks, boot_ticks()
        self._take_ends()
        pause_s = 0.25
        if self._starting is not None and self._ending is None:
            pause_s = self._step_starting(now_s)
        if self._ending is not None:
            pause_s = self._step_ending(now_s)
        if self._drain_until_s is None and self._log.step(now_s, wall_s):
            pause_s = 0.0
        self._tell_trouble()
        seen = self._commands.alive_sessions() | {self._keeper.identity.runner.id}
        self._keeper.step(now_s, seen, ticks)
        return pause_s

    def _take_ends(self) -> None:
        for ended in self._commands.reap():
            self._take_end(ended)

    def _take_end(self, ended: Ended) -> None:
        wall_s = self._clocks.wall_s()
        record = self._keeper.record.with_ended(ended.name, ended.status, wall_s)
        if self._ending is not None:
            self._publish(record.phase, self._base_why, commands=record.commands)
            return
        is_engine = ended.name == self._launch.engine.name
        why = unasked(ended.name, ended.status, is_engine=is_engine)
        self._note(why)
        self._begin_ending(self._launch.grace_s, self._clocks.monotonic_s())
        end = Exit(ended.name, ended.status, asked=False, why=why, at_wall_s=wall_s)
        self._publish(Phase.STOPPING, why, commands=record.commands, end=end)

    def _step_starting(self, now_s: float) -> float:
        starting = self._starting
        if starting is None:
            return 0.25
        try:
            if starting.step(now_s):
                self._starting = None
                return 0.25
        except (SpawnError, NeverListenedError) as fault:
            name, wall_s = starting.next_name, self._clocks.wall_s()
            self.fail(Exit(name, None, asked=False, why=str(fault), at_wall_s=wall_s))
            return 0.0
        return 0.05 if self._keeper.record.phase is Phase.WAITING else 0.0

    # The end.

    def _begin_ending(self, grace_s: float, now_s: float) -> None:
        if self._starting is not None:
            self._starting.close()
            self._starting = None
        sidecars = tuple(command.name for command in self._launch.commands[:-1])
        self._ending = Ending(self._launch.engine.name, sidecars, grace_s, now_s)

    def _step_ending(self, now_s: float) -> float:
        ending = self._ending
        if ending is None or self.is_over:
            return 0.25
        if self._drain_until_s is not None:
            return self._step_drain(now_s)
        names = [command.name for command in self._launch.commands]
        alive = frozenset(filter(self._commands.is_alive, names))
        for name in ending.step(now_s, alive):
            self._note(f"SIGTERM to {name}")
            self._commands.terminate(name)
        if ending.stage is not Stage.KILL:
            return 0.05
        return self._step_purge(now_s)

    def _step_purge(self, now_s: float) -> float:
        if self._purge is None:
            self._purge = Purge(everything=False)
            self._purge_since_s = self._purge_at_s = now_s
        if now_s < self._purge_at_s:
            return self._purge_at_s - now_s
        seen, identity = self._purge.step(self._keeper.identity)
        self._keeper.identity = identity
        if not seen.processes:
            self._take_ends()
            self._drain_until_s = now_s + DRAIN_S_MAX
            return 0.0
        is_late = now_s - self._purge_since_s > PURGE_PATIENCE_S
        if is_late:
            self._publish(Phase.STOPPING, _stuck(seen))
        self._purge_at_s = now_s + (PURGE_SLOW_S if is_late else PURGE_STEP_S)
        return self._purge_at_s - now_s

    def _step_drain(self, now_s: float) -> float:
        end = self._end()
        is_drained = self._log.drain(now_s, self._clocks.wall_s())
        if not is_drained and now_s < (self._drain_until_s or 0.0):
            return 0.0 if self._log.trouble is None else 0.05
        doubts = members(self._keeper.identity).unsure
        why = "; ".join((end.why, *doubts))
        if not is_drained:
            why += "; the end of the log could not be written and is left in logs/*.raw"
        if self._keeper.identity.cgroup is not None:
            remove_cgroup(self._keeper.identity.cgroup)
        self._publish(Phase.ENDED, why, end=replace(end, why=why))
        self.is_over = True
        return 0.0

    def _end(self) -> Exit:
        record = self._keeper.record
        if record.exit is not None:
            return record.exit
        engine = self._launch.engine.name
        state = record.command(engine)
        status = None if state is None else state.status
        outlasted = () if self._ending is None else tuple(self._ending.outlasted)
        grace_s = 0.0 if self._ending is None else self._ending.grace_s
        why = asked(engine, status, outlasted, grace_s)
        if state is None:
            why = "stopped as asked before the engine was started"
        return Exit(engine, status, asked=True, why=why, at_wall_s=self._clocks.wall_s())

    # Saying it.

    def _note(self, text: str) -> None:
        self._log.note(text, self._clocks.wall_s())

    def _tell_trouble(self) -> None:
        trouble = self._log.trouble
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            self._note("the log can be written again")
        record = self._keeper.record
        if record.phase is not Phase.ENDED:
            self._publish(record.phase, self._base_why)

    def _publish(
        self,
        phase: Phase,
        why: str,
        *,
        commands: tuple[CommandState, ...] | None = None,
        end: Exit | None = None,
        stop_asked: bool = False,
    ) -> None:
        record = self._keeper.record
        self._base_why = why
        said = why if self._trouble is None or phase is Phase.ENDED else f"{why}; {self._trouble}"
        self._keeper.publish(
            replace(
                record,
                phase=phase,
                why=said,
                commands=record.commands if commands is None else commands,
                stop_asked=record.stop_asked or stop_asked,
                exit=record.exit if end is None else end,
            ),
            self._clocks.monotonic_s(),
        )


def _stuck(seen: Members) -> str:
    names = ", ".join(map(str, seen.processes[:4]))
    return (
        f"{len(seen.processes)} processes do not end although they were killed: {names}; one in "
        "state D waits for a driver, and only that or a restart of the machine ends it"
    )


def _own_memory() -> tuple[int, int]:
    """The runner's proportional and private memory in bytes; zeros where they cannot be read."""
    pss = uss = 0
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name == "Pss":
                    pss = int(rest.split()[0]) * 1024
                elif name in ("Private_Clean", "Private_Dirty"):
                    uss += int(rest.split()[0]) * 1024
    except OSError:
        return 0, 0
    return pss, uss


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
