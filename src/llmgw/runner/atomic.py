"""Writes a small file so that a reader finds the old one or the new one, never a half."""

import contextlib
import os
from typing import Final

from llmgw.runner.fields import FILE_BYTES_MAX, BrokenFileError

PRIVATE_MODE: Final = 0o600


def write_atomic(path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data` (mode 0600); `durable` also survives a power cut.

    One writer per path: the temporary name is fixed, so that a crash leaves at most one behind.
    """
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, PRIVATE_MODE)
        try:
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_directory(os.path.dirname(path) or ".")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(path: str) -> bytes:
    """The content of a small file; OSError if it cannot be read, BrokenFileError if it is huge."""
    with open(path, "rb", buffering=0) as file:
        data = file.read(FILE_BYTES_MAX + 1) or b""
        while len(data) <= FILE_BYTES_MAX and (more := file.read(FILE_BYTES_MAX)):
            data += more
    if len(data) > FILE_BYTES_MAX:
        raise BrokenFileError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data
