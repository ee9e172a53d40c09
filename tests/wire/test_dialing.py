"""The loop that dials again: one at a time, ever slower, and quiet."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from llmgw.runtime.backoff import Backoff
from llmgw.testing.clock import ManualClock
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import ControlLink
from llmgw.wire.dialing import RETRY_AFTER_S_MAX, KeepDialing, Pace
from llmgw.wire.errors import LinkLostError, LinkRefusedError
from llmgw.wire.messages import Answer
from tests.wire.ends import running
from tests.wire.streams import SilentStream, link_over

PACE = Pace(Backoff(first_s=1.0, cap_s=8.0), lived_s=100.0)


class Peer:
    """Whom the loop dials: fails as told, else gives a link that the test ends."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.failure: Exception | None = None
        self.dialed_s: list[float] = []
        self.open = 0
        self.open_most = 0
        self.link: ControlLink | None = None

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[ControlLink]:
        """Dial once."""
        self.dialed_s.append(self.clock.monotonic_s())
        if self.failure is not None:
            raise self.failure
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        self.link = link_over(SilentStream(), self.clock)
        try:
            yield self.link
        finally:
            self.open -= 1

    async def use(self, link: ControlLink) -> None:
        """Use a link until it ends."""
        async for _ in link:
            pass

    def end(self) -> None:
        """End the link that is open."""
        assert self.link is not None
        self.link.end("the test ends it")

    def keep_dialing(self) -> KeepDialing:  # type: ignore[type-arg]
        """Make the loop under test."""
        return KeepDialing("test", self.dial, self.use, self.clock, Random(1), PACE)


async def _pass_until(clock: ManualClock, peer: Peer, dials: int) -> None:
    for _ in range(10_000):
        await asyncio.sleep(0)
        if len(peer.dialed_s) >= dials:
            return
        if clock.sleepers:
            clock.advance(0.1)
    raise AssertionError(f"{len(peer.dialed_s)} dials")


def _waits(peer: Peer) -> list[float]:
    return [b - a for a, b in zip(peer.dialed_s, peer.dialed_s[1:], strict=False)]


async def test_waits_grow_to_the_cap() -> None:
    clock = ManualClock()
    peer = Peer(clock)
    peer.failure = LinkLostError("cannot reach it")
    async with running(peer.keep_dialing()):
        await _pass_until(clock, peer, 8)
    for wait_s, longest_s in zip(_waits(peer), [1, 2, 4, 8, 8, 8, 8], strict=True):
        assert longest_s / 2 <= wait_s <= longest_s + 0.2


async def test_a_link_that_ends_at_once_does_not_end_the_back_off() -> None:
    clock = ManualClock()
    peer = Peer(clock)
    async with running(peer.keep_dialing()):
        for dials in range(1, 7):
            await _pass_until(clock, peer, dials)
            await eventually(lambda: peer.open == 1)
            peer.end()
            await eventually(lambda: peer.open == 0)
        await _pass_until(clock, peer, 7)
    assert _waits(peer)[-1] >= 4
    assert peer.open_most == 1


async def test_a_link_that_lived_ends_the_back_off() -> None:
    clock = ManualClock()
    peer = Peer(clock)
    peer.failure = LinkLostError("cannot reach it")
    async with running(peer.keep_dialing()):
        await _pass_until(clock, peer, 5)
        peer.failure = None
        await _pass_until(clock, peer, 6)
        await eventually(lambda: peer.open == 1 and clock.sleepers == 1)
        clock.advance(PACE.lived_s + 1)
        await eventually(lambda: clock.sleepers == 0)
        peer.end()
        ended_s = clock.monotonic_s()
        await eventually(lambda: clock.sleepers == 1)
        await _pass_until(clock, peer, 7)
    assert peer.dialed_s[-1] - ended_s <= 1.2


@pytest.mark.parametrize(("asked_s", "waited_s"), [(60.0, 60.0), (1e9, RETRY_AFTER_S_MAX)])
async def test_a_refusal_s_wait_is_kept_within_bounds(asked_s: float, waited_s: float) -> None:
    clock = ManualClock()
    peer = Peer(clock)
    peer.failure = LinkRefusedError("does not lead", asked_s)
    async with running(peer.keep_dialing()):
        await _pass_until(clock, peer, 2)
    assert waited_s - 0.2 <= _waits(peer)[0] <= waited_s + 0.2


async def test_the_log_says_at_once_that_it_joined_and_then_only_what_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "llmgw.wire.dialing")
    clock = ManualClock()
    peer = Peer(clock)

    def said() -> list[tuple[int, str]]:
        return [(r.levelno, r.getMessage()) for r in caplog.records]

    peer.failure = LinkLostError("cannot reach it")
    async with running(peer.keep_dialing()):
        await _pass_until(clock, peer, 6)
        peer.failure = None
        await _pass_until(clock, peer, 7)
        await eventually(lambda: peer.open == 1 and clock.sleepers == 1)
        # Whoever has just started it waits for this line; whether the link lasts is another matter.
        await eventually(lambda: len(said()) == 2)
        clock.advance(PACE.lived_s + 1)
        await eventually(lambda: clock.sleepers == 0)
        peer.end()
        await _pass_until(clock, peer, 8)
        for dials in (9, 10):  # links that do not last are no news
            await eventually(lambda: peer.open == 1 and clock.sleepers == 1)
            peer.end()
            await _pass_until(clock, peer, dials)
        await eventually(lambda: peer.open == 1 and clock.sleepers == 1)
        clock.advance(PACE.lived_s + 1)
        await eventually(lambda: len(said()) == 4)
    levels = [level for level, _ in said()]
    assert levels == [logging.WARNING, logging.INFO, logging.WARNING, logging.INFO]
    texts = ["cannot reach it", "test: joined", "the test ends it", "is there again"]
    assert all(text in line for text, (_, line) in zip(texts, said(), strict=True)), said()


async def test_a_first_link_that_does_not_last_is_said_to_be_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "llmgw.wire.dialing")
    clock = ManualClock()
    peer = Peer(clock)
    peer.failure = LinkLostError("cannot reach it")
    async with running(peer.keep_dialing()):
        await _pass_until(clock, peer, 2)
        peer.failure = None
        await _pass_until(clock, peer, 3)
        await eventually(lambda: len(caplog.records) == 2)
        peer.end()
        await eventually(lambda: len(caplog.records) == 3)
    assert "the test ends it" in caplog.records[-1].getMessage()


async def test_a_bug_in_what_uses_the_link_is_not_swallowed() -> None:
    class OurBugError(Exception):
        pass

    async def use(_: ControlLink) -> None:
        raise OurBugError

    peer = Peer(ManualClock())
    dialer = KeepDialing("test", peer.dial, use, peer.clock, Random(1), PACE)
    with pytest.raises(OurBugError):
        await dialer.run()


async def test_a_message_that_cannot_be_sent_is_no_reason_to_die() -> None:
    clock = ManualClock()
    peer = Peer(clock)

    async def use(link: ControlLink) -> None:
        await link.send(Answer(-1))

    async with running(KeepDialing("test", peer.dial, use, clock, Random(1), PACE)):
        await _pass_until(clock, peer, 4)
    assert _waits(peer)[-1] >= 2
