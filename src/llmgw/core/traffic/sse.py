"""Server-sent events as bytes: framing across any cut, and cheap searches for the few that matter.

A gateway sends the bytes on as they came, so nothing here decodes or rebuilds them. Framing is
followed, and of each event only its kind is found, by searches; the few whose kind matters are
then read properly. In JSON a quote inside a string is escaped, so `"usage"` with bare quotes is
never text that a model wrote inside a longer string; what such a search finds may still be a whole
string, which is why it only leads to the proper reading.
"""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

from llmgw.core.errors import UpstreamFailedError

EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# CR, LF or CRLF and nothing else: str.splitlines also cuts at U+2028, which models do emit.
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")

# Two line ends. A CR that is the last byte so far may be half of a CRLF, so it ends nothing yet.
_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))")
_EVENT_END_BYTES_MAX: Final = 4

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|refusal|arguments)"\s*:\s*"(?!")'
)
_DONE: Final = b"[DONE]"
_DONE_EVENT_BYTES_MAX: Final = 64


class EventTooLargeError(UpstreamFailedError):
    """The engine sent an event larger than EVENT_BYTES_MAX."""

    code = "upstream_event_too_large"


class EventFramer:
    """Feed chunks cut anywhere; get whole events, each with the blank line that ends it.

    The events and `rest`, joined, are exactly the bytes that were fed.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def rest(self) -> bytes:
        """What has come of an event that has not ended."""
        return bytes(self._tail)

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next chunk and return the events it completes.

        Each byte is looked at once, however the stream is cut. Raises EventTooLargeError, after
        which the framer is of no further use.
        """
        tail = self._tail
        if not tail and b"\r" not in chunk and chunk.find(b"\n\n") == len(chunk) - 2 >= 0:
            return (chunk,)  # what engines nearly always send: one whole event
        position = max(len(tail) - _EVENT_END_BYTES_MAX + 1, 0)
        tail += chunk
        begin = 0
        events = []
        while end := _EVENT_END.search(tail, position):
            position = end.end()
            events.append(bytes(tail[begin:position]))
            begin = position
        del tail[:begin]
        if len(tail) > EVENT_BYTES_MAX:
            raise EventTooLargeError(
                f"an event of the engine's stream exceeds {EVENT_BYTES_MAX} bytes"
            )
        return events


class EventKind(Enum):
    """What an event may mean to a meter."""

    TEXT = "text"
    """It carries something that the model wrote."""
    USAGE = "usage"
    """It may carry a usage object: read it."""
    ERROR = "error"
    """It may carry an error: read it."""
    END = "end"
    """The engine's `[DONE]`."""
    OTHER = "other"


def kind_of(event: bytes) -> EventKind:
    """Return what to do with an event, by searches only."""
    if b'"usage"' in event and _USAGE.search(event):
        return EventKind.USAGE
    if b'"error"' in event or b"event:" in event:
        return EventKind.ERROR
    if len(event) < _DONE_EVENT_BYTES_MAX and _DONE in event and fields_of(event)[1] == "[DONE]":
        return EventKind.END
    if _TEXT.search(event):
        return EventKind.TEXT
    return EventKind.OTHER


def has_text(event: bytes) -> bool:
    """Whether the event carries something that the model wrote."""
    return _TEXT.search(event) is not None


def fields_of(event: bytes) -> tuple[str, str]:
    """Read one event properly: its name, and its data lines joined with newlines and stripped."""
    name = ""
    data = []
    for line in _LINE_END.split(event.removeprefix(_BYTE_ORDER_MARK)):
        field, _, value = line.decode("utf-8", "replace").partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif field == "event":
            name = value.removeprefix(" ")
    return name, "\n".join(data).strip()
