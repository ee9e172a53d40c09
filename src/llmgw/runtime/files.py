"""State files that are whole or not there, read within a bound, with errors that say what to do."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PRIVATE_FILE_MODE: Final = 0o600
PRIVATE_FOLDER_MODE: Final = 0o700
STATE_FILE_BYTES_MAX: Final = 16 * 1024 * 1024

REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space or raise the quota",
    errno.ENOENT: "its folder is not there: make it",
    errno.EROFS: "the file system is read-only: mount it writable, or look for disk errors",
    errno.EACCES: "permission denied: give it to the user that runs llmgw",
    errno.EPERM: "permission denied: give it to the user that runs llmgw",
    errno.EIO: "the disk reports an error: look at the kernel log",
    errno.ENOTDIR: "a part of the path is a file: move it away",
    errno.EISDIR: "there is a folder where a file belongs: move it away",
    errno.EMFILE: "too many open files: raise the limit (LimitNOFILE)",
}


class StateFileError(OSError):
    """A state file could not be read or written; the message names the file and what to do."""

    def __str__(self) -> str:
        return str(self.strerror)


class LockHeldError(StateFileError):
    """Another process holds the lock."""


def write_atomic(path: Path, data: bytes, *, mode: int = PRIVATE_FILE_MODE) -> None:
    """Replace what is in `path`: a reader, or a crash, finds the old or the new, never a part.

    Blocks until the disk has it: call it in a thread. Each path has one writer at a time, so the
    temporary file has a fixed name, and what a crash left of it is used up by the next write.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        try:
            _write_synced(temporary, data, mode)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _sentence("write", path, error) from error


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # the umask has no say
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, *, bytes_max: int = STATE_FILE_BYTES_MAX) -> bytes:
    """Return what is in `path`; raise FileNotFoundError where nothing is, else StateFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _sentence("read", path, error) from error
    if len(data) > bytes_max:
        message = (
            f"{path} has more than {bytes_max} bytes: it is not what llmgw wrote; move it away"
        )
        raise StateFileError(errno.EFBIG, message)
    return data


def make_private_folder(path: Path) -> None:
    """Make `path`, with its parents, for its owner alone; leave one that is there as it is."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise _sentence("make", path, error) from error


@contextlib.contextmanager
def hold_lock(path: Path, *, purpose: str) -> Iterator[None]:
    """Hold the lock file `path` for the block; raise LockHeldError at once where another has it.

    The kernel gives the lock back when the process ends, however it ends. The file stays.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    except OSError as error:
        raise _sentence("lock", path, error) from error
    try:
        _lock_or_say_who(descriptor, path, purpose)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # for people; proves nothing
        yield
    finally:
        os.close(descriptor)


def _lock_or_say_who(descriptor: int, path: Path, purpose: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        message = f"{path} is locked: another process is {purpose} (pid {holder})"
        raise LockHeldError(errno.EWOULDBLOCK, message) from None
    except OSError as error:
        raise _sentence("lock", path, error) from error


def _sentence(verb: str, path: Path, error: OSError) -> StateFileError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    remedy = REMEDIES.get(error.errno or 0)
    return StateFileError(error.errno, f"cannot {verb} {path}: {remedy or reason}")
