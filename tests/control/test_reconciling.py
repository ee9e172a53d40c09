"""The loop against a real store and real streams: what reaches the agents, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.control.messages import Condemned
from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog, OnSilence, Restart
from llmgw.core.fleet.keys import engine_key
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.testing.agent import FakeAgent
from llmgw.testing.fleet import catalog, inventory, placement, plan, profile
from tests.control.planes import Nodes, Running, on_file, on_sqlite

SOON = Restart(delay_s=0.1, delay_s_max=0.1)
FILE = """
models:
- name: m
  profiles:
  - {name: p, engine: llamacpp, source: /models/m.gguf, gpus_per_node: 1, REPLICAS}
nodes: [n1, n2]
"""


async def ready(plane: Running, nodes: Nodes, wanted: Catalog | None = None) -> FakeAgent:
    agent = nodes.start(plane.endpoint)
    await plane.apply(wanted or catalog(profile(restart=SOON)))
    await plane.until(lambda: plane.phases() == ["ready"])
    return agent


async def test_what_is_wanted_is_started_with_its_key_and_becomes_ready(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        (shard,) = agent.shards.values()
        secret = await plane.plane.store.identity.secret()
        assert secret is not None
        assert shard.key == engine_key(secret, shard.spec.replica)
        assert [a.term for a in agent.assignments] == [plane.plane.leader.term] * len(
            agent.assignments
        )
        generations = [a.generation for a in agent.assignments]
        assert generations == sorted(set(generations))
        snapshot = plane.plane.publisher.current
        assert snapshot is not None
        (target,) = snapshot.routes[0].targets
        assert (target.replica, target.key) == (shard.spec.replica, shard.key)


async def test_nothing_is_sent_again_while_nothing_changes(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        snapshot, count = plane.plane.publisher.current, len(agent.assignments)
        for _ in range(3):
            await plane.turn()
        assert plane.plane.links.assignments_sent == count
        assert plane.plane.publisher.current is snapshot


async def test_what_leaves_the_catalog_is_unrouted_and_stopped(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        await plane.apply(Catalog())
        await plane.until(lambda: plane.statuses == () and agent.alive == [])
        assert (await plane.plane.store.placements.all()).intents == ()
        assert any("stopped" in what for what in await plane.events())


async def test_a_restart_of_the_control_plane_starts_and_stops_nothing(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        term = plane.plane.leader.term
    async with on_sqlite(tmp_path) as plane:
        agent.endpoint = plane.endpoint
        await plane.until(lambda: agent.attached == 2 and plane.phases() == ["ready"])
        await plane.until(lambda: agent.assignments[-1].term == term + 1)
        await plane.turn()
        assert list(agent.starts.values()) == [1]
        assert len(agent.alive) == 1


async def test_a_route_stays_while_its_node_has_yet_to_report(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        agent.leave()
    async with on_sqlite(tmp_path) as plane:
        await plane.until(lambda: plane.plane.publisher.current is not None)
        assert plane.phases() == ["silent"]
        snapshot = plane.plane.publisher.current
        assert snapshot is not None
        (target,) = snapshot.routes[0].targets
        assert not target.confirmed
        agent.endpoint = plane.endpoint
        agent.come_back()
        await plane.until(lambda: plane.phases() == ["ready"])
        snapshot = plane.plane.publisher.current
        assert snapshot is not None
        assert snapshot.routes[0].targets == (replace(target, confirmed=True),)
        assert list(agent.starts.values()) == [1]


async def test_a_model_removed_while_its_node_is_away_is_stopped_when_it_returns(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        agent.leave()
        await plane.until(lambda: plane.phases() == ["silent"])
        await plane.apply(Catalog())
        await plane.until(lambda: plane.phases() in (["stopping"], ["draining"]))
        await plane.turn()
        assert len(agent.alive) == 1
        agent.come_back()
        await plane.until(lambda: agent.alive == [] and plane.statuses == ())


async def test_a_failed_replica_starts_anew_under_its_next_incarnation(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        (first,) = agent.alive
        agent.fail(first, "the engine ended with status 7")
        await plane.until(lambda: first not in agent.alive and len(agent.alive) == 1)
        (second,) = agent.alive
        assert (second.replica, second.incarnation) == (first.replica, 2)
        assert any("status 7" in what for what in await plane.events())


async def test_a_node_lost_for_too_long_is_replaced_and_its_engine_stopped_when_it_returns(
    tmp_path: Path, nodes: Nodes
) -> None:
    wanted = catalog(profile(on_silence=OnSilence.REPLACE, lost_after_s=0.3, restart=SOON))
    async with on_sqlite(tmp_path) as plane:
        first = nodes.start(plane.endpoint, "n1")
        await plane.apply(wanted)
        await plane.until(lambda: plane.phases() == ["ready"])
        second = nodes.start(plane.endpoint, "n2")
        await plane.until(lambda: second.attached == 1)
        first.leave()
        await plane.until(lambda: len(second.alive) == 1 and plane.phases() == ["ready"])
        assert len(first.alive) == 1
        first.come_back()
        await plane.until(lambda: first.alive == [])
        assert len(second.alive) == 1


async def test_while_the_store_takes_nothing_nothing_is_sent(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = nodes.start(plane.endpoint)
        await plane.until(lambda: len(agent.assignments) == 1)
        placements = plane.plane.store.placements
        full = FullPlacements(placements)
        object.__setattr__(plane.plane.store, "placements", full)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: full.refused > 1 and "no space" in plane.plane.reconciler.trouble)
        assert len(agent.assignments) == 1
        assert agent.shards == {}
        object.__setattr__(plane.plane.store, "placements", placements)
        plane.plane.wake.set()
        await plane.until(lambda: plane.phases() == ["ready"])


async def test_what_cannot_be_stored_is_shown_all_the_same(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        (first,) = agent.alive
        full = FullPlacements(plane.plane.store.placements)
        object.__setattr__(plane.plane.store, "placements", full)
        agent.fail(first, "exit status 3")
        await plane.until(lambda: plane.phases() == ["failed"])
        assert "no space" in plane.plane.reconciler.trouble
        assert agent.alive == []


class FullPlacements:
    """A store that can be read and not written."""

    def __init__(self, real: object) -> None:
        self._real = real
        self.refused = 0

    async def all(self) -> object:
        return await self._real.all()  # type: ignore[attr-defined]

    async def apply(self, *_: object) -> None:
        self.refused += 1
        raise StorageError("there is no space for llmgw.db; free some on its disk")


async def test_a_leader_that_hears_of_a_higher_term_leads_on_past_it(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = FakeAgent(plane.endpoint)
        agent.term = 41
        nodes.start(plane.endpoint, agent=agent)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: plane.phases() == ["ready"])
        assert plane.plane.leader.term == 42
        assert agent.term == 42
    async with on_sqlite(tmp_path) as plane:
        await plane.until(lambda: plane.plane.leader.term == 43)


async def test_of_two_on_one_store_one_decides_and_the_other_takes_over(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as second:
        await second.until(lambda: second.plane.leader.term == 1)
        async with on_sqlite(tmp_path) as standby:
            agent = await ready(second, nodes)
            standby.plane.edited()
            await standby.until(lambda: standby.phases() == ["silent"])
            assert standby.plane.leader.term == 0
            assert standby.plane.publisher.current is None
            second.plane.leader.stand_down()
            await standby.until(lambda: max(p.plane.leader.term for p in (second, standby)) == 2)
            assert list(agent.starts.values()) == [1]


async def test_a_stale_term_makes_a_leader_stand_down_and_send_nothing(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = nodes.start(plane.endpoint)
        await plane.until(lambda: len(agent.assignments) == 1)
        lead = plane.plane.leader.lead
        assert lead is not None
        lead._term -= 1  # type: ignore[attr-defined]  # as if another had taken over meanwhile
        await plane.apply(catalog(profile()))
        await plane.until(lambda: plane.plane.leader.term == 2)
        await plane.until(lambda: plane.phases() == ["ready"])
        assert {a.term for a in agent.assignments} == {1, 2}


def catalog_file(folder: Path, replicas: int = 1) -> Path:
    file = folder / "catalog.yaml"
    file.write_text(FILE.replace("REPLICAS", f"replicas: {replicas}"))
    return file


async def test_without_a_store_nothing_is_done_before_the_listed_nodes_have_reported(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_file(catalog_file(tmp_path)) as plane:
        first = nodes.start(plane.endpoint, "n1")
        await plane.until(lambda: first.attached == 1)
        await plane.turn()
        seen = plane.plane.reconciler.seen
        assert seen is not None
        assert "n2" in seen.decision.hold
        assert first.assignments == []
        assert plane.plane.publisher.current is None
        second = nodes.start(plane.endpoint, "n2")
        await plane.until(lambda: plane.phases() == ["ready"])
        assert len(first.alive) + len(second.alive) == 1
        (shard,) = (*first.shards.values(), *second.shards.values())
        assert shard.key is None


async def test_without_a_store_what_runs_and_fits_is_taken_over(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_file(catalog_file(tmp_path)) as plane:
        agent = FakeAgent(plane.endpoint)
        wanted = profile(replicas=1)
        (spec,) = plan(placement("old", "n1", wanted))
        agent.adopt(spec)
        agent.term = 6
        nodes.start(plane.endpoint, agent=agent)
        nodes.start(plane.endpoint, "n2")
        await plane.until(lambda: plane.phases() == ["ready"])
        assert [key.replica for key in agent.alive] == ["old"]
        assert agent.starts == {}
        assert plane.plane.leader.term == 7
        snapshot = plane.plane.publisher.current
        assert snapshot is not None
        assert snapshot.routes[0].targets[0].key is None


async def test_a_stray_runs_on_until_an_operator_stops_it(tmp_path: Path, nodes: Nodes) -> None:
    async with on_file(catalog_file(tmp_path, replicas=0), settle_s=0.0) as plane:
        agent = FakeAgent(plane.endpoint)
        (spec,) = plan(placement("stray"))
        agent.adopt(spec)
        nodes.start(plane.endpoint, agent=agent)
        await plane.until(lambda: len(agent.assignments) > 0)
        seen = plane.plane.reconciler.seen
        assert seen is not None
        assert [stray.replica for stray in seen.decision.strays] == ["stray"]
        assert agent.assignments[-1].keep == (spec.key,)
        assert len(agent.alive) == 1
        plane.plane.tell(Condemned(ReplicaId("stray")))
        await plane.until(lambda: agent.alive == [])


async def test_without_a_store_only_listed_nodes_may_attach_and_edits_are_seen(
    tmp_path: Path, nodes: Nodes
) -> None:
    file = catalog_file(tmp_path, replicas=0)
    async with on_file(file, settle_s=0.0) as plane:
        stranger = nodes.start(plane.endpoint, "n3")
        await plane.until(lambda: "not listed" in stranger.refused)
        file.write_text(file.read_text().replace("n1, n2", "n1, n2, n3") + "# longer\n")
        plane.plane.edited()
        await plane.until(lambda: stranger.attached == 1)
        file.write_text("models: 3\n")
        plane.plane.edited()
        await plane.turn()
        await plane.turn()
        view = plane.plane.reconciler.seen
        assert view is not None
        assert {n.name for n in view.view.nodes.values()} == {"n1", "n2", "n3"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": "another"}, "copied disk"),
        ({"node": NodeId("n9"), "name": "n1"}, "another node is called n1"),
    ],
    ids=["copied disk", "same name"],
)
async def test_a_second_host_of_one_identity_is_refused_with_the_reason(
    tmp_path: Path, nodes: Nodes, changes: dict[str, str], words: str
) -> None:
    async with on_sqlite(tmp_path) as plane:
        first = nodes.start(plane.endpoint, "n1")
        await plane.until(lambda: len(first.assignments) == 1)
        other = FakeAgent(plane.endpoint, inventory=replace(inventory("n1"), **changes))  # type: ignore[arg-type]
        nodes.start(plane.endpoint, agent=other)
        await plane.until(lambda: words in other.refused)
        assert other.attached == 0


async def test_a_renamed_host_stays_the_same_node(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent = await ready(plane, nodes)
        agent.leave()
        await plane.until(lambda: plane.phases() == ["silent"])
        agent.inventory = replace(agent.inventory, name="renamed")
        agent.come_back()
        await plane.until(lambda: plane.phases() == ["ready"])
        assert plane.statuses[0].nodes == ("renamed",)
        assert list(agent.starts.values()) == [1]
