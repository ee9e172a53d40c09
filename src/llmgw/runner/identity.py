"""Whose processes these are: the file beside a shard's directory, written before the first fork.

It lies beside the directory so that a broken directory does not hide it. What it allows to prove:

- A session whose leader is our runner is ours. When the leader is gone, the kernel keeps the
  session's number from being used again for as long as anything lives in it. So the session is
  still ours if something in it is known to have been there while it was ours: a command that was
  written down, or any process that started before `alive_at_ticks`, a moment at which the session
  was known to be ours (the runner writes it anew every few seconds).
- A cgroup is ours if it still has the inode that was written down.
"""

import json
import os
from dataclasses import dataclass, replace
from typing import Final

from llmgw.runner.atomic import read_whole, write_atomic
from llmgw.runner.fields import Fields, parse

IDENTITY_VERSION: Final = 1
IDENTITY_SUFFIX: Final = ".identity"


@dataclass(frozen=True, slots=True)
class Known:
    """A command's process as it was written down right after its fork."""

    name: str
    pid: int
    start_ticks: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """A session that a runner of this shard led, and when it was last known to be this shard's."""

    id: int
    pid: int
    start_ticks: int | None
    alive_at_ticks: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup v2 of this shard alone; its inode is never used again within a boot."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of a shard's processes; the last session is the present runner's."""

    boot_id: str
    sessions: tuple[Session, ...]
    commands: tuple[Known, ...] = ()
    cgroup: Cgroup | None = None

    @property
    def runner(self) -> Session:
        """The runner that wrote this, and its session."""
        return self.sessions[-1]

    def with_command(self, known: Known) -> "Identity":
        """The same with one more command."""
        return replace(self, commands=(*self.commands, known))

    def seen_at(self, ids: frozenset[int], ticks: int) -> "Identity":
        """The same, the named sessions known to be ours at `ticks`."""
        sessions = tuple(
            replace(session, alive_at_ticks=ticks) if session.id in ids else session
            for session in self.sessions
        )
        return replace(self, sessions=sessions)


def identity_path(directory: str | os.PathLike[str]) -> str:
    """Where the identity of the shard in `directory` lies."""
    return os.path.abspath(directory) + IDENTITY_SUFFIX


def write_identity(path: str, identity: Identity, *, durable: bool = True) -> None:
    """Write it atomically; `durable` also survives a power cut."""
    runner = identity.runner
    document = {
        "version": IDENTITY_VERSION,
        "boot_id": identity.boot_id,
        **_session_document(runner),
        "cgroup": identity.cgroup.path if identity.cgroup else None,
        "cgroup_inode": identity.cgroup.inode if identity.cgroup else None,
        "commands": [
            {"name": known.name, "pid": known.pid, "start_ticks": known.start_ticks}
            for known in identity.commands
        ],
        "earlier": [_session_document(session) for session in identity.sessions[:-1]],
    }
    write_atomic(path, json.dumps(document).encode(), durable=durable)


def _session_document(session: Session) -> dict[str, object]:
    return {
        "pid": session.pid,
        "start_ticks": session.start_ticks,
        "session": session.id,
        "alive_at_ticks": session.alive_at_ticks,
    }


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """Read an identity file (see `identity_path`); OSError or BrokenFileError."""
    fields = parse(read_whole(os.fspath(path)), os.path.basename(path))
    cgroup, inode = fields.text_or_none("cgroup"), fields.whole_or_none("cgroup_inode")
    return Identity(
        boot_id=fields.text("boot_id"),
        sessions=(*map(_session, fields.items("earlier")), _session(fields)),
        commands=tuple(
            Known(known.text("name"), known.whole("pid"), known.whole_or_none("start_ticks"))
            for known in fields.items("commands")
        ),
        cgroup=None if cgroup is None or inode is None else Cgroup(cgroup, inode),
    )


def _session(fields: Fields) -> Session:
    return Session(
        id=fields.whole("session"),
        pid=fields.whole("pid"),
        start_ticks=fields.whole_or_none("start_ticks"),
        alive_at_ticks=fields.whole_or_none("alive_at_ticks") or 0,
    )
