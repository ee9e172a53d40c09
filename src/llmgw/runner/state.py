"""The runner's own state: record.json, written at each transition; and a runner's exit codes."""

import json
import os
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from llmgw.runner.atomic import read_whole, write_atomic
from llmgw.runner.fields import BrokenFileError, Fields, parse
from llmgw.runner.process import boot_s

RECORD_VERSION: Final = 1
RECORD_FILE: Final = "record.json"


class Phase(StrEnum):
    """Where a shard's processes are in their life, as far as a runner can see."""

    WAITING = "waiting"  # the engine is not started yet: sidecars start, the rendezvous is awaited
    RUNNING = "running"
    STOPPING = "stopping"  # a stop was asked for, or a command has ended; others may still live
    ENDED = "ended"  # verified: nothing of the shard that a runner can identify lives


class ExitCode(IntEnum):
    """How `python -m llmgw.runner` ends."""

    ENDED = 0  # record.json says how the shard ended
    CRASHED = 1
    USAGE = 2
    OWNED = 3  # another runner holds this directory
    BROKEN = 4  # a file of the directory cannot be understood; nothing was touched
    CANNOT_WRITE = 5  # the identity cannot be written, so nothing was started
    ENDED_BEFORE = 6  # this shard had already ended; a shard never starts twice
    CANNOT_TELL = 7  # whether a live process is this shard's cannot be told; nothing was touched


@dataclass(frozen=True, slots=True)
class CommandState:
    """One started command; `status` is None while it runs and where it could not be observed."""

    name: str
    pid: int
    start_ticks: int | None
    started_at_wall_s: float
    ended_at_wall_s: float | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """What ended the shard; a negative status is a signal, None could not be observed."""

    command: str
    status: int | None
    asked: bool
    why: str
    at_wall_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """The state of one shard's processes. Start deadlines count from `started_at_boot_s`."""

    boot_id: str
    phase: Phase
    why: str
    started_at_wall_s: float
    started_at_boot_s: float
    commands: tuple[CommandState, ...] = ()
    stop_asked: bool = False
    exit: Exit | None = None

    def age_s(self) -> float:
        """Seconds since the start, by the clock that never steps; for records of this boot."""
        return max(0.0, boot_s() - self.started_at_boot_s)

    def command(self, name: str) -> CommandState | None:
        """The named command, once started."""
        return next((state for state in self.commands if state.name == name), None)

    def with_ended(self, name: str, status: int | None, at_wall_s: float) -> "Record":
        """The same with one command ended."""
        commands = tuple(
            replace(state, status=status, ended_at_wall_s=at_wall_s)
            if state.name == name
            else state
            for state in self.commands
        )
        return replace(self, commands=commands)


def record_document(record: Record) -> dict[str, object]:
    """The JSON object of a record, as in the file and on the socket."""
    end = record.exit
    return {
        "version": RECORD_VERSION,
        "boot_id": record.boot_id,
        "phase": record.phase.value,
        "why": record.why,
        "started_at_wall_s": record.started_at_wall_s,
        "started_at_boot_s": record.started_at_boot_s,
        "commands": [
            {
                "name": state.name,
                "pid": state.pid,
                "start_ticks": state.start_ticks,
                "started_at_wall_s": state.started_at_wall_s,
                "ended_at_wall_s": state.ended_at_wall_s,
                "status": state.status,
            }
            for state in record.commands
        ],
        "stop_asked": record.stop_asked,
        "exit": None
        if end is None
        else {
            "command": end.command,
            "status": end.status,
            "asked": end.asked,
            "why": end.why,
            "at_wall_s": end.at_wall_s,
        },
    }


def record_of(fields: Fields) -> Record:
    """The record in a JSON object, or BrokenFileError."""
    try:
        phase = Phase(fields.text("phase"))
    except ValueError as fault:
        raise BrokenFileError(f"{fields.where}: {fault}") from fault
    end = fields.item("exit")
    return Record(
        boot_id=fields.text("boot_id"),
        phase=phase,
        why=fields.text("why"),
        started_at_wall_s=fields.number("started_at_wall_s"),
        started_at_boot_s=fields.number("started_at_boot_s"),
        commands=tuple(map(_command_state, fields.items("commands"))),
        stop_asked=fields.flag("stop_asked"),
        exit=None
        if end is None
        else Exit(
            command=end.text("command"),
            status=end.whole_or_none("status"),
            asked=end.flag("asked"),
            why=end.text("why"),
            at_wall_s=end.number("at_wall_s"),
        ),
    )


def _command_state(fields: Fields) -> CommandState:
    return CommandState(
        name=fields.text("name"),
        pid=fields.whole("pid"),
        start_ticks=fields.whole_or_none("start_ticks"),
        started_at_wall_s=fields.number("started_at_wall_s"),
        ended_at_wall_s=fields.number_or_none("ended_at_wall_s"),
        status=fields.whole_or_none("status"),
    )


def write_record(directory: str | os.PathLike[str], record: Record) -> None:
    """Write record.json so that it survives a power cut; only the runner does this."""
    document = json.dumps(record_document(record)).encode()
    write_atomic(os.path.join(directory, RECORD_FILE), document)


def read_record(directory: str | os.PathLike[str]) -> Record:
    """Read record.json; OSError (FileNotFoundError: no runner got that far) or BrokenFileError."""
    return record_of(parse(read_whole(os.path.join(directory, RECORD_FILE)), RECORD_FILE))
