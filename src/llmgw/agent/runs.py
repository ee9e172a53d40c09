"""The runs directory: one directory per shard, `runs/NAME`, with its identity file beside it.

Here is what the agent reads and writes of it; everything else in a directory is its runner's.
A name is a shard's key, for instance `k3v9qd2m7a.2.0`. All of this blocks: call it in a thread.
"""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from llmgw.agent.files import Disk, read_text
from llmgw.core.document import InvalidDocumentError, Json, dump, load
from llmgw.core.errors import StorageError
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.ids import ShardKey
from llmgw.runner import record
from llmgw.runtime.files import LockHeldError, hold_lock

SPEC_FILE: Final = "spec.json"
READY_FILE: Final = "ready.json"
RUNNER_LOCK: Final = "lock"
BLOCK_BYTES: Final = 512
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready:
    """Written when a shard was first ready: from then on no start-up deadline applies."""

    answered_age_s: float
    """How long after its start the engine last answered; written anew now and then."""
    version: int = 1
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What could be read of one run, and what could not."""

    name: str
    spec: ShardSpec | None = None
    seen: record.Record | None = None
    """What its runner wrote last."""
    identity: record.Identity | None = None
    key: str | None = field(default=None, repr=False)
    """The engine's, from the launch file."""
    ready: Ready | None = None
    seen_broken: bool = False
    identity_broken: bool = False
    """It is there and cannot be read; where it is not there, no command was ever started."""
    prepared: bool = False
    """A runner could start from this directory: its launch file is there."""
    faults: tuple[str, ...] = ()

    @property
    def untouched(self) -> bool:
        """Whether no runner has ever come so far as to start something here."""
        known = self.seen is not None or self.identity is not None
        return not (known or self.seen_broken or self.identity_broken)

    @property
    def is_remnant(self) -> bool:
        """Whether an agent was killed while it made this: no runner could ever start from it."""
        return self.untouched and not self.prepared

    @property
    def shard(self) -> ShardKey | None:
        """The shard that the name stands for; None if it is no shard's name."""
        return shard_key(self.name)


def shard_key(name: str) -> ShardKey | None:
    """Read the name of a run."""
    try:
        return ShardKey.parse(name)
    except ValueError:
        return None


class RunsFolder:
    """Reads and writes the runs of one state directory."""

    def __init__(self, state: Path, disk: Disk) -> None:
        self.path = state / "runs"
        self._disk = disk

    def folder(self, name: str) -> Path:
        """Return the directory of a run."""
        return self.path / name

    def names(self) -> tuple[str, ...]:
        """Return all runs that have a directory or an identity; raise StorageError."""
        try:
            entries = [entry.name for entry in self.path.iterdir() if entry.name[0] != "."]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageError(
                f"cannot list {self.path}: {error.strerror}; mend the directory: without it"
                " nobody knows what runs here"
            ) from error
        temporary = f"{record.IDENTITY_SUFFIX}.tmp"
        return tuple(
            sorted({n.removesuffix(record.IDENTITY_SUFFIX) for n in entries if temporary not in n})
        )

    def read(self, name: str) -> Found:
        """Read one run; what cannot be read is among its faults."""
        folder = self.folder(name)
        faults: list[str] = []
        identity_path = record.identity_path(folder)
        spec = _try(lambda: _document(folder / SPEC_FILE, ShardSpec), faults)
        if spec is not None and str(spec.key) != name:
            faults.append(f"{folder / SPEC_FILE} is the spec of {spec.key}, not of {name}")
            spec = None
        identity = _try(lambda: record.read_identity(identity_path), faults)
        seen = _try(lambda: record.read_record(folder), faults)
        return Found(
            name=name,
            spec=spec,
            seen=seen,
            identity=identity,
            key=_key(folder, spec),
            ready=_try(lambda: _document(folder / READY_FILE, Ready), []),
            seen_broken=seen is None and (folder / record.RECORD_FILE).exists(),
            identity_broken=identity is None and Path(identity_path).exists(),
            prepared=(folder / record.LAUNCH_FILE).exists(),
            faults=tuple(faults),
        )

    def create(self, spec: ShardSpec, launch: record.Launch) -> None:
        """Make the directory of a run; raise StorageError, leaving nothing behind."""
        folder = self.folder(str(spec.key))
        try:
            self._disk.make_folder(folder)
            self._disk.write(folder / SPEC_FILE, dump(spec))
            try:
                record.write_launch(folder, launch)
            except OSError as error:
                raise StorageError(
                    f"cannot write {folder / record.LAUNCH_FILE}: {error.strerror}; make room or"
                    " make it writable"
                ) from error
        except StorageError:
            if not Path(record.identity_path(folder)).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def give_up(self, name: str) -> bool:
        """Make sure that nothing is ever started from a prepared run; False if a runner has it.

        Under the runner's own lock: a runner that was spawned and has not come so far yet finds
        the lock taken, or nothing to launch.
        """
        folder = self.folder(name)
        try:
            with hold_lock(folder / RUNNER_LOCK, purpose="starting this shard"):
                if Path(record.identity_path(folder)).exists():
                    return False
                (folder / record.LAUNCH_FILE).unlink(missing_ok=True)
        except LockHeldError:
            return False
        except OSError as error:
            raise StorageError(str(error)) from error
        return True

    def write_ready(self, name: str, ready: Ready) -> None:
        """Write down that a shard has been ready; raise StorageError."""
        self._disk.write(self.folder(name) / READY_FILE, dump(ready))

    def remove(self, name: str) -> None:
        """Remove a run of which nothing lives; raise StorageError."""
        folder = self.folder(name)
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
            Path(record.identity_path(folder)).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot remove {folder}: {error.strerror}") from error

    def used_bytes(self, name: str) -> int:
        """Return how much room a run takes on the disk."""
        total = 0
        for path in self.folder(name).rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_blocks * BLOCK_BYTES
        return total


def _document(path: Path, kind: type[T]) -> T | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        return load(kind, text)  # type: ignore[type-var]
    except InvalidDocumentError as error:
        raise StorageError(f"{path} is broken: {error}") from error


def _key(folder: Path, spec: ShardSpec | None) -> str | None:
    """Return the key that the engine was started with: the launch file keeps it."""
    if spec is None or spec.key_variable is None:
        return None
    launch = _try(lambda: record.read_launch(folder), [])
    return None if launch is None else launch.engine.env.get(spec.key_variable)


def _try(read: Callable[[], T | None], faults: list[str]) -> T | None:
    try:
        return read()
    except FileNotFoundError:
        return None
    except (StorageError, record.BrokenFileError, OSError) as error:
        faults.append(str(error))
        return None
