"""The files of the journal: numbered segments whose space is reserved before it is needed.

A line is `o` (a record as it stands, opened or changed) or `c` (closed), then the record as JSON.
What follows the last line is the reserve: zeros. Everything here blocks, and runs in a thread or
before the event loop does; the one write that does not is the journal's own.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.core.document import InvalidDocumentError, load
from llmgw.core.traffic.usage import Usage
from llmgw.runtime.files import PRIVATE_FILE_MODE, REMEDIES

LINE_BYTES_MAX: Final = 1024
OPENED: Final = b"o"
CLOSED: Final = b"c"
_PREFIX: Final = "journal-"

Reserve = Callable[[int, int, int], None]
"""posix_fallocate: descriptor, offset, length."""


@dataclass(slots=True)
class Segment:
    """One file; `used` of its `size` bytes hold lines."""

    number: int
    path: Path
    size: int
    used: int = 0
    descriptor: int = -1
    """Open while the segment is written to; -1 after."""

    @property
    def room(self) -> int:
        """Bytes that can be written without asking the disk for more."""
        return self.size - self.used


@dataclass(frozen=True, slots=True)
class Read:
    """What closed in a stretch of a segment, and where that ends."""

    closed: tuple[Usage, ...]
    end: int


def create(directory: Path, number: int, size: int, reserve: Reserve) -> Segment:
    """Make an empty segment and reserve its space; raise OSError and leave nothing."""
    path = directory / f"{_PREFIX}{number:010d}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        reserve(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return Segment(number, path, size, descriptor=descriptor)


def seal(segment: Segment) -> None:
    """Write no more to it, and give the rest of the reserve back."""
    if segment.descriptor < 0:
        return
    descriptor, segment.descriptor = segment.descriptor, -1
    try:
        os.ftruncate(descriptor, segment.used)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    segment.size = segment.used


def are_there(in_use: Iterable[Segment]) -> bool:
    """Tell whether all files still have their names."""
    return all(os.fstat(segment.descriptor).st_nlink > 0 for segment in in_use)


def found_in(directory: Path) -> list[Segment]:
    """Return what earlier lives left, oldest first, each cut to what it holds."""
    segments = []
    for path in sorted(directory.glob(f"{_PREFIX}[0-9]*")):
        number = int(path.name.removeprefix(_PREFIX))
        used = len(path.read_bytes().rstrip(b"\0"))
        if used == 0:
            path.unlink()
            continue
        with contextlib.suppress(OSError):
            os.truncate(path, used)
        segments.append(Segment(number, path, used, used))
    return segments


def read(path: Path, start: int, bytes_max: int) -> Read:
    """Read the whole lines from `start` on, about `bytes_max` of them; skip what is torn."""
    lines, end = _lines(path, start, bytes_max)
    closed = (_usage(line) for line in lines if line.startswith(CLOSED))
    return Read(tuple(usage for usage in closed if usage is not None), end)


def read_all(path: Path, bytes_at_once: int) -> Iterator[Read]:
    """Read a segment to its end, piece by piece."""
    start = 0
    while (piece := read(path, start, bytes_at_once)).end > start:
        yield piece
        start = piece.end


def left_open(path: Path, bytes_at_once: int, before: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the lines of what is open at the segment's end, given what was before it.

    Only the ids are looked at: a long journal must not mean a long start.
    """
    found = dict(before)
    start = 0
    while True:
        lines, end = _lines(path, start, bytes_at_once)
        if end == start:
            return found
        for line in lines:
            if line.startswith(OPENED):
                found[_id_in(line)] = line
            else:
                found.pop(_id_in(line), None)
        start = end


def settled(line: bytes) -> bytes | None:
    """Return the line that closes what this line opened; None where it cannot be read."""
    return CLOSED + line[1:] + b"\n" if _usage(line) is not None else None


def _lines(path: Path, start: int, bytes_max: int) -> tuple[list[bytes], int]:
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(max(bytes_max, LINE_BYTES_MAX))
    whole = data[: data.rfind(b"\n") + 1]
    return [line.strip(b"\0") for line in whole.split(b"\n")], start + len(whole)


def _id_in(line: bytes) -> bytes:
    """The first member is the request's id."""
    return line[1:].partition(b",")[0]


def _usage(line: bytes) -> Usage | None:
    try:
        return load(Usage, line[1:])
    except InvalidDocumentError:
        return None


def reason(error: OSError) -> str:
    """Say what is wrong with the disk and what to do."""
    known = REMEDIES.get(error.errno or 0)
    return known or os.strerror(error.errno or errno.EIO)
