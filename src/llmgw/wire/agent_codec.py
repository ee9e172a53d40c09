"""The messages between agents and control planes, as protobuf."""

from typing import Final

from llmgw.core.document import DOCUMENT_BYTES_MAX, dump
from llmgw.core.fleet.assignment import Assignment, ShardSpec
from llmgw.core.fleet.report import Report
from llmgw.core.ids import NodeId, ReplicaId, ShardKey
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
from llmgw.wire.fitting import fit, split
from llmgw.wire.frames import End, Framing, Heartbeat, Piece
from llmgw.wire.messages import (
    AgentDown,
    AgentUp,
    Answer,
    Cancel,
    Handshake,
    Hello,
    Question,
    Refusal,
    Welcome,
)
from llmgw.wire.pb import agent_pb2 as pb


def _encode_up(message: AgentUp | Handshake | Framing) -> bytes:
    envelope = pb.AgentMessage()
    with sending(type(message).__name__):
        match message:
            case Hello():
                envelope.hello.CopyFrom(_hello_out(message))
            case Report():
                envelope.report = dump(message)
            case Answer(id_, lines, last, error):
                envelope.answer.CopyFrom(pb.Answer(id=id_, lines=lines, last=last, error=error))
            case Heartbeat() | End() | Piece():
                write_framing(envelope, message)
            case _:
                raise UnsendableError(f"agents do not say {type(message).__name__}")
    return envelope.SerializeToString()


def _decode_up(data: bytes) -> AgentUp | Handshake | Framing | None:
    envelope = pb.AgentMessage()
    match parse(envelope, data):
        case "hello":
            return _hello_in(envelope.hello)
        case "report":
            return document("report", Report, envelope.report, UP_BYTES_MAX)
        case "answer":
            answer = envelope.answer
            return Answer(answer.id, tuple(answer.lines), answer.last, answer.error)
        case field:
            return read_framing(envelope, field)


def _encode_down(message: AgentDown | Handshake | Framing) -> bytes:
    envelope = pb.ControlMessage()
    with sending(type(message).__name__):
        match message:
            case Welcome() | Refusal():
                write_answer_to_hello(envelope, message)
            case Assignment():
                envelope.assignment.CopyFrom(_assignment_out(message))
            case Question(id_, kind, subject, options):
                question = pb.Question(id=id_, kind=kind, subject=subject, options=options)
                envelope.question.CopyFrom(question)
            case Cancel(id_):
                envelope.cancel.CopyFrom(pb.Cancel(id=id_))
            case Heartbeat() | End() | Piece():
                write_framing(envelope, message)
            case _:
                raise UnsendableError(f"control planes do not say {type(message).__name__}")
    return envelope.SerializeToString()


def _decode_down(data: bytes) -> AgentDown | Handshake | Framing | None:
    envelope = pb.ControlMessage()
    match parse(envelope, data):
        case "welcome":
            return read_welcome(envelope)
        case "refusal":
            return read_refusal(envelope)
        case "assignment":
            return _assignment_in(envelope.assignment)
        case "question":
            question = envelope.question
            return Question(question.id, question.kind, question.subject, dict(question.options))
        case "cancel":
            return Cancel(envelope.cancel.id)
        case field:
            return read_framing(envelope, field)


def _hello_out(hello: Hello) -> pb.Hello:
    return pb.Hello(
        node=hello.node,
        name=hello.name,
        machine=hello.machine,
        boot=hello.boot,
        version=hello.version,
        term=hello.term,
        store=hello.store,
    )


def _hello_in(wire: pb.Hello) -> Hello:
    if not wire.node:
        raise MalformedError("hello.node: is empty")
    node = NodeId(wire.node)
    return Hello(node, wire.name, wire.machine, wire.boot, wire.version, wire.term, wire.store)


def _assignment_out(assignment: Assignment) -> pb.Assignment:
    return pb.Assignment(
        term=assignment.term,
        generation=assignment.generation,
        specs=[dump(spec) for spec in assignment.shards],
        keys={str(replica): key for replica, key in assignment.keys.items()},
        keep=[str(key) for key in assignment.keep],
    )


def _assignment_in(wire: pb.Assignment) -> Assignment:
    specs = tuple(
        document(f"assignment.specs[{i}]", ShardSpec, text, DOCUMENT_BYTES_MAX)
        for i, text in enumerate(wire.specs)
    )
    keys = {ReplicaId(replica): key for replica, key in wire.keys.items()}
    keep = tuple(_shard_key(f"assignment.keep[{i}]", text) for i, text in enumerate(wire.keep))
    return Assignment(wire.term, wire.generation, specs, keys, keep)


def _shard_key(field: str, text: str) -> ShardKey:
    try:
        return ShardKey.parse(text)
    except ValueError as error:
        raise MalformedError(f"{field}: not a shard key, such as k3v9qd2m7a.2.0") from error


def _fitted_up(message: AgentUp) -> tuple[AgentUp, ...]:
    with sending(type(message).__name__):
        return (fit(message),) if isinstance(message, Report) else split(message)


def _fitted_down(message: AgentDown) -> tuple[AgentDown, ...]:
    return (message,)


UP: Final[Codec[AgentUp]] = Codec("agent", UP_BYTES_MAX, _fitted_up, _encode_up, _decode_up)
DOWN: Final[Codec[AgentDown]] = Codec(
    "control plane", DOWN_BYTES_MAX, _fitted_down, _encode_down, _decode_down
)
