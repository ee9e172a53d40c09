"""Agents attach, speak and are heard; every link ends with a reason at both ends."""

import asyncio
from dataclasses import replace

import grpc.aio
import pytest

from llmgw.core.fleet.assignment import Assignment
from llmgw.core.fleet.report import Report
from llmgw.core.ids import ReplicaId
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import AgentLink, ControlLink
from llmgw.wire.errors import (
    CannotListenError,
    LinkLostError,
    LinkRefusedError,
    UnsendableError,
)
from llmgw.wire.frames import FRAME_BYTES_MAX
from llmgw.wire.messages import Answer, Cancel, Question, Refusal
from llmgw.wire.pb import agent_pb2 as pb
from llmgw.wire.pb import link_pb2
from tests.wire import values
from tests.wire.ends import (
    CLOCK,
    DIAL,
    HEARTBEAT_S,
    LISTEN,
    Control,
    attach,
    raw_agent,
    serving,
)


async def test_an_agent_reports_and_is_assigned() -> None:
    control = Control()
    report = values.report(values.shard_report(spec=values.spec()))
    assignment = Assignment(3, 1, (values.spec(),), {ReplicaId("r1"): "key"})
    async with serving(control) as server, attach(server.ports[0]) as link:
        assert link.peer.term == 3
        assert link.id == link.peer.link
        await link.send(report)
        await eventually(lambda: control.heard == [(link.id, report)])
        (agent,) = server.links
        assert agent.id == link.id
        assert agent.peer.node == "n1"
        await agent.send(assignment)
        await agent.send(Question(1, "logs", "r1.1.0", {"lines": "10"}))
        await agent.send(Cancel(1))
        assert await link.receive() == assignment
        assert await link.receive() == Question(1, "logs", "r1.1.0", {"lines": "10"})
        assert await link.receive() == Cancel(1)


async def test_both_ends_know_why_a_link_ended() -> None:
    control = Control()
    async with serving(control) as server:
        async with attach(server.ports[0]) as link:
            await eventually(lambda: len(control.live) == 1)
            await link.close("the agent stops")
        await eventually(lambda: not control.using)
        assert link.ended_why == "the agent stops"
        assert control.links[0].ended_why == "node n1 ended the link: the agent stops"
        async with attach(server.ports[0]) as link:
            await eventually(lambda: len(control.live) == 1)
            await control.live[0].close("the node was removed")
            with pytest.raises(LinkLostError, match="ended the link: the node was removed"):
                await link.receive()
            with pytest.raises(LinkLostError, match="ended the link: the node was removed"):
                await link.send(Answer(1))
            assert [message async for message in link] == []


async def test_a_server_that_stops_says_so_and_leaves_nothing() -> None:
    control = Control()
    tasks_before = len(asyncio.all_tasks())
    async with serving(control) as server:
        port = server.ports[0]
        async with attach(port) as one, attach(port, "n2") as two:
            await eventually(lambda: len(server.links) == 2)
            agents = server.links
            server_task = next(t for t in asyncio.all_tasks() if t.get_name() == server.name)
            server_task.cancel()
            for link in (one, two):
                with pytest.raises(LinkLostError, match="ended the link: it stops"):
                    await asyncio.wait_for(link.receive(), 5.0)
            await eventually(server_task.done)
            assert not control.using
            assert all(agent.ended_why == "it stops" for agent in agents)
    await eventually(lambda: len(asyncio.all_tasks()) == tasks_before)


async def test_a_node_that_attaches_again_replaces_its_old_link() -> None:
    control = Control()
    async with serving(control) as server, attach(server.ports[0]) as old:
        await eventually(lambda: len(control.live) == 1)
        async with attach(server.ports[0]) as new:
            await eventually(lambda: bool(old.ended_why))
            assert f"attached again, as link {new.id}" in old.ended_why
            await eventually(lambda: control.using == [new.id])
            with pytest.raises(LinkLostError):
                await old.send(Answer(1, ("from the past",)))
            await new.send(Answer(2))
            await eventually(lambda: len(control.heard) == 1)
            assert control.heard == [(new.id, Answer(2))]
            assert [link.id for link in server.links] == [new.id]
    assert control.most_per_node == 1


async def test_the_old_link_is_let_go_before_the_new_one_is_used() -> None:
    control = Control(deaf=asyncio.Event())
    assert control.deaf is not None
    async with serving(control) as server, attach(server.ports[0]) as old:
        await eventually(lambda: control.using == [old.id])
        async with asyncio.TaskGroup() as group:

            async def again() -> None:
                async with attach(server.ports[0]) as new:
                    await eventually(lambda: control.using == [new.id])

            group.create_task(again())
            await eventually(lambda: bool(control.links[0].ended_why))
            until_s = asyncio.get_running_loop().time() + 0.3
            await eventually(lambda: asyncio.get_running_loop().time() > until_s)
            assert control.using == [old.id]
            control.deaf.set()


async def test_what_an_ended_link_has_heard_is_dropped() -> None:
    control = Control(deaf=asyncio.Event())
    assert control.deaf is not None
    async with serving(control) as server, attach(server.ports[0]) as link:
        await eventually(lambda: len(control.live) == 1)
        await link.send(Answer(1))
        await link.send(Answer(2))
        control.links[0].end("it is stale")
        control.deaf.set()
        await eventually(lambda: not control.using)
    assert control.heard == []


async def test_a_refusal_says_why_and_when_to_ask_again() -> None:
    control = Control(refusal=Refusal("this control plane does not lead", 7.5))
    async with serving(control) as server:
        with pytest.raises(LinkRefusedError, match="does not lead") as caught:
            async with attach(server.ports[0]):
                pass
        assert caught.value.retry_after_s == 7.5
        assert server.links == ()


async def test_no_more_links_than_the_bound_but_a_known_node_may_return() -> None:
    control = Control()
    async with serving(control, replace(LISTEN, links_max=2)) as server:
        port = server.ports[0]
        async with attach(port, "n1") as first, attach(port, "n2"):
            with pytest.raises(LinkRefusedError, match="2 links, which is its limit"):
                async with attach(port, "n3"):
                    pass
            async with attach(port, "n1"):
                await eventually(lambda: bool(first.ended_why))
                assert len(server.links) == 2


async def test_nobody_listens() -> None:
    with pytest.raises(LinkLostError, match=r"cannot reach control plane at 127\.0\.0\.1:9:"):
        async with attach(9):
            pass


async def test_what_listens_is_no_control_plane() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    try:
        with pytest.raises(LinkLostError, match="no control plane of this version"):
            async with attach(port):
                pass
    finally:
        await other.stop(0)


async def test_two_servers_cannot_listen_on_one_port() -> None:
    async with serving(Control()) as server:
        second = Control().server(port=server.ports[0])
        with pytest.raises(CannotListenError, match=f"127.0.0.1:{server.ports[0]}"):
            await asyncio.wait_for(second.run(), 10.0)


async def test_an_idle_link_lives_by_its_heartbeats() -> None:
    control = Control(heartbeat_s=0.05, silent_after_s=0.5)
    loop = asyncio.get_running_loop()
    async with serving(control) as server, attach(server.ports[0]) as link:
        until_s = loop.time() + 3 * 0.5
        await eventually(lambda: loop.time() > until_s)
        await link.send(Answer(1))
        await eventually(lambda: control.heard == [(link.id, Answer(1))])


async def test_messages_larger_than_a_frame_arrive_in_order() -> None:
    control = Control()
    specs = tuple(values.spec(f"r{i}", "ü" * 400_000) for i in range(8))
    reports = [
        replace(values.report(), generation=i, shards=(values.shard_report(spec=spec),))
        for i, spec in enumerate(specs)
    ]
    async with serving(control) as server, attach(server.ports[0]) as link:
        async with asyncio.TaskGroup() as group:  # several senders at once
            for report in reports:
                group.create_task(link.send(report))
        await eventually(lambda: len(control.heard) == len(reports))
        assert [message for _, message in control.heard] == reports
        assignment = Assignment(1, 1, specs)
        await server.links[0].send(assignment)
        assert await asyncio.wait_for(link.receive(), 10.0) == assignment


async def test_a_huge_log_line_costs_no_link() -> None:
    control = Control()
    line = "x" * 100_000_000
    async with serving(control) as server, attach(server.ports[0]) as link:
        await link.send(values.report(values.shard_report(last_log=line)))
        await link.send(Answer(1, (line, "the next"), last=True))
        await eventually(lambda: len(control.heard) == 2)
        report, answer = (message for _, message in control.heard)
        assert isinstance(report, Report)
        assert isinstance(answer, Answer)
        assert report.shards[0].last_log.endswith("(100000000 characters)")
        assert answer.lines[1] == "the next"
        assert not link.ended_why


async def test_a_message_that_cannot_be_carried_costs_no_link() -> None:
    control = Control()
    huge = Assignment(1, 1, tuple(values.spec(f"r{i}", "x" * 1_000_000) for i in range(70)))
    async with serving(control) as server, attach(server.ports[0]) as link:
        await eventually(lambda: len(server.links) == 1)
        (agent,) = server.links
        with pytest.raises(UnsendableError, match=r"Assignment has 7\d+ bytes"):
            await agent.send(huge)
        await agent.send(Cancel(1))
        assert await link.receive() == Cancel(1)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\xff\xff", "malformed: AgentMessage"),
        (pb.AgentMessage(report="{}").SerializeToString(), "malformed: report: "),
        (
            pb.AgentMessage(hello=pb.Hello(node="n1")).SerializeToString(),
            "Hello came again",
        ),
        (
            pb.AgentMessage(piece=link_pb2.Piece(index=1, last=True)).SerializeToString(),
            "number 1 came after 0",
        ),
    ],
    ids=["no protobuf", "no report", "a second hello", "a piece too early"],
)
async def test_a_malformed_message_ends_its_link_alone(frame: bytes, why: str) -> None:
    control = Control()
    async with serving(control) as server, attach(server.ports[0], "good") as good:
        async with raw_agent(server.ports[0], "bad") as bad:
            await bad.say(frame)
            said = await bad.hear_end()
            assert why in said
            await eventually(lambda: control.using == [good.id])
            assert [x.ended_why for x in control.links if x.peer.node == "bad"] == [said]
        await good.send(Answer(1))
        await eventually(lambda: control.heard == [(good.id, Answer(1))])


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"\xff", "the hello is malformed"),
        (pb.AgentMessage(report="{}").SerializeToString(), "the hello is malformed"),
        (pb.AgentMessage(answer=pb.Answer()).SerializeToString(), "is Answer, not Hello"),
    ],
)
async def test_whoever_does_not_say_hello_is_told(first: bytes, why: str) -> None:
    async with serving(Control()) as server, raw_agent(server.ports[0], None) as agent:
        await agent.say(first)
        assert why in (await agent.hear()).refusal.why


async def test_whoever_says_nothing_is_sent_away() -> None:
    options = replace(LISTEN, limits=replace(LISTEN.limits, hello_s_max=0.2))
    async with serving(Control(), options) as server, raw_agent(server.ports[0], None) as agent:
        assert "no hello came within 0.2 s" in (await agent.hear()).refusal.why


async def test_a_frame_beyond_grpc_s_bound_ends_the_link() -> None:
    control = Control()
    async with serving(control) as server, raw_agent(server.ports[0], "big") as agent:
        await agent.say(b"x" * (FRAME_BYTES_MAX + 1))
        await eventually(lambda: len(control.links) == 1 and not control.using)


async def test_an_agent_that_reads_nothing_loses_its_link() -> None:
    control = Control()
    large = Assignment(1, 1, (values.spec("r1", "x" * 900_000),))
    async with serving(control) as server, raw_agent(server.ports[0], "deaf") as agent:
        await eventually(lambda: len(control.live) == 1)
        (link,) = control.live
        beat = pb.AgentMessage()
        beat.heartbeat.SetInParent()

        async def keep_speaking() -> None:
            while not link.ended_why:
                await agent.say(beat)
                await CLOCK.sleep(HEARTBEAT_S)

        async def keep_sending() -> None:
            while True:
                await link.send(large)

        async with asyncio.TaskGroup() as group:
            group.create_task(keep_speaking())
            with pytest.raises(LinkLostError, match="node deaf read nothing for 1 s"):
                await asyncio.wait_for(keep_sending(), 10.0)


async def test_messages_that_nobody_takes_end_the_link() -> None:
    control = Control(deaf=asyncio.Event())
    assert control.deaf is not None

    async def keep_sending(link: ControlLink) -> None:
        while True:
            await link.send(Answer(1, ("x" * 10_000,)))

    async with serving(control) as server, attach(server.ports[0]) as link:
        with pytest.raises(LinkLostError, match="lay unread for 1 s"):
            await asyncio.wait_for(keep_sending(link), 10.0)
        assert "messages of node n1 lay unread" in control.links[0].ended_why
        control.deaf.set()


async def test_a_slow_reader_is_not_taken_for_silence() -> None:
    # This end reads nothing for longer than silent_after_s: the other one is not to blame.
    control = Control(deaf=asyncio.Event(), silent_after_s=0.4, heartbeat_s=0.1)
    assert control.deaf is not None
    loop = asyncio.get_running_loop()
    patient = replace(LISTEN, limits=replace(LISTEN.limits, untaken_s_max=30.0))
    lenient = replace(DIAL, limits=replace(DIAL.limits, unread_s_max=30.0))
    async with serving(control, patient) as server, attach(server.ports[0], "n1", lenient) as link:
        for number in range(200):
            await link.send(Answer(number))
        until_s = loop.time() + 3 * 0.4
        await eventually(lambda: loop.time() > until_s)
        assert not control.links[0].ended_why
        control.deaf.set()
        await eventually(lambda: len(control.heard) == 200)


async def test_a_bug_in_what_uses_a_link_ends_that_link_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OurBugError(Exception):
        pass

    class Buggy(Control):
        async def on_link(self, link: AgentLink) -> None:
            """Fail for one node."""
            if link.peer.node == "bad":
                raise OurBugError
            await super().on_link(link)

    control = Buggy()
    async with serving(control) as server, attach(server.ports[0], "good") as good:
        async with attach(server.ports[0], "bad") as bad:
            with pytest.raises(LinkLostError, match="it stops or has failed; its log says more"):
                await bad.receive()
        await good.send(Answer(1))
        await control.has_heard(1)
    assert "OurBugError" in caplog.text
    caplog.clear()  # its traceback holds the link, and so all of gRPC


async def test_what_uses_a_link_ends_with_it_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    options = replace(LISTEN, limits=replace(LISTEN.limits, outlive_s_max=0.2))
    control = Control(deaf=asyncio.Event())
    async with serving(control, options) as server:
        async with attach(server.ports[0]):
            await eventually(lambda: len(control.using) == 1)
        await eventually(lambda: not control.using)
    assert "went on for 0.2 s after its end and was cancelled" in caplog.text
    caplog.clear()  # its traceback holds the link, and so all of gRPC
