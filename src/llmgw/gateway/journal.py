"""The journal: what was used is on disk even if nobody lives to tell.

A record is written when it opens and when it closes, all records of one turn of the event loop in
one append to the page cache: the one file operation that an event loop of llmgw makes itself.
Opening needs room for the closing, too, in space that is reserved already; so a full disk can only
refuse new requests, never lose the end of one that runs. What a restart finds open is closed as it
stood: of unknown end, estimated. A segment begins with what is open at that time, so older ones
may go as soon as the control plane has acknowledged what closed in them.
"""

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from llmgw.core.errors import StorageError
from llmgw.core.traffic.usage import Usage
from llmgw.gateway import segments
from llmgw.gateway.entry import Entry
from llmgw.gateway.options import JournalOptions
from llmgw.gateway.segments import CLOSED, LINE_BYTES_MAX, OPENED, Read, Reserve, Segment
from llmgw.runtime.clock import Clock
from llmgw.runtime.files import make_private_folder
from llmgw.runtime.threads import ThreadPool

logger = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
UNWRITTEN_MAX: Final = 100_000
"""Closed records kept in memory while the disk takes nothing."""
CHECKPOINT_S: Final = 10.0
"""How often the records of long requests are written as they stand."""
SHORT_CHARS: Final = 64

_encode: Final = msgspec.json.Encoder().encode


class JournalFullError(StorageError):
    """There is no room to write down that a request began, so it does not begin."""

    code = "journal_full"


class Journal:
    """Owns the segments; one per state directory (the gateway holds the lock)."""

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        pool: ThreadPool,
        clock: Clock,
        reserve: Reserve = os.posix_fallocate,
    ) -> None:
        self._directory = directory
        self._options = options
        self.acknowledged = options.acknowledged
        """Whether a control plane takes what is sent; each one that is followed says so."""
        self._pool = pool
        self._clock = clock
        self._reserve = reserve
        self._old: list[Segment] = []
        self._current: Segment | None = None
        self._spare: Segment | None = None
        self._made: deque[Segment] = deque()
        self._last_number = 0
        self._open: dict[str, Entry] = {}
        self._touched: dict[str, Entry] = {}
        self._unwritten: deque[bytes] = deque()
        self._flush_at_end_of_turn: asyncio.Handle | None = None
        self._cursor = (0, 0)
        self._why = ""
        self._failed = False
        self._checkpoint_s = clock.monotonic_s() + CHECKPOINT_S
        self.lost = 0
        """Closed records that were dropped for want of room."""
        self.wake = asyncio.Event()
        """Set when the journal wants `tend`."""
        self.news = asyncio.Event()
        """Set when records have closed."""

    # Before the event loop runs, or in a thread.

    def begin(self) -> None:
        """Read what earlier lives left, settle what they left open, and make room; blocks."""
        self._old = segments.found_in(self._directory)
        self._last_number = max((s.number for s in self._old), default=0)
        left_open: dict[bytes, bytes] = {}
        for segment in self._old:
            left_open = segments.left_open(segment.path, READ_BYTES, left_open)
        settled = [segments.settled(line) for line in left_open.values()]
        self._unwritten.extend(line for line in settled if line is not None)
        if left_open:
            logger.warning("settled %d requests that an earlier life left open", len(left_open))
        try:
            self._current = self._create()
            self._spare = self._create()
        except OSError as error:
            self._fail(error)
        self._flush()

    def end(self) -> None:
        """Write what is left and give the reserve back; blocks."""
        self._flush()
        empty = [*self._made, *([self._spare] if self._spare is not None else [])]
        for segment in (*self._old, *empty, *([self._current] if self._current else [])):
            segments.seal(segment)
        for segment in empty:
            segment.path.unlink(missing_ok=True)

    def _create(self) -> Segment:
        self._last_number += 1
        make_private_folder(self._directory)
        return segments.create(
            self._directory, self._last_number, self._options.segment_bytes, self._reserve
        )

    # In the event loop.

    @property
    def why(self) -> str:
        """Why no request can be opened; empty where one can."""
        if not self._failed and self._room() >= 0:
            return ""
        if self._why:
            return self._why
        if self._spare is None:
            return f"{self._directory}: space for more is being reserved"
        return f"{len(self._open)} requests are open, as many as the journal has room for"

    @property
    def open_count(self) -> int:
        """Records open now."""
        return len(self._open)

    @property
    def bytes_held(self) -> int:
        """Bytes of records on disk, acknowledged ones of the present segments included."""
        current = self._current.used if self._current is not None else 0
        return sum(segment.used for segment in self._old) + current

    def open(self, entry: Entry) -> None:
        """Note a record that opens; raise JournalFullError where there is no room for its end."""
        if self._options.refuse_when_full and (why := self.why):
            self.wake.set()
            raise JournalFullError(f"what is used cannot be written down: {why}")
        self._open[entry.request] = entry
        self.touch(entry)

    def touch(self, entry: Entry) -> None:
        """Write the record as it will stand at the end of this turn."""
        self._touched[entry.request] = entry
        if self._flush_at_end_of_turn is None:
            self._flush_at_end_of_turn = asyncio.get_running_loop().call_soon(self._flush)

    def close(self, entry: Entry) -> None:
        """Note a record that closes."""
        del self._open[entry.request]
        self.touch(entry)

    def _room(self) -> int:
        """Bytes left beyond what the open records, and one more, will need."""
        if self._current is None:
            return -1
        entries = len(self._open) + 1
        if self._spare is None:
            return self._current.room - (entries * 2 + 1) * LINE_BYTES_MAX
        return min(
            self._current.room + self._spare.room - (entries * 3 + 2) * LINE_BYTES_MAX,
            # What is open is written into the next segment again, and closes there.
            self._spare.room - entries * 2 * LINE_BYTES_MAX,
        )

    def _flush(self) -> None:
        self._flush_at_end_of_turn = None
        touched, self._touched = self._touched, {}
        lines = [self._line_of(entry) for entry in touched.values()]
        if self._unwritten:
            lines = [*self._unwritten, *lines]
            self._unwritten.clear()
        try:
            self._append(lines)
        except OSError as error:
            self._fail(error)
        if lines:  # perhaps only such as had waited for the disk
            self.news.set()

    def _line_of(self, entry: Entry) -> bytes:
        return _line(OPENED if entry.request in self._open else CLOSED, entry)

    def _append(self, lines: list[bytes]) -> None:
        """Write the lines, going on in the spare segment when the current one is full."""
        begin = 0
        while begin < len(lines):
            segment = self._current
            end, size = begin, 0
            while (
                segment is not None and end < len(lines) and size + len(lines[end]) <= segment.room
            ):
                size += len(lines[end])
                end += 1
            if segment is not None and end > begin:
                self._write(segment, b"".join(lines[begin:end]), lines[begin:])
                begin = end
            elif not self._rotate(lines[begin:]):
                self._keep(lines[begin:])
                return

    def _write(self, segment: Segment, data: bytes, unwritten: list[bytes]) -> None:
        try:
            written = os.pwrite(segment.descriptor, data, segment.used)
        except OSError:
            self._keep(unwritten)
            raise
        if written < len(data):  # the next write begins at the same place
            self._keep(unwritten)
            raise OSError(errno.ENOSPC, "short write")
        segment.used += written

    def _keep(self, lines: Iterable[bytes]) -> None:
        self._failed = True
        self._unwritten.extend(line for line in lines if line.startswith(CLOSED))
        while len(self._unwritten) > UNWRITTEN_MAX:
            self._unwritten.popleft()
            self.lost += 1
        self.wake.set()

    def _rotate(self, unwritten: list[bytes]) -> bool:
        """Go on in the spare segment, which begins with all that is open."""
        if self._spare is None:
            return False
        if self._current is not None:
            self._old.append(self._current)
        self._current, self._spare = self._spare, None
        self.wake.set()
        carried = b"".join(_line(OPENED, entry) for entry in self._open.values())
        if carried and len(carried) <= self._current.room:
            self._write(self._current, carried, unwritten)
        return True

    def _fail(self, error: OSError) -> None:
        self._say(f"{self._directory}: {segments.reason(error)}")

    def _say(self, why: str) -> None:
        if why != self._why:
            logger.error("the journal cannot be written: %s", why)
        self._why = why

    # The journal's service.

    async def tend(self) -> None:
        """Make room, write what waits, note how far long requests have come."""
        await self._leave_removed()
        for segment in [segment for segment in self._old if segment.descriptor >= 0]:
            await self._pool.run(segments.seal, segment)
        if self._spare is None and await self._may_grow():
            await self._make_spare()
        if self._failed:
            self._try_again()
        now_s = self._clock.monotonic_s()
        if now_s >= self._checkpoint_s:
            self._checkpoint_s = now_s + CHECKPOINT_S
            self._checkpoint()

    async def _leave_removed(self) -> None:
        """Write no more into files that somebody has removed: nobody would ever read it."""
        in_use = [segment for segment in (self._current, self._spare) if segment is not None]
        if await self._pool.run(segments.are_there, in_use):
            return
        self._current = self._spare = None
        self._failed = True
        self._say(
            f"{self._directory}: its files were removed while they were in use; what no control "
            "plane had acknowledged is lost"
        )
        for segment in in_use:
            await self._pool.run(segments.seal, segment)

    async def _may_grow(self) -> bool:
        held = sum(segment.size for segment in self._old) + self._options.segment_bytes
        while held + self._options.segment_bytes > self._options.bytes_max:
            rolls = not (self._options.refuse_when_full and self.acknowledged)
            if not rolls or not self._old:
                self._say(
                    f"{self._directory} holds {held} bytes of usage that no control plane has "
                    "acknowledged: connect one, or raise the limit (journal.bytes_max)"
                )
                return False
            oldest = self._old.pop(0)
            held -= oldest.size
            start = self._cursor[1] if self._cursor[0] == oldest.number else 0
            unread = await self._read(oldest, start, oldest.used)
            self.lost += len(unread.closed)
            await self._pool.run(_remove, [oldest])
        return True

    async def _make_spare(self) -> None:
        try:
            # Through `_made`, so that `end` finds it when this task is cancelled meanwhile.
            await self._pool.run(lambda: self._made.append(self._create()))
        except OSError as error:
            self._fail(error)
            return
        self._spare = self._made.popleft()
        if self._current is None:
            self._rotate([])
        if not self._failed:
            self._recovered()

    def _try_again(self) -> None:
        self._failed = False
        self._touched.update(self._open)
        self._flush()
        if not self._failed:
            self._recovered()

    def _recovered(self) -> None:
        if self._why:
            logger.info("the journal can be written again")
        self._why = ""

    def _checkpoint(self) -> None:
        spare_bytes = self._options.segment_bytes // 2
        if self._room() - len(self._open) * LINE_BYTES_MAX > spare_bytes:
            for entry in self._open.values():
                self.touch(entry)

    # What closed, for the control plane.

    async def unacknowledged(self) -> tuple[tuple[Usage, ...], tuple[int, int]]:
        """Return the next closed records, in order, and the place after them for `acknowledge`.

        Raises StorageError where they cannot be read now.
        """
        self.news.clear()
        place = self._cursor
        for segment in self._known_from(place[0]):
            start = place[1] if segment.number == place[0] else 0
            while start < segment.used:
                piece = await self._read(segment, start, READ_BYTES)
                if piece.end == start:
                    break
                if piece.closed:
                    return piece.closed, (segment.number, piece.end)
                start = piece.end
            place = (segment.number, start)
        return (), place

    async def _read(self, segment: Segment, start: int, bytes_max: int) -> Read:
        try:
            return await self._pool.run(segments.read, segment.path, start, bytes_max)
        except FileNotFoundError:  # made room meanwhile, or was removed by somebody
            return Read((), segment.used)
        except OSError as error:
            raise StorageError(
                f"{segment.path} cannot be read: {segments.reason(error)}"
            ) from error

    async def acknowledge(self, place: tuple[int, int]) -> None:
        """Forget what closed before `place`: the control plane has it."""
        self._cursor = max(self._cursor, place)
        gone = [segment for segment in self._old if segment.number < place[0]]
        for segment in gone:
            self._old.remove(segment)
        await self._pool.run(_remove, gone)

    async def recent(self, count_max: int) -> tuple[Usage, ...]:
        """Return the last closed records that are still here, oldest first."""
        found: list[Usage] = []
        for segment in reversed(self._known_from(0)):
            pieces = await self._pool.run(_all_of, segment.path)
            found = [usage for piece in pieces for usage in piece.closed] + found
            if len(found) >= count_max:
                break
        return tuple(found[-count_max:])

    def _known_from(self, number: int) -> list[Segment]:
        known = [*self._old, *([self._current] if self._current is not None else [])]
        return [segment for segment in known if segment.number >= number]


def _all_of(path: Path) -> list[Read]:
    try:
        return list(segments.read_all(path, READ_BYTES))
    except FileNotFoundError:
        return []


def _remove(gone: Iterable[Segment]) -> None:
    for segment in gone:
        segments.seal(segment)
        segment.path.unlink(missing_ok=True)


def _line(kind: bytes, record: Entry | Usage) -> bytes:
    line = kind + _encode(record) + b"\n"
    if len(line) <= LINE_BYTES_MAX:
        return line
    known = msgspec.to_builtins(record)
    short = {k: v[:SHORT_CHARS] if isinstance(v, str) else v for k, v in known.items()}
    return kind + _encode(short) + b"\n"
