"""What every store does, whatever it is built on."""

import asyncio
import os
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from llmgw.core.errors import ConflictError, InvalidRequestError, NotFoundError, StorageError
from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Profile
from llmgw.core.fleet.intent import Intent, Wanted
from llmgw.core.fleet.placement import PlacedShard, Placement
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.runtime.clock import SystemClock
from llmgw.store.catalog import REVISIONS_KEPT
from llmgw.store.errors import StaleTermError, StoreDamagedError
from llmgw.store.events import Events, NewEvent
from llmgw.store.nodes import Node, Refused
from llmgw.store.store import Store, open_store
from llmgw.store.usage import DAY_S, By

pytest_plugins = ["tests.store.fixtures"]

PROFILE = Profile("tiny-cpu", EngineKind.LLAMACPP, "/models/tiny.gguf")
CATALOG = Catalog((Model("tiny", (PROFILE,), ("small",)),))
DAY_ONE = 20_000 * DAY_S


def intent(replica: str = "r1", incarnation: int = 1) -> Intent:
    shard = PlacedShard(NodeId("n1"), 0, "10.0.0.1", 18100)
    placement = Placement(ReplicaId(replica), incarnation, "tiny", ("tiny",), PROFILE, (shard,))
    return Intent(placement)


def used(request: str, opened_wall_s: float = DAY_ONE, **fields: object) -> Usage:
    given: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": 5, **fields}
    return replace(
        Usage(
            request, opened_wall_s, "k1", "team", "tiny", "/v1/completions", Ending.ANSWERED, 200
        ),
        **given,  # type: ignore[arg-type]
    )


async def sql(store: Store, statement: str, **values: object) -> None:
    await store.database.write(lambda connection: connection.execute(text(statement), values))


# Catalog


async def test_a_catalog_that_was_never_saved_is_empty_and_has_revision_0(store: Store) -> None:
    assert await store.catalog.current() == Catalog()


async def test_each_saved_catalog_has_the_next_revision_and_earlier_ones_are_kept(
    store: Store,
) -> None:
    first = await store.catalog.save(CATALOG, 0, 1.0)
    second = await store.catalog.save(Catalog(), 1, 2.0)
    assert (first.revision, second.revision) == (1, 2)
    assert await store.catalog.current() == Catalog(revision=2)
    assert await store.catalog.history(1) == replace(CATALOG, revision=1)
    with pytest.raises(NotFoundError):
        await store.catalog.history(3)


async def test_an_edit_that_began_at_an_older_revision_is_a_conflict_and_changes_nothing(
    store: Store,
) -> None:
    await store.catalog.save(CATALOG, None, 1.0)
    with pytest.raises(ConflictError, match="began at revision 0, the newest is 1"):
        await store.catalog.save(Catalog(), 0, 2.0)
    assert (await store.catalog.current()).models == CATALOG.models


async def test_of_edits_at_the_same_time_from_one_revision_one_wins(store: Store) -> None:
    saves = (store.catalog.save(CATALOG, 0, 1.0) for _ in range(8))
    results = await asyncio.gather(*saves, return_exceptions=True)
    assert sum(isinstance(result, Catalog) for result in results) == 1
    assert sum(isinstance(result, ConflictError) for result in results) == 7


async def test_members_that_this_version_does_not_know_survive_in_the_catalog(
    store: Store,
) -> None:
    await store.catalog.save(replace(CATALOG, unknown={"later": {"x": [1]}}), 0, 1.0)
    assert (await store.catalog.current()).unknown == {"later": {"x": [1]}}


async def test_old_catalogs_make_room(store: Store) -> None:
    for _ in range(REVISIONS_KEPT + 2):
        await store.catalog.save(CATALOG, None, 1.0)
    with pytest.raises(NotFoundError):
        await store.catalog.history(2)
    assert (await store.catalog.history(3)).revision == 3


async def test_a_catalog_that_cannot_be_read_says_so_and_can_be_replaced(store: Store) -> None:
    await store.catalog.save(CATALOG, 0, 1.0)
    await sql(store, "UPDATE catalogs SET document = '{'")
    with pytest.raises(StoreDamagedError, match=r"catalog revision 1 .* apply the catalog anew"):
        await store.catalog.current()
    assert (await store.catalog.save(CATALOG, 1, 2.0)).revision == 2


# Placements


async def test_placements_are_saved_changed_and_forgotten(store: Store) -> None:
    async with store.lead("test") as lead:
        await store.placements.apply(lead.term, [intent("a"), intent("b")])
        changed = replace(intent("a", 2), wanted=Wanted.DRAIN, why="left the catalog")
        await store.placements.apply(lead.term, [changed], [ReplicaId("b")])
    placed = await store.placements.all()
    assert placed.intents == (changed,)
    assert placed.broken == ()


async def test_a_leader_whose_term_is_over_changes_nothing_and_tells_nothing(store: Store) -> None:
    async with store.lead("first") as lead:
        await store.placements.apply(lead.term, [intent()])
        old = lead.term
    async with store.lead("second"):
        told = [NewEvent("r1", "placed", 1.0)]
        with pytest.raises(StaleTermError, match=f"term {old} is over, the store is at {old + 1}"):
            await store.placements.apply(old, [intent("other")], [ReplicaId("r1")], told)
    assert (await store.placements.all()).intents == (intent(),)
    assert await store.events.read() == ()


async def test_nobody_may_place_before_there_was_a_leader(store: Store) -> None:
    with pytest.raises(StaleTermError):
        await store.placements.apply(1, [intent()])


async def test_events_are_told_together_with_what_they_tell_of(store: Store) -> None:
    async with store.lead("test") as lead:
        await store.placements.apply(lead.term, [intent()], (), [NewEvent("r1", "placed", 7.0)])
    (event,) = await store.events.read()
    assert (event.subject, event.what, event.at_wall_s) == ("r1", "placed", 7.0)


async def test_a_placement_that_cannot_be_read_is_named_and_hides_no_other(store: Store) -> None:
    async with store.lead("test") as lead:
        await store.placements.apply(lead.term, [intent("a"), intent("b"), intent("c")])
        await sql(store, "UPDATE placements SET document = 'x' WHERE replica = 'a'")
        copy = "SELECT document FROM placements WHERE replica = 'c'"
        await sql(store, f"UPDATE placements SET document = ({copy}) WHERE replica = 'b'")
        placed = await store.placements.all()
        assert [one.replica for one in placed.intents] == ["c"]
        assert [(one.replica, "cannot be read" in one.why) for one in placed.broken] == [
            ("a", True),
            ("b", False),
        ]
        await store.placements.apply(lead.term, [], [one.replica for one in placed.broken])
        assert (await store.placements.all()).broken == ()


# Keys

KEY = ApiKey("k1", "0" * 64, "team", ("tiny",), 99.0)


async def test_a_key_is_listed_with_what_it_covers_until_and_after_it_is_revoked(
    store: Store,
) -> None:
    made = await store.keys.create(KEY, "notebook", "…x7q2", 5.0)
    every = ApiKey("k2", "1" * 64, "team")
    await store.keys.create(every, "all models", "…aaaa", 6.0)
    assert await store.keys.all() == (made, replace(made, key=every, name="all models",
                                                    shown="…aaaa", created_wall_s=6.0))  # fmt: skip
    revoked = await store.keys.revoke("k1", 7.0)
    assert revoked == replace(made, revoked_wall_s=7.0)
    assert (await store.keys.all())[0] == revoked


async def test_a_key_is_revoked_once_and_for_good(store: Store) -> None:
    await store.keys.create(KEY, "notebook", "…x7q2", 5.0)
    await store.keys.revoke("k1", 7.0)
    assert (await store.keys.revoke("k1", 9.0)).revoked_wall_s == 7.0
    with pytest.raises(NotFoundError, match="no key k9"):
        await store.keys.revoke("k9", 9.0)


@pytest.mark.parametrize("twin", [ApiKey("k1", "f" * 64, "t"), ApiKey("k2", KEY.hash, "t")])
async def test_a_second_key_with_the_same_id_or_value_is_a_conflict(
    store: Store, twin: ApiKey
) -> None:
    await store.keys.create(KEY, "notebook", "…x7q2", 5.0)
    with pytest.raises(ConflictError):
        await store.keys.create(twin, "other", "…x7q2", 6.0)


# Usage


async def test_a_request_is_booked_once_however_often_its_record_arrives(store: Store) -> None:
    assert await store.usage.add([used("a"), used("b"), used("a")], "g1") == 2
    assert await store.usage.add([used("b"), used("c", prompt_tokens=999)], "g2") == 1
    assert await store.usage.add([], "g1") == 0
    (total,) = await store.usage.totals(0, 2 * DAY_ONE)
    assert (total.requests, total.prompt_tokens) == (3, 10 + 10 + 999)


async def test_the_same_batch_from_two_gateways_at_once_is_booked_once(store: Store) -> None:
    batch = [used(f"q{i}") for i in range(50)]
    new = await asyncio.gather(*(store.usage.add(batch, f"g{i}") for i in range(4)))
    assert sum(new) == 50


async def test_totals_are_split_as_asked_and_cover_a_half_open_time(store: Store) -> None:
    await store.usage.add(
        [
            used("1", DAY_ONE, account="x", cached_tokens=3),
            used("2", DAY_ONE + DAY_S - 0.5, account="y", model="big", estimated=True),
            used("3", DAY_ONE + DAY_S, account="x", key="k2"),
            used("4", DAY_ONE + 2 * DAY_S, account="x"),
        ],
        "g1",
    )
    until = DAY_ONE + 2 * DAY_S
    rows = await store.usage.totals(DAY_ONE, until, (By.ACCOUNT, By.DAY))
    assert [(r.account, r.day, r.requests, r.cached_tokens, r.estimated) for r in rows] == [
        ("x", 20_000, 1, 3, 0),
        ("x", 20_001, 1, 0, 0),
        ("y", 20_000, 1, 0, 1),
    ]
    rows = await store.usage.totals(DAY_ONE, until, (By.KEY, By.MODEL))
    assert [(r.key, r.model, r.completion_tokens, r.account) for r in rows] == [
        ("k1", "big", 5, None),
        ("k1", "tiny", 5, None),
        ("k2", "tiny", 5, None),
    ]


async def test_the_total_of_nothing_is_zero_and_split_it_is_no_row(store: Store) -> None:
    (total,) = await store.usage.totals(0, 1)
    assert (total.requests, total.prompt_tokens, total.estimated) == (0, 0, 0)
    assert await store.usage.totals(0, 1, (By.MODEL,)) == ()


async def test_records_are_read_page_by_page_as_they_were_sent(store: Store) -> None:
    sent = [used(f"q{i}", unknown={"later": i}, first_byte_s=0.25) for i in range(5)]
    await store.usage.add(sent, "g1")
    first = await store.usage.read(limit=3)
    rest = await store.usage.read(after=first[-1].id)
    assert [booked.usage for booked in (*first, *rest)] == sent
    assert {booked.gateway for booked in first} == {"g1"}


async def test_a_record_that_says_absurd_things_is_booked_and_holds_up_no_other(
    store: Store,
) -> None:
    absurd = used("bad", model="a\0b" + "x" * 5_000, prompt_tokens=10**30, completion_tokens=-5)
    late, early = used("late", 1e300), used("early", -1e300)
    assert await store.usage.add([used("good"), absurd, late, early], "g1") == 4
    rows = await store.usage.totals(0, 2 * DAY_ONE, (By.MODEL,))
    assert [(len(row.model or ""), row.requests) for row in rows] == [(200, 1), (4, 2)]
    assert rows[0].completion_tokens == 0
    (whole,) = await store.usage.totals(0, 1e301)
    assert whole.requests == 4


# Events


async def test_events_are_read_from_the_newest_or_on_from_one(store: Store) -> None:
    await store.events.add(NewEvent(f"n{i % 2}", f"no. {i}", float(i)) for i in range(6))
    newest = await store.events.read(limit=2)
    assert [event.what for event in newest] == ["no. 4", "no. 5"]
    everything = await store.events.read()
    after = await store.events.read(after=everything[1].id, limit=3)
    assert [event.what for event in after] == ["no. 2", "no. 3", "no. 4"]
    assert [event.what for event in await store.events.read(subject="n1")] == [
        "no. 1",
        "no. 3",
        "no. 5",
    ]


async def test_a_repeated_event_is_no_news_and_other_senders_count_for_themselves(
    store: Store,
) -> None:
    first = NewEvent("n1", "GPU lost", 1.0, "node-a", 1)
    await store.events.add([first])
    await store.events.add([first, replace(first, sequence=2), replace(first, source="node-b")])
    await store.events.add([NewEvent("n1", "ours", 2.0), NewEvent("n1", "ours", 2.0)])
    assert len(await store.events.read()) == 3 + 2


async def test_the_oldest_events_make_room_and_repeated_ones_push_nobody_out(store: Store) -> None:
    events = Events(store.database, kept=3)
    await events.add(NewEvent("n1", f"no. {i}", 1.0, "node-a", i) for i in range(5))
    for _ in range(5):
        await events.add([NewEvent("n1", "no. 4", 1.0, "node-a", 4)])
    assert [event.what for event in await events.read()] == ["no. 2", "no. 3", "no. 4"]


# Nodes and gateways


async def test_a_node_that_was_seen_belongs_and_may_be_renamed(store: Store) -> None:
    await store.nodes.seen(NodeId("a"), "gpu1", "m1", 1.0)
    await store.nodes.seen(NodeId("a"), "gpu-one", "m1", 5.0)
    assert await store.nodes.all() == (Node(NodeId("a"), "gpu-one", "m1", 1.0, 5.0),)


async def test_a_copied_disk_is_refused_with_both_machines_named(store: Store) -> None:
    await store.nodes.seen(NodeId("a"), "gpu1", "m1", 1.0)
    answer = await store.nodes.seen(NodeId("a"), "gpu2", "m2", 2.0)
    assert isinstance(answer, Refused)
    assert "belongs to machine m1, this is machine m2: a copied disk" in answer.why
    assert (await store.nodes.all())[0].seen_wall_s == 1.0


async def test_a_second_host_of_the_same_name_is_refused_until_the_first_is_removed(
    store: Store,
) -> None:
    await store.nodes.seen(NodeId("a"), "gpu1", "m1", 1.0)
    answer = await store.nodes.seen(NodeId("b"), "gpu1", "m2", 2.0)
    assert isinstance(answer, Refused)
    assert "another node is called gpu1: a on machine m1" in answer.why
    await store.nodes.remove(NodeId("a"))
    assert isinstance(await store.nodes.seen(NodeId("b"), "gpu1", "m2", 3.0), Node)
    with pytest.raises(NotFoundError):
        await store.nodes.remove(NodeId("a"))


async def test_a_node_may_not_take_a_name_that_belongs_to_another(store: Store) -> None:
    await store.nodes.seen(NodeId("a"), "gpu1", "m1", 1.0)
    await store.nodes.seen(NodeId("b"), "gpu2", "m2", 1.0)
    assert isinstance(await store.nodes.seen(NodeId("b"), "gpu1", "m2", 2.0), Refused)
    assert [node.name for node in await store.nodes.all()] == ["gpu1", "gpu2"]


async def test_of_hosts_with_one_name_that_come_at_once_one_is_let_in(store: Store) -> None:
    arrivals = (store.nodes.seen(NodeId(f"n{i}"), "gpu1", f"m{i}", 1.0) for i in range(6))
    answers = await asyncio.gather(*arrivals)
    assert sum(isinstance(answer, Node) for answer in answers) == 1


async def test_gateways_are_remembered_from_their_first_day_until_removed(store: Store) -> None:
    await store.gateways.seen("g1", 1.0)
    await store.gateways.seen("g1", 9.0)
    (gateway,) = await store.gateways.all()
    assert (gateway.first_seen_wall_s, gateway.seen_wall_s) == (1.0, 9.0)
    await store.gateways.remove("g1")
    assert await store.gateways.all() == ()


# What a store is


async def test_secret_and_id_are_made_once_even_by_servers_that_start_at_once(
    store_url: str,
) -> None:
    async def start() -> tuple[bytes, str]:
        async with open_store(store_url, SystemClock(), os.urandom) as store:
            return await store.identity.secret(), await store.identity.store_id()

    answers = set(await asyncio.gather(*(start() for _ in range(5))))
    answers.add(await start())
    ((secret, store_id),) = answers
    assert (len(secret), len(store_id)) == (32, 10)


async def test_the_secret_is_in_no_error_however_deep_one_looks(store_url: str) -> None:
    async with open_store(store_url, SystemClock(), lambda count: b"\xa7" * count) as store:
        await sql(store, "ALTER TABLE facts ADD COLUMN more TEXT NOT NULL DEFAULT 'x'")
        await sql(store, "ALTER TABLE facts RENAME COLUMN value TO other")
        with pytest.raises(StorageError) as failed:
            await store.identity.secret()
    story = "".join(traceback.format_exception(failed.value))
    assert "facts" in story
    assert "a7" * 32 not in story


async def test_two_stores_have_different_secrets(store: Store, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/other.db", SystemClock(), os.urandom) as other:
        assert await store.identity.secret() != await other.identity.secret()
        assert await store.identity.store_id() != await other.identity.store_id()


@pytest.mark.parametrize(
    "url", ["mysql://root:pa55word@db/x", "sqlite://", "sqlite:///:memory:", "pa55word"]
)
async def test_a_url_that_is_no_store_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="write sqlite:///") as refused:
        async with open_store(url, SystemClock(), os.urandom):
            pass
    assert "pa55word" not in str(refused.value)


async def test_work_that_is_cancelled_half_way_leaves_nothing_and_blocks_nobody(
    store: Store,
) -> None:
    for turns in range(12):
        save = asyncio.ensure_future(store.catalog.save(CATALOG, None, 1.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        save.cancel()
        await asyncio.wait([save])
    before = (await store.catalog.current()).revision
    assert (await store.catalog.save(CATALOG, before, 1.0)).revision == before + 1
