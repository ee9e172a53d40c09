"""Meters: they watch an answer's bytes pass, and keep a record right at every moment."""

import zlib
from typing import Final, Protocol

from llmgw.core.traffic.sse import EventFramer, EventKind, has_text, kind_of
from llmgw.core.traffic.tokens import (
    TAIL_BYTES,
    WHOLE_ANSWER_BYTES_MAX,
    estimate,
    look_at,
    tokens_in,
)
from llmgw.gateway.entry import Entry

INFLATED_BYTES_MAX: Final = 1024 * 1024
"""Of one piece of a compressed answer: what exceeds it goes unmetered, not unbounded."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class Meter(Protocol):
    """Watches the body of one answer."""

    failure: str | None
    """What the engine said when it failed in the midst of an answer."""
    between_events: bool
    """A stream that breaks off here can still carry an event of ours."""

    def pass_on(self, data: bytes) -> bytes:
        """Look at what came and return what the client gets of it."""
        ...

    def finish(self) -> bytes:
        """The answer is whole; return what was held back."""
        ...


class StreamMeter:
    """Follows a stream's events; removes the usage event that the gateway itself asked for."""

    def __init__(self, entry: Entry, *, remove_usage: bool) -> None:
        self.failure: str | None = None
        self.between_events = True
        self.ended = False
        """The engine has said that it is done, or what all of it took."""
        self._entry = entry
        self._remove_usage = remove_usage
        self._framer = EventFramer()

    def pass_on(self, data: bytes) -> bytes:
        """See Meter."""
        events = self._framer.feed(data)
        if not self._remove_usage:
            for event in events:
                self._look(event)
            self.between_events = not self._framer.rest
            return data
        kept = [event for event in events if not self._look(event)]
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def finish(self) -> bytes:
        """See Meter."""
        rest = self._framer.rest
        if rest and self._look(rest):
            return b""
        return rest if self._remove_usage else b""

    def _look(self, event: bytes) -> bool:
        """Meter one event; whether it is to be removed."""
        kind = kind_of(event)
        if kind is EventKind.TEXT:
            self._entry.add_guess()
        elif kind is EventKind.END:
            self.ended = True
        elif kind is not EventKind.OTHER:
            return self._read(event)
        return False

    def _read(self, event: bytes) -> bool:
        seen = look_at(event)
        if seen.error is not None and not seen.blames_request:
            self.failure = seen.error
        if seen.tokens is not None:
            self._entry.take(seen.tokens)
            self.ended = self.ended or seen.alone  # the last that an engine says of an answer
            return seen.alone and self._remove_usage
        if has_text(event):
            self._entry.add_guess()
        return False


class AnswerMeter:
    """Keeps an answer that is not streamed, or the end of a long one, and reads its usage."""

    def __init__(self, entry: Entry, *, writes_text: bool) -> None:
        self.failure: str | None = None
        self.between_events = False
        self._entry = entry
        self._writes_text = writes_text
        self._kept = bytearray()
        self._count = 0

    def pass_on(self, data: bytes) -> bytes:
        """See Meter."""
        self._count += len(data)
        self._kept += data
        if len(self._kept) > WHOLE_ANSWER_BYTES_MAX:
            del self._kept[:-TAIL_BYTES]
        if self._writes_text:
            self._entry.completion_tokens = estimate(self._count)
        return data

    def finish(self) -> bytes:
        """See Meter."""
        tokens = tokens_in(bytes(self._kept))
        if tokens is not None:
            self._entry.take(tokens)
        return b""


class CompressedMeter:
    """Shows what is inside a compressed answer to another meter; the bytes pass as they are."""

    def __init__(self, inner: Meter) -> None:
        self.failure: str | None = None
        self.between_events = False
        self._inner = inner
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._readable = True

    def pass_on(self, data: bytes) -> bytes:
        """See Meter."""
        if self._readable:
            try:
                self._inner.pass_on(self._inflate.decompress(data, INFLATED_BYTES_MAX))
            except zlib.error:
                self._readable = False
            self._readable = self._readable and not self._inflate.unconsumed_tail
            self.failure = self._inner.failure
        return data

    def finish(self) -> bytes:
        """See Meter."""
        if self._readable:
            self._inner.finish()
        return b""
