"""What gateways are told, and what they tell: routes, drains, usage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from llmgw.control.reconciler import GATEWAY_FORGOTTEN_S
from llmgw.control.routes import build_routes, next_snapshot, why_nobody
from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog, Model
from llmgw.core.fleet.decision import Decision, ReplicaStatus, RouteTo, Shortfall
from llmgw.core.fleet.keys import engine_key
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.fleet.view import GatewayView
from llmgw.core.ids import ReplicaId
from llmgw.core.traffic.snapshot import ApiKey, Change, Route, Snapshot, changed
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.runtime.tasks import OwnedTasks
from llmgw.testing.fleet import catalog, profile
from llmgw.wire.dialing import DialOptions
from llmgw.wire.errors import LinkLostError, LinkRefusedError
from llmgw.wire.gateway_link import PublisherLink, follow_control
from llmgw.wire.messages import GatewayHello, Load, UsageBatch, UsageStored
from tests.control.planes import CLOCK, Nodes, Running, on_file, on_sqlite

R1 = ReplicaId("r1")
SECRET = b"secret"


def to(replica: ReplicaId = R1, *, keyed: bool = True) -> RouteTo:
    return RouteTo("m", replica, 2, "10.0.0.1", 18100, "llamacpp", keyed=keyed, confirmed=True)


def status(phase: ReplicaPhase) -> ReplicaStatus:
    return ReplicaStatus(R1, "m", "p", 1, phase, "starts anew in 12 s")


def test_a_route_holds_the_engine_s_key_only_where_the_engine_has_one() -> None:
    for secret, keyed, key in (
        (SECRET, True, engine_key(SECRET, R1)),
        (SECRET, False, None),
        (None, True, None),
    ):
        decision = Decision(routes=(to(keyed=keyed),))
        (route,) = build_routes(catalog(profile()), decision, secret)
        (target,) = route.targets
        assert (target.replica, target.incarnation, target.host, target.port) == (
            "r1",
            2,
            "10.0.0.1",
            18100,
        )
        assert target.key == key
        assert route.why == ""


def test_a_model_without_replicas_has_a_route_that_says_why() -> None:
    model = catalog(profile()).models[0]
    assert "loading" in why_nobody(model, Decision(statuses=(status(ReplicaPhase.LOADING),)))
    assert "12 s" not in why_nobody(model, Decision(statuses=(status(ReplicaPhase.FAILED),)))
    short = Decision(shortfalls=(Shortfall("p", "m", 1, "n1: GPU 0 is taken"),))
    assert "no machine has room" in why_nobody(model, short)
    assert "n1" not in why_nobody(model, short)
    assert "switched off" in why_nobody(Model("m", (profile(replicas=0),)), Decision())


def test_the_revision_grows_with_the_content_only() -> None:
    routes, key = (Route("m"),), ApiKey("k", "hash", "team")
    first = next_snapshot(None, 3, routes, ())
    assert first.order == (3, 1)
    assert next_snapshot(first, 3, routes, ()) is first
    second = next_snapshot(first, 3, routes, (key,))
    assert (second.order, second.keys) == ((3, 2), (key,))
    assert next_snapshot(second, 4, routes, (key,)).order == (4, 3)


@dataclass
class FakeGateway:
    """A gateway that obeys, and tells what a test says."""

    link: PublisherLink
    snapshot: Snapshot = field(default_factory=Snapshot)
    wholes: int = 0
    stored: list[int] = field(default_factory=list)
    obeys: bool = True
    in_flight: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        async for message in self.link:
            match message:
                case Snapshot():
                    self.wholes += 1
                    self.snapshot = message
                case Change():
                    after = changed(self.snapshot, message)
                    assert after is not None
                    self.snapshot = after
                case UsageStored(batch):
                    self.stored.append(batch)
            if self.obeys:
                await self.tell()

    async def tell(self) -> None:
        await self.link.send(Load(*self.snapshot.order, dict(self.in_flight)))

    @property
    def targets(self) -> list[str]:
        return [target.replica for route in self.snapshot.routes for target in route.targets]


@asynccontextmanager
async def gateway_on(
    plane: Running, name: str = "g1", order: tuple[int, int] = (0, 0)
) -> AsyncIterator[FakeGateway]:
    hello = GatewayHello(name, *order)
    async with (
        OwnedTasks("gateway", tasks_max=1) as tasks,
        follow_control(plane.gateways, hello, DialOptions(), CLOCK) as link,
    ):
        gateway = FakeGateway(link)
        run = tasks.start(gateway.run(), "gateway")
        yield gateway
        run.cancel()


async def test_a_gateway_gets_a_whole_snapshot_and_then_changes(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        await plane.until(lambda: gateway.wholes == 1)
        agent = nodes.start(plane.endpoint)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: len(gateway.targets) == 1)
        assert gateway.wholes == 1
        assert gateway.targets == [key.replica for key in agent.alive]
        async with gateway_on(plane, "g2") as second:
            await plane.until(lambda: second.snapshot == gateway.snapshot)
            assert second.snapshot == plane.plane.publisher.current


async def test_a_removed_replica_drains_until_no_gateway_has_it_in_flight(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        agent = nodes.start(plane.endpoint)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: len(gateway.targets) == 1)
        replica = gateway.targets[0]
        gateway.in_flight = {replica: 2}
        await gateway.tell()
        await plane.apply(Catalog())
        await plane.until(lambda: gateway.targets == [])
        await plane.until(lambda: "2 requests on gateway g1" in plane.statuses[0].why)
        assert len(agent.alive) == 1
        gateway.in_flight = {}
        await gateway.tell()
        await plane.until(lambda: agent.alive == [])


async def test_a_drain_waits_for_a_gateway_that_has_not_taken_the_snapshot_yet(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        agent = nodes.start(plane.endpoint)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: len(gateway.targets) == 1)
        gateway.obeys = False
        await plane.apply(Catalog())
        await plane.until(lambda: "to stop routing to it" in "".join(s.why for s in plane.statuses))
        await plane.turn()
        assert len(agent.alive) == 1
        await gateway.tell()
        await plane.until(lambda: agent.alive == [])


async def test_while_it_holds_a_gateway_is_told_nothing(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        agent, other = nodes.start(plane.endpoint, "n1"), nodes.start(plane.endpoint, "n2")
        await plane.apply(catalog(profile(replicas=2)))
        await plane.until(lambda: plane.phases() == ["ready", "ready"])
    # The store goes back in time: it knows the nodes, and nothing of what runs.
    for agent_ in (agent, other):
        agent_.leave()
    async with on_sqlite(tmp_path) as plane:
        await plane.until(lambda: plane.plane.leader.term == 2)
        stored = (await plane.plane.store.placements.all()).intents
        await plane.plane.store.placements.apply(2, (), [i.replica for i in stored])
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        await plane.until(lambda: gateway.wholes == 1)
        agent.endpoint = other.endpoint = plane.endpoint
        before = gateway.snapshot
        agent.come_back()
        await plane.until(lambda: bool(plane.plane.reconciler.seen and _hold(plane)))
        await plane.turn()
        assert gateway.snapshot == before
        assert [a.term for a in agent.assignments if a.term == 3] == []
        other.come_back()
        await plane.until(lambda: plane.phases() == ["ready", "ready"])
        await plane.until(lambda: len(gateway.targets) == 2)
        assert sum((*agent.starts.values(), *other.starts.values())) == 2


def _hold(plane: Running) -> str:
    seen = plane.plane.reconciler.seen
    return seen.decision.hold if seen else ""


def record(request: str) -> Usage:
    return Usage(request, 1000.0, "k1", "team", "m", "/v1/completions", Ending.ANSWERED, 200)


async def test_usage_is_stored_once_and_acknowledged(tmp_path: Path) -> None:
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        await gateway.link.send(UsageBatch(1, (record("a"), record("b"))))
        await gateway.link.send(UsageBatch(2, (record("b"), record("c"))))
        await plane.until(lambda: gateway.stored == [1, 2])
        assert plane.plane.usage.records_stored == 3
        ledger = plane.plane.store.usage
        assert ledger is not None
        assert (await ledger.totals(0.0, 1e12))[0].requests == 3


class FullLedger:
    """Refuses as often as it is told."""

    def __init__(self, real: object, times: int) -> None:
        self._real = real
        self.left = times

    async def add(self, records: object, gateway: str) -> int:
        if self.left > 0:
            self.left -= 1
            raise StorageError("there is no space")
        return await self._real.add(records, gateway)  # type: ignore[attr-defined, no-any-return]


async def test_usage_that_cannot_be_stored_is_not_acknowledged_before_it_is(
    tmp_path: Path,
) -> None:
    async with on_sqlite(tmp_path) as plane, gateway_on(plane) as gateway:
        full = FullLedger(plane.plane.store.usage, 2)
        plane.plane.usage._ledger = full  # type: ignore[assignment]
        await gateway.link.send(UsageBatch(1, (record("a"),)))
        await plane.until(lambda: "no space" in plane.plane.usage.trouble)
        assert gateway.stored == []
        await plane.until(lambda: gateway.stored == [1])
        assert plane.plane.usage.trouble == ""


async def test_a_gateway_that_never_reads_holds_up_nobody(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        hello = GatewayHello("deaf", 0, 0)
        async with follow_control(plane.gateways, hello, DialOptions(), CLOCK):
            nodes.start(plane.endpoint)
            await plane.apply(catalog(profile()))
            async with gateway_on(plane) as gateway:
                await plane.until(lambda: len(gateway.targets) == 1)


async def test_a_gateway_that_was_away_for_long_is_forgotten(tmp_path: Path) -> None:
    async with on_sqlite(tmp_path) as plane:
        async with gateway_on(plane, "old") as gateway:
            await plane.until(lambda: gateway.wholes == 1)
        async with gateway_on(plane, "young") as gateway:
            await plane.until(lambda: gateway.wholes == 1)
            gateways = plane.plane.store.gateways
            assert {g.gateway for g in await gateways.all()} == {"old", "young"}
            seen = plane.plane.reconciler.seen
            assert seen is not None
            long_ago = replace(
                seen.view,
                gateways=(
                    GatewayView("old", silent_s=GATEWAY_FORGOTTEN_S + 1.0),
                    GatewayView("young", silent_s=GATEWAY_FORGOTTEN_S - 1.0),
                ),
            )
            await plane.plane.reconciler._forget_gateways(long_ago)
            assert {g.gateway for g in await gateways.all()} == {"young"}
            assert any("is forgotten" in what for what in await plane.events())


async def test_a_gateway_that_left_is_not_told_any_more(tmp_path: Path) -> None:
    async with on_sqlite(tmp_path) as plane:
        async with gateway_on(plane) as gateway:
            await plane.until(lambda: gateway.wholes == 1)
        await plane.until(lambda: plane.plane.publisher._wakes == set())
        seen = plane.plane.reconciler.seen
        assert seen is not None
        try:
            await asyncio.wait_for(gateway.link.send(Load(1, 1)), 1.0)
        except LinkLostError:
            return
        raise AssertionError("the link of a gateway that left still takes messages")


async def test_a_gateway_of_another_life_is_told_under_a_term_above_the_one_that_it_obeys(
    tmp_path: Path,
) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text("models: []\nnodes: []\n")
    for begin in ((1, 50), (6, 3)):  # the first term of every life without a store, and a higher
        async with on_file(file) as plane, gateway_on(plane, order=begin) as gateway:
            await plane.until(lambda: gateway.snapshot.order > begin)  # noqa: B023
            assert gateway.snapshot.term == begin[0] + 1


async def test_a_gateway_with_a_term_that_nobody_can_have_reached_is_refused(
    tmp_path: Path,
) -> None:
    async with on_sqlite(tmp_path) as plane:
        with pytest.raises(LinkRefusedError, match="no control plane can have reached"):
            async with gateway_on(plane, order=(2**60, 1)):
                pass
        await plane.turn()
        assert plane.plane.leader.term == 1
