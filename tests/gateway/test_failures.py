"""Engines that fail: who is told what, what is counted, and where the request goes instead."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.core.traffic.usage import Ending
from llmgw.gateway.options import Limits
from llmgw.gateway.replicas import OPEN_S_FIRST
from llmgw.testing.engine import Behaviour, FakeEngine
from llmgw.testing.waiting import eventually
from tests.gateway.rig import QUICK, Raw, chat, options, post, running, serving, snapshot, target


async def test_a_stream_cut_by_the_engine_ends_as_an_error_never_cleanly(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(cut_after=2)) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=5)))
            assert (await raw.head())[0] == 200
            got = await raw.end()
        usage = await rig.record()
    assert got.count(b'"content"') == 2
    assert b"upstream_broke_off" in got
    assert b"[DONE]" not in got
    assert not got.endswith(b"0\r\n\r\n")
    assert (usage.ending, usage.status) == (Ending.ENGINE_FAILED, 200)
    assert (usage.completion_tokens, usage.estimated) == (2, True)


async def test_a_stream_cut_in_the_midst_of_an_event_breaks_the_connection(tmp_path: Path) -> None:
    asking = chat(stream=True, max_tokens=9, stream_options={"include_usage": True})
    async with serving(tmp_path, Behaviour(pieces=50, token_s=0.05)) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(asking))
            await raw.head()
            assert not (await raw.chunk()).endswith(b"\n\n")
            await rig.engine.stop()
            with pytest.raises(ConnectionResetError):
                await raw.end()
        usage = await rig.record()
    assert usage.ending is Ending.ENGINE_FAILED


async def test_an_answer_cut_by_the_engine_is_never_a_whole_one(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(cut_after=0)) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat()))
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await raw.answer()
        usage = await rig.record()
    assert usage.ending is Ending.ENGINE_FAILED


async def test_an_error_event_passes_and_counts_as_the_engines_failure(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(error_after=1)) as rig:
        answer = await rig.ask(post(chat(stream=True)))
        usage = await rig.record()
        metrics = rig.gateway.metrics_text()
    assert json.loads(answer.events[1])["error"]["message"] == "told to fail"
    assert usage.ending is Ending.ENGINE_FAILED
    assert (
        'llmgw_gateway_upstream_failures_total{code="upstream_error_event",replica="r1"} 1.0'
        in metrics
    )


async def test_an_error_event_about_the_request_is_no_failure_of_the_engine(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(error_after=1, error_code=400)) as rig:
        await rig.ask(post(chat(stream=True)))
        usage = await rig.record()
    assert usage.ending is Ending.ANSWERED


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_refuses_our_key_is_our_failure(tmp_path: Path, status: int) -> None:
    async with serving(tmp_path, Behaviour(status=status)) as rig:
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
        metrics = rig.gateway.metrics_text()
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_key_refused")
    assert (usage.ending, usage.status, usage.prompt_tokens) == (Ending.ENGINE_FAILED, 502, 0)
    assert not usage.estimated
    assert 'code="upstream_key_refused"' in metrics


async def test_a_server_error_passes_and_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(status=500)) as rig:
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
    assert (answer.status, answer.json["error"]["message"]) == (500, "told to fail")
    assert (usage.ending, usage.status, usage.prompt_tokens) == (Ending.ENGINE_FAILED, 500, 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"detail":"Not Found"}', "Not Found"),
        ('{"error":"Unauthorized"}', "Unauthorized"),
        ("<html>teapot", "<html>teapot"),
        ("x" * 100_000, "x" * 1000),
    ],
    ids=["fastapi", "bare", "html", "long"],
)
async def test_a_refusal_in_another_shape_is_put_into_openais(
    tmp_path: Path, body: str, message: str
) -> None:
    async with serving(tmp_path, Behaviour(status=404, body=body)) as rig:
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["message"] == message
    assert (usage.ending, usage.status, usage.completion_tokens) == (Ending.ANSWERED, 404, 0)


async def test_a_refusal_in_openais_shape_passes_as_it_is(tmp_path: Path) -> None:
    said = '{"error":{"code":400,"message":"too long","type":"x","n_ctx":512}}'
    async with serving(tmp_path, Behaviour(status=400, body=said)) as rig:
        answer = await rig.ask(post(chat(stream=True)))
    assert (answer.status, answer.body) == (400, said.encode())


async def test_a_silent_engine_is_given_up_and_told(tmp_path: Path) -> None:
    quick = replace(QUICK, first_byte_s=0.2)
    async with serving(tmp_path, Behaviour(silent_after=0), quick) as rig:
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
        await eventually(lambda: rig.engine.aborted == 1)
    assert (answer.status, answer.json["error"]["code"]) == (504, "upstream_silent")
    assert usage.ending is Ending.ENGINE_FAILED


async def test_a_stream_that_falls_silent_ends_as_an_error(tmp_path: Path) -> None:
    quick = replace(QUICK, idle_s=0.2)
    async with serving(tmp_path, Behaviour(silent_after=2), quick) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=9)))
            await raw.head()
            got = await raw.end()
        usage = await rig.record()
        await eventually(lambda: rig.engine.aborted == 1)
    assert b"upstream_silent" in got
    assert (usage.ending, usage.completion_tokens) == (Ending.ENGINE_FAILED, 2)


async def test_what_is_not_http_is_a_failure_with_a_sentence(tmp_path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with FakeEngine() as engine, await asyncio.start_server(babble, "127.0.0.1", 0) as other:
        there = replace(target(engine), port=other.sockets[0].getsockname()[1])
        obeyed = snapshot(engine)
        obeyed = replace(obeyed, routes=(replace(obeyed.routes[0], targets=(there,)),))
        async with running(options(tmp_path), lambda: obeyed) as rig:
            answer = await rig.ask(post(chat()))
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_broke_off")
    assert "not HTTP" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "behaviour", [Behaviour(status=401), Behaviour(load_s=60), None], ids=["401", "503", "refused"]
)
async def test_where_no_work_was_done_another_replica_is_asked(
    tmp_path: Path, behaviour: Behaviour | None
) -> None:
    async with FakeEngine(behaviour or Behaviour()) as bad, FakeEngine() as good:
        if behaviour is None:
            await bad.stop()
        async with running(options(tmp_path), lambda: snapshot(bad, good)) as rig:
            answers = [await rig.ask(post(chat())) for _ in range(4)]
            records = await rig.records(4)
    assert [answer.status for answer in answers] == [200] * 4
    assert {usage.replica for usage in records} == {"r2"}


async def test_a_request_that_may_have_been_worked_on_is_not_sent_twice(tmp_path: Path) -> None:
    async with (
        FakeEngine(Behaviour(drop=True)) as bad,
        FakeEngine(Behaviour(drop=True)) as other,
        running(options(tmp_path), lambda: snapshot(bad, other)) as rig,
    ):
        answer = await rig.ask(post(chat()))
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_closed")
    assert len(bad.seen) + len(other.seen) == 1


async def test_a_pooled_connection_that_went_stale_is_no_failure(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(closes_idle=True)) as rig:
        for _ in range(5):
            assert (await rig.ask(post(chat()))).status == 200
        metrics = rig.gateway.metrics_text()
    assert "upstream_failures_total{" not in metrics


async def test_connections_to_an_engine_are_kept_and_used_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        for _ in range(5):
            await rig.ask(post(chat(stream=True)))
            await rig.ask(post(chat()))
        assert rig.engine.connections == 1


async def test_a_failing_replica_is_left_alone_and_tried_again_later(tmp_path: Path) -> None:
    async with (
        FakeEngine(Behaviour(status=500)) as bad,
        FakeEngine() as good,
        running(options(tmp_path), lambda: snapshot(bad, good)) as rig,
    ):
        statuses = [(await rig.ask(post(chat()))).status for _ in range(20)]
        assert statuses.count(500) == 3
        assert 'llmgw_gateway_breaker_open{replica="r1"} 1.0' in rig.gateway.metrics_text()
        bad.behaviour = Behaviour()

        def tried_again() -> bool:
            return 'breaker_open{replica="r1"} 0.0' in rig.gateway.metrics_text()

        async with asyncio.timeout(10):
            while not tried_again():
                assert (await rig.ask(post(chat()))).status == 200


async def test_the_clients_own_errors_do_not_shut_a_replica(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(status=400)) as rig:
        assert [(await rig.ask(post(chat()))).status for _ in range(8)] == [400] * 8
        rig.engine.behaviour = Behaviour()
        assert (await rig.ask(post(chat()))).status == 200


async def test_requests_that_make_engines_fail_leave_others_an_engine(tmp_path: Path) -> None:
    """llama.cpp answers 500 to an image that it cannot read, and the openai client asks again."""
    poison = post(chat(fake={"status": 500}))
    event = post(chat(stream=True, fake={"error_after": 0}))
    async with (
        FakeEngine() as one,
        FakeEngine() as other,
        running(options(tmp_path), lambda: snapshot(one, other)) as rig,
    ):
        for _ in range(6):
            for request in (poison, event):
                await rig.ask(request)
            assert (await rig.ask(post(chat()))).status == 200
        for _ in range(20):
            assert (await rig.ask(poison)).status == 500
        rig.gateway.obey(snapshot(one, revision=2))
        for _ in range(20):
            assert (await rig.ask(poison)).status == 500
        async with asyncio.timeout(OPEN_S_FIRST):
            assert (await rig.ask(post(chat()))).status == 200


async def test_what_an_engine_cannot_do_at_all_is_no_failure(tmp_path: Path) -> None:
    asked = post({"model": "m", "input": "x"}, "/v1/embeddings")
    async with (
        FakeEngine(Behaviour(status=501)) as one,
        FakeEngine(Behaviour(status=501)) as other,
        running(options(tmp_path), lambda: snapshot(one, other)) as rig,
    ):
        assert [(await rig.ask(asked)).status for _ in range(9)] == [501] * 9
        assert "upstream_failures_total{" not in rig.gateway.metrics_text()
        assert {usage.ending for usage in await rig.records(9)} == {Ending.ANSWERED}


async def test_a_model_without_replicas_says_why_and_when_to_come_back(tmp_path: Path) -> None:
    async with running(options(tmp_path), snapshot) as rig:
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_capacity")
    assert answer.json["error"]["message"] == "no replica of m is ready: it loads still"
    assert int(answer.headers["retry-after"]) >= 1
    assert (usage.ending, usage.status, usage.model) == (Ending.REFUSED, 503, "m")


async def test_a_replica_that_becomes_ready_takes_who_waits(tmp_path: Path) -> None:
    waiting = options(tmp_path, replace(QUICK, unready_s=10.0))
    async with FakeEngine() as engine, running(waiting, snapshot) as rig, Raw.to(rig.port) as raw:
        raw.send(post(chat()))
        await eventually(lambda: "llmgw_gateway_waiting 1.0" in rig.gateway.metrics_text())
        rig.gateway.obey(snapshot(engine, revision=2))
        assert (await raw.answer()).status == 200


async def test_the_queue_is_bounded_in_length_and_in_time(tmp_path: Path) -> None:
    limits = Limits(in_flight_max=1, waiting_max=1)
    given = options(tmp_path, replace(QUICK, wait_s=0.5), limits)
    async with (
        FakeEngine(Behaviour(first_token_s=60)) as engine,
        running(given, lambda: snapshot(engine)) as rig,
        Raw.to(rig.port) as first,
        Raw.to(rig.port) as second,
    ):
        first.send(post(chat()))
        await eventually(lambda: rig.gateway.load() == {"r1": 1})
        second.send(post(chat()))
        await eventually(lambda: "llmgw_gateway_waiting 1.0" in rig.gateway.metrics_text())
        third = await rig.ask(post(chat()))
        assert (third.status, third.json["error"]["code"]) == (429, "queue_full")
        assert int(third.headers["retry-after"]) >= 1
        timed_out = await second.answer()
        assert (timed_out.status, timed_out.json["error"]["code"]) == (503, "no_capacity")
        assert rig.gateway.load() == {"r1": 1}


async def test_a_freed_place_goes_to_who_waits(tmp_path: Path) -> None:
    given = options(tmp_path, limits=Limits(in_flight_max=1))
    async with (
        FakeEngine(Behaviour(first_token_s=0.1)) as engine,
        running(given, lambda: snapshot(engine)) as rig,
    ):
        answers = await asyncio.gather(*(rig.ask(post(chat())) for _ in range(5)))
        await rig.idle()
    assert [answer.status for answer in answers] == [200] * 5


async def test_least_busy_first_and_equals_take_turns(tmp_path: Path) -> None:
    async with (
        FakeEngine() as one,
        FakeEngine() as two,
        running(options(tmp_path), lambda: snapshot(one, two)) as rig,
    ):
        for _ in range(10):
            await rig.ask(post(chat()))
        one.behaviour = Behaviour(first_token_s=60)
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat()))
            await eventually(lambda: one.running == 1)
            for _ in range(4):
                await rig.ask(post(chat()))
    assert (len(one.seen), len(two.seen)) == (6, 9)
