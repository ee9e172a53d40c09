"""What an agent reads of a shard without its runner: launch, identity, record, members, logs.

This module and `llmgw.runner.socket` are the runner's door; all else in the package is its own.
"""

from llmgw.runner.fields import BrokenFileError
from llmgw.runner.identity import (
    IDENTITY_SUFFIX,
    Cgroup,
    Identity,
    Known,
    Session,
    identity_path,
    read_identity,
)
from llmgw.runner.launch import (
    LAUNCH_FILE,
    Command,
    Launch,
    Rendezvous,
    read_launch,
    write_launch,
)
from llmgw.runner.logs import LOGS_DIRECTORY, LogPiece, follow, tail
from llmgw.runner.members import Killed, Members, kill_members, members
from llmgw.runner.process import (
    Process,
    Verdict,
    all_processes,
    boot_id,
    boot_s,
    boot_ticks,
    read_process,
    verify,
)
from llmgw.runner.pump import truncate_raw
from llmgw.runner.state import (
    RECORD_FILE,
    CommandState,
    Exit,
    ExitCode,
    Phase,
    Record,
    read_record,
)

__all__ = [
    "IDENTITY_SUFFIX",
    "LAUNCH_FILE",
    "LOGS_DIRECTORY",
    "RECORD_FILE",
    "BrokenFileError",
    "Cgroup",
    "Command",
    "CommandState",
    "Exit",
    "ExitCode",
    "Identity",
    "Killed",
    "Known",
    "Launch",
    "LogPiece",
    "Members",
    "Phase",
    "Process",
    "Record",
    "Rendezvous",
    "Session",
    "Verdict",
    "all_processes",
    "boot_id",
    "boot_s",
    "boot_ticks",
    "follow",
    "identity_path",
    "kill_members",
    "members",
    "read_identity",
    "read_launch",
    "read_process",
    "read_record",
    "tail",
    "truncate_raw",
    "verify",
    "write_launch",
]
