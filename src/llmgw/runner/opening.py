"""What a runner finds in its directory decides what it does: begin, take over, or refuse.

It begins only where no runner has ever been: a shard's commands are never started a second time.
"""

import os
from dataclasses import dataclass

from llmgw.runner.fields import BrokenFileError
from llmgw.runner.identity import Identity, read_identity
from llmgw.runner.launch import LAUNCH_FILE, Command, Launch, read_launch
from llmgw.runner.process import TICKS_PER_S, Verdict, boot_id, boot_s, verify
from llmgw.runner.reasons import RESTARTED
from llmgw.runner.state import (
    RECORD_FILE,
    CommandState,
    Exit,
    ExitCode,
    Phase,
    Record,
    read_record,
)


@dataclass(frozen=True, slots=True)
class Begin:
    """No runner was here before."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A runner was killed here; `launch` is None where launch.json cannot be read any more."""

    identity: Identity
    record: Record
    launch: Launch | None


@dataclass(frozen=True, slots=True)
class Over:
    """There is nothing to supervise: write this record, and leave."""

    record: Record
    code: ExitCode


@dataclass(frozen=True, slots=True)
class Refuse:
    """Touch nothing, say why, and leave."""

    code: ExitCode
    why: str


Opening = Begin | TakeOver | Over | Refuse


def first_record(wall_s: float) -> Record:
    """The record of a shard that begins now."""
    return Record(boot_id(), Phase.WAITING, "the commands are being started", wall_s, boot_s())


def open_shard(base: str, identity_path: str, wall_s: float) -> Opening:
    """Look at the directory; changes nothing."""
    try:
        identity = _identity(identity_path)
        record = _record(base)
    except (BrokenFileError, OSError) as fault:
        return Refuse(
            ExitCode.BROKEN,
            f"{fault}; nothing was touched. Whose processes these are is in {RECORD_FILE} and in "
            "the identity file beside the directory, if one of them is whole",
        )
    if record is not None and record.phase is Phase.ENDED:
        return Refuse(ExitCode.ENDED_BEFORE, f"this shard has ended: {record.why}")
    if identity is None:
        return _begin(base, wall_s) if record is None else _without_identity(record, wall_s)
    if identity.boot_id != boot_id():
        return Over(_ended(record or first_record(wall_s), RESTARTED, wall_s), ExitCode.ENDED)
    return _take_over(base, identity, record, wall_s)


def _identity(path: str) -> Identity | None:
    try:
        return read_identity(path)
    except FileNotFoundError:
        return None


def _record(base: str) -> Record | None:
    try:
        return read_record(base)
    except FileNotFoundError:
        return None


def _begin(base: str, wall_s: float) -> Opening:
    try:
        return Begin(read_launch(base))
    except (BrokenFileError, OSError) as fault:
        why = f"{LAUNCH_FILE} cannot be read, so nothing was started: {fault}"
        return Over(_ended(first_record(wall_s), why, wall_s), ExitCode.BROKEN)


def _without_identity(record: Record, wall_s: float) -> Opening:
    if record.boot_id != boot_id():
        return Over(_ended(record, RESTARTED, wall_s), ExitCode.ENDED)
    return Refuse(
        ExitCode.CANNOT_TELL,
        "the identity file beside the directory is gone, so whose processes live cannot be told; "
        "nothing was touched",
    )


def _ended(record: Record, why: str, wall_s: float) -> Record:
    engine = record.commands[-1].name if record.commands else "engine"
    end = record.exit or Exit(engine, None, record.stop_asked, why, wall_s)
    return Record(
        boot_id=record.boot_id,
        phase=Phase.ENDED,
        why=why,
        started_at_wall_s=record.started_at_wall_s,
        started_at_boot_s=record.started_at_boot_s,
        commands=record.commands,
        stop_asked=record.stop_asked,
        exit=end,
    )


def _take_over(base: str, identity: Identity, record: Record | None, wall_s: float) -> Opening:
    runner = identity.runner
    match verify(runner.pid, runner.start_ticks, identity.boot_id):
        case Verdict.SAME:
            return Refuse(
                ExitCode.OWNED,
                f"the runner of this shard, process {runner.pid}, lives, although its lock is "
                "free: was the lock file removed?",
            )
        case Verdict.CANNOT_TELL:
            return _doubt(runner.pid, "this shard's runner")
        case Verdict.DIFFERENT:
            pass
    for known in identity.commands:
        if verify(known.pid, known.start_ticks, identity.boot_id) is Verdict.CANNOT_TELL:
            return _doubt(known.pid, f"this shard's {known.name}")
    return TakeOver(identity, _merged(identity, record, wall_s), _launch_or_none(base))


def _doubt(pid: int, what: str) -> Refuse:
    why = f"process {pid} lives, and whether it is {what} cannot be told; nothing was touched"
    return Refuse(ExitCode.CANNOT_TELL, why)


def _merged(identity: Identity, record: Record | None, wall_s: float) -> Record:
    """The record with all commands of the identity, which is written before they run."""
    record = record or first_record(wall_s)
    commands = []
    for known in identity.commands:
        age_s = 0.0
        if known.start_ticks is not None:
            age_s = boot_s() - known.start_ticks / TICKS_PER_S
        written = record.command(known.name)
        started = wall_s - age_s
        commands.append(written or CommandState(known.name, known.pid, known.start_ticks, started))
    return Record(
        boot_id=record.boot_id,
        phase=record.phase,
        why=record.why,
        started_at_wall_s=record.started_at_wall_s,
        started_at_boot_s=record.started_at_boot_s,
        commands=tuple(commands),
        stop_asked=record.stop_asked,
        exit=record.exit,
    )


def _launch_or_none(base: str) -> Launch | None:
    try:
        return read_launch(base)
    except (BrokenFileError, OSError):
        return None


def stand_in(identity: Identity) -> Launch:
    """A launch that names the commands that were started, where launch.json is unreadable."""
    names = [known.name for known in identity.commands] or ["engine"]
    return Launch(tuple(Command(name, (os.devnull,), {}) for name in names))
