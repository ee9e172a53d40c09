"""The messages between gateways and control planes, as protobuf."""

from typing import Final

from llmgw.core.document import DOCUMENT_BYTES_MAX, dump
from llmgw.core.traffic.snapshot import Change, Snapshot
from llmgw.core.traffic.usage import Usage
from llmgw.wire.codec import (
    DOWN_BYTES_MAX,
    UP_BYTES_MAX,
    Codec,
    document,
    parse,
    read_framing,
    read_refusal,
    read_welcome,
    sending,
    write_answer_to_hello,
    write_framing,
)
from llmgw.wire.errors import MalformedError, UnsendableError
from llmgw.wire.frames import End, Framing, Heartbeat, Piece
from llmgw.wire.messages import (
    GatewayDown,
    GatewayHello,
    GatewayUp,
    Handshake,
    Load,
    Refusal,
    UsageBatch,
    UsageStored,
    Welcome,
)
from llmgw.wire.pb import gateway_pb2 as pb


def _encode_up(message: GatewayUp | Handshake | Framing) -> bytes:
    envelope = pb.GatewayMessage()
    with sending(type(message).__name__):
        match message:
            case GatewayHello(gateway, term, revision):
                hello = pb.GatewayHello(gateway=gateway, term=term, revision=revision)
                envelope.hello.CopyFrom(hello)
            case Load(term, revision, in_flight):
                load = pb.Load(term=term, revision=revision, in_flight=in_flight)
                envelope.load.CopyFrom(load)
            case UsageBatch(batch, records):
                documents = [dump(record) for record in records]
                envelope.usage.CopyFrom(pb.UsageBatch(batch=batch, records=documents))
            case Heartbeat() | End() | Piece():
                write_framing(envelope, message)
            case _:
                raise UnsendableError(f"gateways do not say {type(message).__name__}")
    return envelope.SerializeToString()


def _decode_up(data: bytes) -> GatewayUp | Handshake | Framing | None:
    envelope = pb.GatewayMessage()
    match parse(envelope, data):
        case "hello":
            hello = envelope.hello
            if not hello.gateway:
                raise MalformedError("hello.gateway: is empty")
            return GatewayHello(hello.gateway, hello.term, hello.revision)
        case "load":
            load = envelope.load
            return Load(load.term, load.revision, dict(load.in_flight))
        case "usage":
            records = tuple(
                document(f"usage.records[{i}]", Usage, text, DOCUMENT_BYTES_MAX)
                for i, text in enumerate(envelope.usage.records)
            )
            return UsageBatch(envelope.usage.batch, records)
        case field:
            return read_framing(envelope, field)


def _encode_down(message: GatewayDown | Handshake | Framing) -> bytes:
    envelope = pb.PublisherMessage()
    with sending(type(message).__name__):
        match message:
            case Welcome() | Refusal():
                write_answer_to_hello(envelope, message)
            case Snapshot():
                envelope.snapshot = dump(message)
            case Change():
                envelope.change = dump(message)
            case UsageStored(batch):
                envelope.stored.CopyFrom(pb.UsageStored(batch=batch))
            case Heartbeat() | End() | Piece():
                write_framing(envelope, message)
            case _:
                raise UnsendableError(f"publishers do not say {type(message).__name__}")
    return envelope.SerializeToString()


def _decode_down(data: bytes) -> GatewayDown | Handshake | Framing | None:
    envelope = pb.PublisherMessage()
    match parse(envelope, data):
        case "welcome":
            return read_welcome(envelope)
        case "refusal":
            return read_refusal(envelope)
        case "snapshot":
            return document("snapshot", Snapshot, envelope.snapshot, DOWN_BYTES_MAX)
        case "change":
            return document("change", Change, envelope.change, DOWN_BYTES_MAX)
        case "stored":
            return UsageStored(envelope.stored.batch)
        case field:
            return read_framing(envelope, field)


def _fitted_up(message: GatewayUp) -> tuple[GatewayUp, ...]:
    return (message,)


def _fitted_down(message: GatewayDown) -> tuple[GatewayDown, ...]:
    return (message,)


UP: Final[Codec[GatewayUp]] = Codec("gateway", UP_BYTES_MAX, _fitted_up, _encode_up, _decode_up)
DOWN: Final[Codec[GatewayDown]] = Codec(
    "control plane", DOWN_BYTES_MAX, _fitted_down, _encode_down, _decode_down
)
