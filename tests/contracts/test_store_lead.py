"""The lead: one at a time, each with a higher term, whatever holds it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from llmgw.store.errors import LeadHeldError, StaleTermError
from llmgw.store.events import NewEvent
from llmgw.store.lease import Lead
from llmgw.store.store import Store
from llmgw.store.tables import lead as lead_row
from llmgw.testing.waiting import eventually

pytest_plugins = ["tests.store.fixtures"]


class Standby:
    """One that takes the lead as soon as it can, and has it until it is told to stop."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._stop = asyncio.Event()
        self.told: list[str] = []
        self.term = 0

    async def run(self) -> None:
        async with self._store.lead(self._name, None, self.told.append) as lead:
            self.term = lead.term
            await self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


@contextlib.asynccontextmanager
async def kept(lead: Lead) -> AsyncIterator[None]:
    """Keep the lead for the block."""
    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(lead.keep())
        yield
        keeper.cancel()


async def take_away(store: Store) -> None:
    """Raise the term in the store, as another leader would."""
    taken = update(lead_row).values(term=lead_row.c.term + 1, beat=0, holder="usurper")
    await store.database.write(lambda connection: connection.execute(taken))


async def test_every_leader_has_a_higher_term_than_the_one_before(store: Store) -> None:
    terms = []
    for _ in range(3):
        async with store.lead("one") as lead:
            terms.append(lead.term)
            assert await store.lease.leader() == "one"
    assert terms == [1, 2, 3]
    assert await store.lease.leader() == ""


async def test_a_standby_is_told_once_who_leads_and_takes_over(store: Store) -> None:
    standby = Standby(store, "second")
    async with asyncio.TaskGroup() as group:
        async with store.lead("first, pid 7 on gpu1") as lead:
            group.create_task(standby.run())
            await eventually(lambda: bool(standby.told))
            assert standby.term == 0
        await eventually(lambda: standby.term == lead.term + 1)
        standby.stop()
    (told,) = standby.told
    assert told == f"first, pid 7 on gpu1 leads on {store.database.place}; standing by"


async def test_of_several_standbys_one_leads_at_a_time(store: Store) -> None:
    standbys = [Standby(store, f"no. {i}") for i in range(4)]
    async with asyncio.TaskGroup() as group:
        for standby in standbys:
            group.create_task(standby.run())
        for turn in range(1, 5):
            await eventually(lambda turn=turn: turn in {s.term for s in standbys})  # type: ignore[misc]
            assert sorted(s.term for s in standbys)[: 4 - turn] == [0] * (4 - turn)
            next(s for s in standbys if s.term == turn).stop()


async def test_who_does_not_stand_by_is_told_who_leads_and_what_to_do(store: Store) -> None:
    async with store.lead("first, pid 7 on gpu1"):
        with pytest.raises(LeadHeldError, match=r"first, pid 7 on gpu1 leads on .* stop it, or"):
            async with store.lead("second", wait_s=0.0):
                pytest.fail("two leaders")


async def test_a_standby_that_gives_up_keeps_nobody_out(store: Store) -> None:
    standby = Standby(store, "second")
    async with store.lead("first"):
        waiting = asyncio.ensure_future(standby.run())
        await eventually(lambda: bool(standby.told))
        waiting.cancel()
        await asyncio.wait([waiting])
    async with store.lead("third", wait_s=0.0) as lead:
        assert lead.term == 2


async def test_a_leader_that_hears_of_a_higher_term_raises_its_own_past_it(store: Store) -> None:
    async with store.lead("one") as lead, kept(lead):
        assert await lead.raise_past(41) == lead.term == 42
        await store.placements.apply(42)
        with pytest.raises(StaleTermError):
            await store.placements.apply(1)
        assert await lead.raise_past(7) == 43
        assert not lead.lost.is_set()
    async with store.lead("two") as lead:
        assert lead.term == 44


async def test_who_lost_the_lead_learns_it_and_cannot_raise_its_term(store: Store) -> None:
    async with store.lead("one") as lead:
        await take_away(store)
        with pytest.raises(StaleTermError, match="term 1 is over, the store is at 2"):
            await lead.raise_past(9)
        assert lead.lost.is_set()
        await asyncio.wait_for(lead.keep(), 1.0)


async def test_keeping_a_lead_that_was_taken_away_ends(store: Store) -> None:
    async with store.lead("one") as lead:
        await take_away(store)
        await asyncio.wait_for(lead.keep(), 10.0)
        assert lead.lost.is_set()
        with pytest.raises(StaleTermError):
            await store.placements.apply(lead.term, (), (), ())


async def test_what_a_leader_writes_while_it_is_overtaken_happens_as_a_whole_or_not_at_all(
    store: Store,
) -> None:
    async def write(i: int) -> bool:
        try:
            await store.placements.apply(lead.term, (), (), [NewEvent("r1", f"no. {i}", 1.0)])
        except StaleTermError:
            return False
        return True

    async with store.lead("one") as lead:
        overtaking = asyncio.ensure_future(take_away(store))
        written = await asyncio.gather(*(write(i) for i in range(8)))
        await overtaking
        assert not await write(9)
    assert len(await store.events.read()) == sum(written)
