"""The gateway as a whole: snapshots, restarts, health, metrics, the journal behind requests."""

import asyncio
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmgw.core.traffic.snapshot import Change, Snapshot, change
from llmgw.core.traffic.usage import Ending
from llmgw.gateway.gateway import build_gateway
from llmgw.gateway.options import JournalOptions
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.files import LockHeldError
from llmgw.runtime.threads import ThreadPool
from llmgw.testing.engine import Behaviour, FakeEngine
from llmgw.testing.waiting import eventually
from tests.gateway.rig import Raw, chat, options, post, running, serving, snapshot, target


async def test_a_gateway_starts_from_its_last_snapshot(tmp_path: Path) -> None:
    async with FakeEngine(key="engine-key") as engine:
        async with running(options(tmp_path), lambda: snapshot(engine)):
            file = tmp_path / "snapshot.json"
            await eventually(file.exists)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with running(options(tmp_path)) as again:
            assert (await again.ask(post(chat()))).status == 200
            assert again.gateway.snapshot == snapshot(engine)


@pytest.mark.parametrize("content", ["", '{"term":1,"keys":[{"s3cret":', "[]"])
async def test_a_broken_snapshot_file_is_said_and_mended(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(content)
    async with FakeEngine() as engine, running(options(tmp_path)) as rig:
        assert f"{file} is not a whole snapshot" in caplog.text
        assert "s3cret" not in caplog.text
        assert rig.gateway.health()[0] is False
        rig.gateway.obey(snapshot(engine))
        await eventually(lambda: file.read_text() != content)
        assert (await rig.ask(post(chat()))).status == 200


async def test_of_two_snapshots_the_later_is_obeyed(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        gateway = rig.gateway
        assert gateway.obey(Snapshot(1, 2))
        assert not gateway.obey(Snapshot(1, 1))
        assert gateway.obey(Snapshot(2, 1))
        assert not gateway.obey(Snapshot(1, 9))
        assert gateway.snapshot.order == (2, 1)


async def test_a_change_for_another_snapshot_is_not_obeyed(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        before = snapshot(rig.engine)
        after = replace(snapshot(revision=2), keys=())
        assert not rig.gateway.obey_change(Change(1, base=7, revision=8))
        assert rig.gateway.obey_change(change(before, after))
        assert rig.gateway.snapshot == after


async def test_an_unconfirmed_target_stays_and_is_never_new(tmp_path: Path) -> None:
    async with FakeEngine() as one, FakeEngine() as two:
        known = target(one, "r1", confirmed=False)
        unknown = target(two, "r2", confirmed=False)
        after = snapshot(one, revision=2)
        after = replace(after, routes=(replace(after.routes[0], targets=(known, unknown)),))
        async with running(options(tmp_path), lambda: snapshot(one)) as rig:
            await rig.ask(post(chat()))
            rig.gateway.obey(after)
            for _ in range(3):
                assert (await rig.ask(post(chat()))).status == 200
            assert (len(one.seen), len(two.seen)) == (4, 0)
            assert one.connections == 1  # the pool lived on
            # A change is taken against what was sent, unconfirmed targets included.
            third = replace(snapshot(one, two, revision=3))
            assert rig.gateway.obey_change(change(after, third))
            await rig.ask(post(chat()))
            await rig.ask(post(chat()))
            assert len(two.seen) == 1


async def test_a_replica_that_leaves_finishes_and_is_still_counted(tmp_path: Path) -> None:
    async with (
        FakeEngine(Behaviour(token_s=0.1)) as one,
        FakeEngine() as two,
        running(options(tmp_path), lambda: snapshot(one)) as rig,
    ):
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=4)))
            await raw.tokens_after_head(1)
            other = snapshot(revision=2)
            routes = (replace(other.routes[0], targets=(target(two, "r2"),)),)
            rig.gateway.obey(replace(other, routes=routes))
            assert rig.gateway.load() == {"r1": 1, "r2": 0}
            assert (await rig.ask(post(chat()))).status == 200
            while await raw.chunk():
                pass
        await eventually(lambda: rig.gateway.load() == {"r2": 0})
    assert (len(one.seen), len(two.seen), one.aborted) == (1, 1, 0)


async def test_a_journal_without_room_refuses_with_the_reason(tmp_path: Path) -> None:
    tiny = JournalOptions(segment_bytes=16 * 1024, bytes_max=32 * 1024)
    given = options(tmp_path, journal=tiny)
    async with FakeEngine() as engine, running(given, lambda: snapshot(engine)) as rig:
        answers = [await rig.ask(post(chat())) for _ in range(100)]
        await eventually(lambda: "acknowledged" in rig.gateway.journal.why)
        answer = await rig.ask(post(chat()))
        ok, how = rig.gateway.health()
        metrics = rig.gateway.metrics_text()
    assert answer.status == 503
    assert answer.json["error"]["code"] == "journal_full"
    assert "no control plane has acknowledged" in answer.json["error"]["message"]
    assert "retry-after" in answer.headers
    assert not ok
    assert "acknowledged" in str(how["why"])
    assert "llmgw_gateway_journal_refuses 1.0" in metrics
    assert len(engine.seen) == [each.status for each in answers].count(200) > 10


async def test_a_request_that_a_killed_gateway_carried_is_counted_by_the_next(
    tmp_path: Path,
) -> None:
    first, left = tmp_path / "first", tmp_path / "left"
    async with (
        FakeEngine(Behaviour(silent_after=2)) as engine,
        running(options(first), lambda: snapshot(engine)) as rig,
        Raw.to(rig.port) as raw,
    ):
        raw.send(post(chat(stream=True, max_tokens=9)))
        await raw.tokens_after_head(2)
        left.mkdir()
        for path in first.glob("journal-*"):  # as kill -9 would leave them
            (left / path.name).write_bytes(path.read_bytes())
    async with running(options(left)) as again:
        usage = await again.record()
    assert (usage.ending, usage.estimated, usage.model) == (Ending.UNKNOWN, True, "m")
    assert (usage.key, usage.replica, usage.streamed) == ("key-1", "r1", True)
    assert usage.prompt_tokens > 0


async def test_two_gateways_cannot_have_one_directory(tmp_path: Path) -> None:
    async with running(options(tmp_path)):
        pool = ThreadPool("other")
        with pytest.raises(LockHeldError, match="running a gateway on this directory"):
            await pool.run(build_gateway, options(tmp_path), SystemClock(), pool)
        await pool.close()


async def test_a_taken_port_is_said_with_its_address(tmp_path: Path) -> None:
    async with running(options(tmp_path / "one")) as rig:
        pool = ThreadPool("other")
        given = replace(options(tmp_path / "two"), port=rig.port)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{rig.port}"):
            await pool.run(build_gateway, given, SystemClock(), pool)
        given = replace(given, port=0)
        again = await pool.run(build_gateway, given, SystemClock(), pool)
        await pool.run(again.close)
        await pool.close()


async def test_the_id_is_kept_over_restarts(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as rig:
        first = rig.gateway.id
    async with running(options(tmp_path)) as rig:
        assert rig.gateway.id == first


async def test_health_says_how_things_stand(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as rig:
        ok, how = rig.gateway.health()
        assert (ok, how["why"]) == (False, "no control plane has sent a snapshot yet")
        rig.gateway.obey(snapshot())
        ok, how = rig.gateway.health()
        assert ok
        assert (how["term"], how["revision"], how["models"], how["models_routed"]) == (1, 1, 1, 0)
        json.dumps(how)


async def test_metrics_are_well_formed_and_count_what_happened(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.ask(post(chat(max_tokens=3)))
        await rig.ask(post(chat(stream=True, max_tokens=2)))
        await rig.ask(post({"model": "m" * 100}))
        await rig.ask(post(chat(), key="wrong"))
        await rig.idle()
        text = rig.gateway.metrics_text()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["llmgw_gateway_requests_total", "200", "answered", "m"] == 2
    assert samples["llmgw_gateway_requests_total", "", "404", "refused"] == 1
    assert samples["llmgw_gateway_tokens_total", "completion", "m"] == 5
    assert samples["llmgw_gateway_tokens_total", "m", "prompt"] == 14
    assert samples["llmgw_gateway_errors_total", "invalid_api_key"] == 1
    assert samples["llmgw_gateway_first_byte_seconds_count", "m"] == 2
    assert samples["llmgw_gateway_request_seconds_bucket", "+Inf", "m"] == 2
    assert samples["llmgw_gateway_in_flight", "r1"] == 0
    assert "m" * 100 not in text


async def test_many_at_once_are_all_answered_and_counted_once(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(token_s=0.001)) as rig:
        bodies = [chat(stream=i % 2 == 0, max_tokens=1 + i % 5) for i in range(200)]
        answers = await asyncio.gather(*(rig.ask(post(body)) for body in bodies))
        records = await rig.records(200)
    assert {answer.status for answer in answers} == {200}
    assert len({usage.request for usage in records}) == 200
    used = sum(usage.completion_tokens for usage in records)
    assert used == sum(1 + i % 5 for i in range(200))
    assert not any(usage.estimated for usage in records)
