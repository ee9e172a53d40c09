"""Deadlines of a link, by a clock that the test moves."""

import asyncio

import pytest

from llmgw.testing.clock import ManualClock
from llmgw.testing.waiting import eventually
from llmgw.wire import agent_codec
from llmgw.wire.errors import LinkLostError
from llmgw.wire.frames import PIECE_BYTES, Heartbeat, Piece
from llmgw.wire.link import LIMITS, OUT_FRAMES_MAX, carried
from llmgw.wire.messages import Answer, Cancel
from tests.wire import values
from tests.wire.streams import WELCOME, SilentStream, link_over

TICK_S = WELCOME.heartbeat_s / 4


async def _pass(clock: ManualClock, seconds: float) -> None:
    """Let time pass in small steps, as it does."""
    until_s = clock.monotonic_s() + seconds
    while clock.monotonic_s() < until_s:
        for _ in range(10):
            await asyncio.sleep(0)
        clock.advance(TICK_S)
    for _ in range(10):
        await asyncio.sleep(0)


def _beats(stream: SilentStream) -> int:
    return sum(agent_codec.UP.decode(frame) == Heartbeat() for frame in stream.written)


async def test_silence_ends_a_link_after_silent_after_s_and_not_before() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        await _pass(clock, WELCOME.silent_after_s - 2 * TICK_S)
        assert link.ended_why == ""
        stream.say(agent_codec.DOWN.encode(Heartbeat()))
        await _pass(clock, WELCOME.silent_after_s - 2 * TICK_S)
        assert link.ended_why == ""
        await _pass(clock, 4 * TICK_S)
        assert link.ended_why == "nothing was heard from control plane for 5 s"
        with pytest.raises(LinkLostError, match="nothing was heard"):
            await link.receive()


async def test_heartbeats_are_sent_only_where_nothing_else_is() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        await _pass(clock, 4 * WELCOME.heartbeat_s)
        assert 3 <= _beats(stream) <= 5
        before = _beats(stream)
        for _ in range(8):
            await link.send(Answer(1))
            await _pass(clock, WELCOME.heartbeat_s / 2)
            stream.say(agent_codec.DOWN.encode(Heartbeat()))
        assert _beats(stream) == before


async def test_a_wall_clock_that_steps_ends_nothing() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        await _pass(clock, 1.0)
        clock.step_wall(1e6)
        await _pass(clock, 1.0)
        assert link.ended_why == ""


async def test_a_process_that_stood_still_reads_before_it_judges() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        await _pass(clock, 1.0)
        clock.advance(60.0)  # stopped and continued, with a message in the socket
        stream.say(agent_codec.DOWN.encode(Cancel(1)))
        await _pass(clock, 1.0)
        assert link.ended_why == ""
        assert await link.receive() == Cancel(1)
        clock.advance(60.0)  # once more, and nothing is there
        await _pass(clock, 1.0)
        assert "nothing was heard" in link.ended_why


async def test_a_write_that_hangs_ends_the_link_and_wakes_senders() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        stream.stuck.clear()
        async with asyncio.TaskGroup() as group:

            async def keep_sending() -> None:
                with pytest.raises(LinkLostError, match="read nothing for 20 s"):
                    await _send_many(2 * OUT_FRAMES_MAX)

            async def _send_many(count: int) -> None:
                for _ in range(count):
                    await link.send(Answer(1))

            group.create_task(keep_sending())
            for _ in range(int(LIMITS.unread_s_max) + 2):
                stream.say(agent_codec.DOWN.encode(Heartbeat()))
                await _pass(clock, 1.0)


async def test_a_sender_that_gives_up_in_the_middle_of_a_message_spoils_nothing() -> None:
    clock, stream = ManualClock(), SilentStream()
    large = values.report(values.shard_report(spec=values.spec("r1", "x" * 8 * PIECE_BYTES)))
    async with carried(link_over(stream, clock)) as link:
        stream.stuck.clear()
        await _fill(link.send, OUT_FRAMES_MAX - 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await link.send(large)
        stream.stuck.set()
        await link.send(large)
        await eventually(lambda: len(stream.written) >= OUT_FRAMES_MAX + 8)
    frames = [agent_codec.UP.decode(frame) for frame in stream.written]
    found = [frame for frame in frames if isinstance(frame, Piece)]
    starts = [i for i, piece in enumerate(found) if piece.index == 0]
    assert len(starts) == 2
    whole = b"".join(piece.data for piece in found[starts[1] :])
    assert agent_codec.UP.decode(whole) == large


async def _fill(send, count: int) -> None:  # type: ignore[no-untyped-def]
    for _ in range(count):
        await send(Answer(1))


async def test_a_stream_that_closes_ends_the_link() -> None:
    clock, stream = ManualClock(), SilentStream()
    async with carried(link_over(stream, clock)) as link:
        stream.say(None)
        with pytest.raises(LinkLostError, match="the other end closed the stream"):
            await link.receive()


async def test_the_first_reason_stays() -> None:
    link = link_over(SilentStream(), ManualClock())
    link.end("first")
    link.end("second")
    assert link.ended_why == "first"
