"""Every message survives its codec; what is no message is refused with the field's name."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.document import dump
from llmgw.core.fleet.report import Report
from llmgw.core.ids import LinkId, NodeId
from llmgw.core.traffic.snapshot import Snapshot
from llmgw.wire import agent_codec, gateway_codec
from llmgw.wire.codec import UP_BYTES_MAX, Codec
from llmgw.wire.errors import MalformedError, UnsendableError
from llmgw.wire.fitting import REPORT_BYTES_MAX
from llmgw.wire.frames import PIECE_BYTES, End, Heartbeat, Piece
from llmgw.wire.messages import (
    AgentUp,
    Answer,
    GatewayHello,
    Hello,
    Load,
    Question,
    UsageStored,
    Welcome,
)
from llmgw.wire.pb import agent_pb2, gateway_pb2
from tests.wire import values

framings = (
    st.just(Heartbeat())
    | st.builds(End, values.texts)
    | st.builds(Piece, st.binary(max_size=100), st.integers(0, 2**32 - 1), st.booleans())
)


@given(values.agent_ups | framings)
def test_what_an_agent_says_is_heard(message: AgentUp | Hello | Heartbeat | End | Piece) -> None:
    assert agent_codec.UP.decode(agent_codec.UP.encode(message)) == message


@given(values.agent_downs | framings)
def test_what_an_agent_is_told_is_heard(message: Question | Welcome) -> None:
    assert agent_codec.DOWN.decode(agent_codec.DOWN.encode(message)) == message


@given(values.gateway_ups | framings)
def test_what_a_gateway_says_is_heard(message: Load | GatewayHello) -> None:
    assert gateway_codec.UP.decode(gateway_codec.UP.encode(message)) == message


@given(values.gateway_downs | framings)
def test_what_a_gateway_is_told_is_heard(message: Snapshot | UsageStored) -> None:
    assert gateway_codec.DOWN.decode(gateway_codec.DOWN.encode(message)) == message


@given(values.reports, values.json_values)
def test_members_that_this_version_does_not_know_pass_through_it(
    report: Report, future: object
) -> None:
    document = json.loads(dump(report))
    document["tomorrow"] = future
    document["inventory"]["tomorrow"] = future
    for shard in document["shards"]:
        shard["tomorrow"] = future
    wire = agent_pb2.AgentMessage(report=json.dumps(document)).SerializeToString()
    heard = agent_codec.UP.decode(wire)
    assert isinstance(heard, Report)
    again = agent_pb2.AgentMessage.FromString(agent_codec.UP.encode(heard))
    assert json.loads(again.report) == document


@given(values.specs, values.json_values)
def test_members_of_a_spec_pass_through_an_assignment(spec: object, future: object) -> None:
    document = json.loads(dump(spec))  # type: ignore[arg-type]
    document["tomorrow"] = future
    wire = agent_pb2.ControlMessage(
        assignment=agent_pb2.Assignment(term=1, specs=[json.dumps(document)])
    )
    heard = agent_codec.DOWN.decode(wire.SerializeToString())
    again = agent_pb2.ControlMessage.FromString(agent_codec.DOWN.encode(heard))  # type: ignore[arg-type]
    assert json.loads(again.assignment.specs[0]) == document


@given(st.binary(max_size=300))
@pytest.mark.parametrize(
    "codec",
    [agent_codec.UP, agent_codec.DOWN, gateway_codec.UP, gateway_codec.DOWN],
    ids=["agent up", "agent down", "gateway up", "gateway down"],
)
def test_any_bytes_are_a_message_or_malformed(codec: Codec[object], data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        codec.decode(data)


def _report_with(**changed: object) -> bytes:
    document = {**json.loads(dump(values.report(values.shard_report()))), **changed}
    return agent_pb2.AgentMessage(report=json.dumps(document)).SerializeToString()


def _assignment(**fields: object) -> bytes:
    assignment = agent_pb2.Assignment(**fields)  # type: ignore[arg-type]
    return agent_pb2.ControlMessage(assignment=assignment).SerializeToString()


def _welcome(link: str, heartbeat_s: float, silent_after_s: float) -> bytes:
    message = agent_pb2.ControlMessage()
    message.welcome.link = link
    message.welcome.heartbeat_s = heartbeat_s
    message.welcome.silent_after_s = silent_after_s
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("codec", "data", "named"),
    [
        (agent_codec.UP, b"\xff\xff\xff", "AgentMessage"),
        (agent_codec.UP, _report_with(term="one"), r"report: .*\$\.term"),
        (agent_codec.UP, _report_with(shards=[{"key": 1}]), r"report: .*\$\.shards\[0\]"),
        (agent_codec.UP, agent_pb2.AgentMessage(report="{").SerializeToString(), "report: "),
        (
            agent_codec.UP,
            agent_pb2.AgentMessage(report="[" * 100_000).SerializeToString(),
            "report",
        ),
        (
            agent_codec.UP,
            agent_pb2.AgentMessage(hello=agent_pb2.Hello(name="x")).SerializeToString(),
            "hello.node: is empty",
        ),
        (
            gateway_codec.UP,
            gateway_pb2.GatewayMessage(hello=gateway_pb2.GatewayHello()).SerializeToString(),
            "hello.gateway: is empty",
        ),
        (agent_codec.DOWN, _assignment(specs=["{}"]), r"assignment\.specs\[0\]: .*replica"),
        (agent_codec.DOWN, _assignment(keep=["r.1.0", "r"]), r"assignment\.keep\[1\]"),
        (agent_codec.DOWN, _welcome("", 1, 2), r"welcome\.link"),
        (agent_codec.DOWN, _welcome("l", 0.001, 2), r"welcome\.heartbeat_s"),
        (agent_codec.DOWN, _welcome("l", 2, 2), r"welcome\.heartbeat_s"),
        (agent_codec.DOWN, _welcome("l", float("nan"), 2), r"welcome\.heartbeat_s"),
        (agent_codec.DOWN, _welcome("l", 1, float("inf")), r"welcome\.heartbeat_s"),
        (
            gateway_codec.DOWN,
            gateway_pb2.PublisherMessage(snapshot='{"routes": 1}').SerializeToString(),
            r"snapshot: .*\$\.routes",
        ),
        (
            gateway_codec.UP,
            gateway_pb2.GatewayMessage(
                usage=gateway_pb2.UsageBatch(batch=1, records=["{}"])
            ).SerializeToString(),
            r"usage\.records\[0\]: ",
        ),
    ],
)
def test_a_malformed_message_is_refused_with_the_name_of_the_field(
    codec: Codec[object], data: bytes, named: str
) -> None:
    with pytest.raises(MalformedError, match=named):
        codec.decode(data)


def test_an_error_does_not_repeat_a_key() -> None:
    with pytest.raises(MalformedError) as caught:
        agent_codec.DOWN.decode(_assignment(keys={"r1": "S3CRET"}, keep=["S3CRET"]))
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"\xf8\x3f\x01"], ids=["empty", "a field that nobody has yet"]
)
def test_a_message_of_a_newer_version_is_nothing(data: bytes) -> None:
    assert agent_codec.UP.decode(data) is None
    assert gateway_codec.DOWN.decode(data) is None


@pytest.mark.parametrize(
    "message",
    [
        Hello(NodeId("n\udcff"), "n", "m", "b", "v", 0),
        Hello(NodeId("n"), "n", "m", "b", "v", -1),
        Hello(NodeId("n"), "n", "m", "b", "v", 2**64),
        values.report(values.shard_report(spec=values.spec(argument="\udcff"))),
    ],
)
def test_what_no_message_can_hold_is_unsendable(message: Hello | Report) -> None:
    with pytest.raises(UnsendableError, match=type(message).__name__):
        agent_codec.UP.encode(message)


def test_each_end_says_only_what_is_its_to_say() -> None:
    with pytest.raises(UnsendableError, match="agents do not say Welcome"):
        agent_codec.UP.encode(Welcome(LinkId("l"), 1, "s", 1, 2))
    with pytest.raises(UnsendableError, match="control planes do not say Answer"):
        agent_codec.DOWN.encode(Answer(1))  # type: ignore[arg-type]


def test_bounds_fit_into_each_other() -> None:
    assert PIECE_BYTES < REPORT_BYTES_MAX < UP_BYTES_MAX
