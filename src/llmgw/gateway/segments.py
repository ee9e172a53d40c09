"""The files of the journal: numbered segments whose space is reserved before it is needed.

A line is `o` (a record as it stands, opened or changed) or `c` (closed), then the record as JSON.
What follows the last line is the reserve: zeros. Everything here blocks, and runs in a thread or
before the event loop does; the one write that does not is the journal's own.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
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
    """What a stretch of a segment holds, and where it ends."""

    closed: tuple[Usage, ...]
    opened: tuple[Usage, ...]
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
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(max(bytes_max, LINE_BYTES_MAX))
    whole = data[: data.rfind(b"\n") + 1]
    closed, opened = [], []
    for line in whole.split(b"\n"):
        text = line.strip(b"\0")
        with contextlib.suppress(InvalidDocumentError):
            if text.startswith(CLOSED):
                closed.append(load(Usage, text[1:]))
            elif text.startswith(OPENED):
                opened.append(load(Usage, text[1:]))
    return Read(tuple(closed), tuple(opened), start + len(whole))


def read_all(path: Path, bytes_at_once: int) -> Iterator[Read]:
    """Read a segment to its end, piece by piece."""
    start = 0
    while (piece := read(path, start, bytes_at_once)).end > start:
        yield piece
        start = piece.end


def reason(error: OSError) -> str:
    """Say what is wrong with the disk and what to do."""
    known = REMEDIES.get(error.errno or 0)
    return known or os.strerror(error.errno or errno.EIO)
