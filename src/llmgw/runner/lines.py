"""From an engine's raw output to lines without secrets, however the bytes were split on the way.

`Blanker` works on the stream before it is cut into lines, so a secret is found across reads, and
across the places where a long line is cut. It holds back only what may be the beginning of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BLANKED: Final = b"***"
LINE_BYTES_MAX: Final = 8 * 1024

# Control characters (all but tab, line feed and carriage return) could command a reader's terminal.
_CONTROL: Final = bytes(set(range(32)) - {9, 10, 13}) + b"\x7f"
_PRINTABLE: Final = bytes.maketrans(_CONTROL, b"?" * len(_CONTROL))


class Blanker:
    """Replaces every occurrence of the secrets, overlapping ones too, by `***`."""

    __slots__ = ("_blanking", "_covered", "_held", "_longest", "_secrets")

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""
        self._covered = 0  # so many of the first held bytes belong to a secret already blanked
        self._blanking = False  # the last byte given out was the end of BLANKED for such a secret

    @property
    def held_bytes(self) -> int:
        """How much of what was fed is not given out yet."""
        return len(self._held)

    @property
    def is_between_secrets(self) -> bool:
        """Whether what is held may be read again by a fresh Blanker with the same result."""
        return self._covered == 0

    def skip(self) -> None:
        """Bytes were lost before the next feed: blank what could be the rest of a cut secret."""
        self._held = b""
        self._covered = max(0, self._longest - 1)
        self._blanking = False

    def feed(self, data: bytes) -> bytes:
        """Take more bytes, give out those that can no longer be part of a secret, blanked."""
        text = self._held + data
        end = len(text) - self._open_bytes(text)
        spans = self._spans(text)
        out = self._blank(text, spans, end)
        begun = [stop for start, stop in spans if start < end or (start == 0 and self._covered)]
        self._covered = max([0, *(stop - end for stop in begun)])
        self._held = text[end:]
        return out

    def flush(self) -> bytes:
        """Give out the rest: the stream has ended, so what is held is no secret."""
        text, self._held = self._held, b""
        return self._blank(text, self._spans(text), len(text))

    def _open_bytes(self, text: bytes) -> int:
        """The length of the longest end of `text` that could be the beginning of a secret."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[len(text) - length :]
            if any(len(secret) > length and secret.startswith(tail) for secret in self._secrets):
                return length
        return 0

    def _spans(self, text: bytes) -> list[tuple[int, int]]:
        """Where secrets are, as disjoint spans in order; touching ones stay apart."""
        found = [(0, self._covered)] if self._covered else []
        for secret in self._secrets:
            start = text.find(secret)
            while start >= 0:
                found.append((start, start + len(secret)))
                start = text.find(secret, start + 1)
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return merged

    def _blank(self, text: bytes, spans: Sequence[tuple[int, int]], end: int) -> bytes:
        out = []
        at = 0
        for start, stop in spans:
            if start >= end:
                break
            out.append(text[at:start])
            if not (start == 0 and self._covered and self._blanking):
                out.append(BLANKED)
            at = min(stop, end)
            self._blanking = stop > end
        if at < end:
            out.append(text[at:end])
            self._blanking = False
        return b"".join(out)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output, or a piece of one: `continues` says that it goes on an earlier piece."""

    text: bytes
    continues: bool = False


class LineCutter:
    """Cuts blanked bytes at LF, CR and CRLF into bounded, printable lines; empty ones are dropped.

    A carriage return ends a line too, or progress bars would be one line that never ends.
    """

    __slots__ = ("_continues", "_partial")

    def __init__(self) -> None:
        self._partial = b""
        self._continues = False

    @property
    def partial_bytes(self) -> int:
        """The length of the unfinished line."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes; an unfinished line that is too long comes out whole."""
        lines: list[Line] = []
        pieces = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        self._partial = pieces.pop()
        for piece in pieces:
            lines.extend(self._bounded(piece))
            self._continues = False
        if len(self._partial) > LINE_BYTES_MAX:
            lines.extend(self.flush())
        return lines

    def flush(self) -> list[Line]:
        """The unfinished line as it is; what follows continues it."""
        lines = self._bounded(self._partial)
        self._partial = b""
        self._continues = self._continues or bool(lines)
        return lines

    def _bounded(self, piece: bytes) -> list[Line]:
        piece = piece.translate(_PRINTABLE)
        return [
            Line(piece[at : at + LINE_BYTES_MAX], continues=self._continues or at > 0)
            for at in range(0, len(piece), LINE_BYTES_MAX)
        ]
