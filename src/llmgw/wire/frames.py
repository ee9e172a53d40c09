"""Large messages in pieces: cut by the sender, joined by the receiver, both within bounds.

A piece is small against what a slow line carries within a heartbeat, so a large message does not
make its sender look silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from llmgw.wire.errors import MalformedError

FRAME_BYTES_MAX: Final = 1024 * 1024
"""What gRPC takes as one message, in both directions."""
PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Shows that the sender lives."""


@dataclass(frozen=True, slots=True)
class End:
    """The last message of a link that ends in good order."""

    why: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message; index 0 drops whatever was unfinished."""

    data: bytes
    index: int
    last: bool


Framing = Heartbeat | End | Piece
"""What links say for themselves."""


def pieces(data: bytes) -> Iterator[Piece]:
    """Cut a serialized message."""
    count = max(1, -(-len(data) // PIECE_BYTES))
    for index in range(count):
        start = index * PIECE_BYTES
        yield Piece(data[start : start + PIECE_BYTES], index, index == count - 1)


class Joiner:
    """Joins the pieces of one message after the other."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, piece: Piece) -> bytes | None:
        """Return the message that this piece completes; raise MalformedError for a wrong piece."""
        if piece.index == 0:
            self._drop()
        if piece.index != len(self._parts):
            raise MalformedError(f"piece: number {piece.index} came after {len(self._parts)}")
        self._parts.append(piece.data)
        self._bytes += len(piece.data)
        if self._bytes > self._bytes_max:
            raise MalformedError(f"piece: its message has more than {self._bytes_max} bytes")
        if not piece.last:
            return None
        whole = b"".join(self._parts)
        self._drop()
        return whole

    def _drop(self) -> None:
        self._parts.clear()
        self._bytes = 0
