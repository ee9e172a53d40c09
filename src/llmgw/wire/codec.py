"""What the codecs of all streams share: their shape, and the messages that every stream has."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from llmgw.core.document import Document, InvalidDocumentError, load
from llmgw.core.ids import LinkId
from llmgw.wire.errors import MalformedError, UnsendableError
from llmgw.wire.frames import End, Framing, Heartbeat, Piece
from llmgw.wire.messages import Handshake, Refusal, Welcome
from llmgw.wire.pb.agent_pb2 import AgentMessage, ControlMessage
from llmgw.wire.pb.gateway_pb2 import GatewayMessage, PublisherMessage

UP_BYTES_MAX: Final = 16 * 1024 * 1024
"""One message of an agent or a gateway: they are many, and must not fill a control plane."""
DOWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""One message of a control plane: a snapshot of 10,000 routes with keys has about 10 MB."""
HEARTBEAT_S_MIN: Final = 0.01
"""A control plane must not make its callers spin."""

M = TypeVar("M")
D = TypeVar("D", bound=Document)
Envelope = AgentMessage | ControlMessage | GatewayMessage | PublisherMessage


@dataclass(frozen=True, slots=True)
class Codec(Generic[M]):
    """How the messages of one direction of a stream are written and read."""

    name: str
    bytes_max: int
    """Of one message, before it is cut into pieces."""
    fitted: Callable[[M], Sequence[M]]
    """The same news in messages that are small enough."""
    encode: Callable[[M | Handshake | Framing], bytes]
    """Raises UnsendableError."""
    decode: Callable[[bytes], M | Handshake | Framing | None]
    """Raises MalformedError; None for a kind of message that a newer version must have added."""


@contextmanager
def sending(name: str) -> Iterator[None]:
    """Turn what protobuf and JSON say of a value that they cannot hold into an UnsendableError."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise UnsendableError(f"{name} cannot be sent: {error}") from error


def parse(envelope: Envelope, data: bytes) -> str | None:
    """Read `data` into the envelope and return the name of the field that is set."""
    try:
        envelope.ParseFromString(data)
    except DecodeError as error:
        raise MalformedError(f"{type(envelope).__name__}: not such a message: {error}") from error
    field: str | None = envelope.WhichOneof("what")
    return field


def document(field: str, kind: type[D], text: str, bytes_max: int) -> D:
    """Read a document that came in `field`."""
    try:
        return load(kind, text, bytes_max)
    except InvalidDocumentError as error:
        raise MalformedError(f"{field}: {error}") from error
    except RecursionError as error:
        raise MalformedError(f"{field}: is nested too deeply") from error


def write_framing(envelope: Envelope, message: Framing) -> None:
    """Put in what links say for themselves."""
    match message:
        case Heartbeat():
            envelope.heartbeat.SetInParent()
        case End(why):
            envelope.end.why = why
            envelope.end.SetInParent()
        case Piece(data, index, last):
            envelope.piece.data = data
            envelope.piece.index = index
            envelope.piece.last = last
            envelope.piece.SetInParent()


def read_framing(envelope: Envelope, field: str | None) -> Framing | None:
    """Take out what links say for themselves."""
    match field:
        case "heartbeat":
            return Heartbeat()
        case "end":
            return End(envelope.end.why)
        case "piece":
            return Piece(envelope.piece.data, envelope.piece.index, envelope.piece.last)
        case _:
            return None


def write_answer_to_hello(
    envelope: ControlMessage | PublisherMessage, message: Welcome | Refusal
) -> None:
    """Put in the first message downwards."""
    match message:
        case Refusal(why, retry_after_s):
            envelope.refusal.why = why
            envelope.refusal.retry_after_s = retry_after_s
            envelope.refusal.SetInParent()
        case Welcome():
            envelope.welcome.link = message.link
            envelope.welcome.term = message.term
            envelope.welcome.store = message.store
            envelope.welcome.heartbeat_s = message.heartbeat_s
            envelope.welcome.silent_after_s = message.silent_after_s
            envelope.welcome.no_ledger = not message.ledger


def read_welcome(envelope: ControlMessage | PublisherMessage) -> Welcome:
    """Take out a welcome whose deadlines can be kept."""
    wire = envelope.welcome
    if not wire.link:
        raise MalformedError("welcome.link: is empty")
    if not HEARTBEAT_S_MIN <= wire.heartbeat_s < wire.silent_after_s < math.inf:
        raise MalformedError(
            f"welcome.heartbeat_s: {wire.heartbeat_s} must be {HEARTBEAT_S_MIN} at least and below "
            f"silent_after_s, which is {wire.silent_after_s}"
        )
    return Welcome(
        LinkId(wire.link),
        wire.term,
        wire.store,
        wire.heartbeat_s,
        wire.silent_after_s,
        ledger=not wire.no_ledger,
    )


def read_refusal(envelope: ControlMessage | PublisherMessage) -> Refusal:
    """Take out a refusal."""
    wire = envelope.refusal
    if not 0 <= wire.retry_after_s < math.inf:
        raise MalformedError(f"refusal.retry_after_s: {wire.retry_after_s} is not a wait")
    return Refusal(wire.why, wire.retry_after_s)
