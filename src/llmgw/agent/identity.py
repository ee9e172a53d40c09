"""Who this node is and whom it has obeyed: node id, machine id, the lock, the highest term.

An id is made once and kept beside the machine id, so a renamed host stays the same node and a
copied disk is noticed. The term is written to two files before anything of it is acted on: each
alone is enough, and with both unreadable the agent does not start rather than obey too low a term.
"""

import fcntl
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from llmgw.agent.files import Disk, read_text
from llmgw.core.document import Document, InvalidDocumentError, Json, dump, load
from llmgw.core.errors import ConflictError, StorageError
from llmgw.core.ids import ID_BYTES, NodeId, id_from
from llmgw.runtime.files import PRIVATE_FILE_MODE

logger = logging.getLogger(__name__)

NODE_FILE: Final = "node.json"
TERM_SAYABLE_MAX: Final = 2**64 - 1
TERM_FILES: Final = ("term.json", "term.copy.json")
LOCK_FILE: Final = "agent.lock"

D = TypeVar("D", bound=Document)


class AnotherAgentError(ConflictError):
    """Another agent works on this state directory."""

    code = "another_agent"


class CopiedDiskError(ConflictError):
    """The state directory was made on another machine."""

    code = "copied_disk"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The node's id and the machine on which it was made."""

    node: NodeId
    machine: str
    version: int = 1
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Obeyed:
    """The highest term obeyed, and whose."""

    term: int = 0
    store: str = ""
    version: int = 1
    unknown: Mapping[str, Json] = field(default_factory=dict)


class StateLock:
    """Held for the agent's life: one agent per state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / LOCK_FILE
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock, blocking only for the disk; raise AnotherAgentError if it is held."""
        try:
            descriptor = _open_lock(self._path)
        except OSError as error:
            raise StorageError(
                f"cannot open {self._path}: {error.strerror}; make the state directory readable"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AnotherAgentError(
                f"another llmgw agent works on {self._path.parent} (it holds {self._path.name});"
                " stop it first, or give this one a state directory of its own"
            ) from None
        self._descriptor = descriptor

    def give_back(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    except OSError:
        # A file system turned read-only still has the file, and a lock needs no writing.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def node_identity(state: Path, machine: str, entropy: bytes, disk: Disk) -> NodeIdentity:
    """Return who this node is, made once; raise CopiedDiskError for another machine's directory."""
    path = state / NODE_FILE
    found = _read(path, NodeIdentity, "restore it, or remove it to join as a new node")
    if found is None:
        made = NodeIdentity(NodeId(id_from(entropy[:ID_BYTES])), machine)
        disk.write(path, dump(made))
        return made
    if found.machine and machine and found.machine != machine:
        raise CopiedDiskError(
            f"{path} says node {found.node} on machine {found.machine}, but this is machine"
            f" {machine}: the disk was copied. Empty {state} to join as a new node; if the machine"
            f" itself was set up anew and its old self is gone, remove only {path.name}"
        )
    return found


def read_machine_id(path: Path) -> str:
    """Return the machine id, empty where there is none."""
    try:
        return (read_text(path) or "").strip()
    except StorageError:
        return ""


class Terms:
    """The highest term obeyed: on disk before anything is done in its name."""

    def __init__(self, state: Path, disk: Disk) -> None:
        self._paths = tuple(state / name for name in TERM_FILES)
        self._disk = disk
        self.warning = ""
        self.obeyed = self._load()
        if self.warning:
            logger.warning("%s", self.warning)

    def _load(self) -> Obeyed:
        found: list[Obeyed] = []
        faults: list[str] = []
        for path in self._paths:
            try:
                if (kept := _read(path, Obeyed, "the other copy is used")) is not None:
                    found.append(_sayable(kept, path))
            except StorageError as error:
                faults.append(str(error))
        if faults and not found:
            both = " and ".join(str(path) for path in self._paths)
            raise StorageError(
                f"the highest obeyed term is not known, neither copy can be read: {faults[0]};"
                f" restore one, or remove {both} to obey whichever leader is heard first"
            )
        self.warning = "; ".join(faults)
        return max(found, key=lambda kept: kept.term, default=Obeyed())

    def raise_to(self, term: int, store: str) -> None:
        """Write down that this term is obeyed; blocking. Never lowers it."""
        if term < self.obeyed.term:
            raise ValueError(f"term {term} is below the obeyed {self.obeyed.term}")
        new = Obeyed(term, store)
        for path in self._paths:
            self._disk.write(path, dump(new))
        self.obeyed, self.warning = new, ""


def _sayable(kept: Obeyed, path: Path) -> Obeyed:
    """Refuse a term that no message can carry: a node that has it could not even say hello."""
    if 0 <= kept.term <= TERM_SAYABLE_MAX:
        return kept
    raise StorageError(
        f"{path} is broken (term {kept.term} is out of all bounds); the other copy is used"
    )


def _read(path: Path, kind: type[D], remedy: str) -> D | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        return load(kind, text)
    except InvalidDocumentError as error:
        raise StorageError(f"{path} is broken ({error}); {remedy}") from error
