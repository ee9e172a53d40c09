"""HTTP as clients really speak it, byte by byte."""

import asyncio
import gc
import gzip
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.core.traffic.snapshot import Route
from llmgw.gateway.options import Limits
from llmgw.testing.engine import Behaviour, FakeEngine
from tests.gateway.rig import (
    KEY,
    QUICK,
    Raw,
    api_key,
    chat,
    get,
    options,
    post,
    running,
    serving,
    snapshot,
)


async def test_one_connection_carries_many_requests_of_all_kinds(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        for request, status in [
            (post(chat()), 200),
            (post(chat(stream=True)), 200),
            (post(chat(), key="wrong"), 401),
            (get("/v1/models"), 200),
            (get("/nowhere"), 404),
            (post({"model": "other"}), 404),
            (post(chat(stream=True)), 200),
        ]:
            raw.send(request)
            answer = await raw.answer()
            assert answer.status == status
            assert "connection" not in answer.headers


async def test_pipelined_requests_are_answered_in_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        raw.send(
            post(chat(max_tokens=1, fake={"first_token_s": 0.2}))
            + post(chat(stream=True, max_tokens=2))
            + get("/v1/models")
            + post(chat(max_tokens=3))
        )
        first, second, third, fourth = [await raw.answer() for _ in range(4)]
    assert first.json["usage"]["completion_tokens"] == 1
    assert len(second.events) == 3
    assert third.json["object"] == "list"
    assert fourth.json["usage"]["completion_tokens"] == 3


async def test_a_client_that_says_close_gets_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        for body in (chat(), chat(stream=True)):
            async with Raw.to(rig.port) as raw:
                raw.send(post(body, headers=["Connection: close"]))
                answer = await raw.answer()
                assert answer.headers["connection"] == "close"
                assert await raw.end() == b""


async def test_http_1_0_gets_no_chunks(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        raw.send(post(chat(stream=True, max_tokens=2), version="1.0"))
        answer = await raw.answer()
    assert "transfer-encoding" not in answer.headers
    assert "content-length" not in answer.headers
    assert answer.events[-1] == "[DONE]"
    assert len(answer.events) == 3


async def test_http_1_0_may_keep_the_connection_where_the_length_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        for _ in range(2):
            raw.send(post(chat(), version="1.0", headers=["Connection: keep-alive"]))
            answer = await raw.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
        raw.send(post(chat(), version="1.0"))
        assert (await raw.answer()).headers["connection"] == "close"
        assert await raw.end() == b""


async def test_a_cut_stream_over_http_1_0_is_a_reset_not_an_end(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Behaviour(cut_after=2, token_s=0.05)) as rig,
        Raw.to(rig.port) as raw,
    ):
        raw.send(post(chat(stream=True, max_tokens=5), version="1.0"))
        await raw.head()
        with pytest.raises(ConnectionResetError):
            await raw.end()


async def test_who_expects_a_go_ahead_gets_one_before_the_body(tmp_path: Path) -> None:
    request = post(chat(), headers=["Expect: 100-continue"])
    head, _, body = request.partition(b"\r\n\r\n")
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        raw.send(head + b"\r\n\r\n")
        assert (await raw.head())[0] == 100
        raw.send(body)
        assert (await raw.answer()).status == 200
        raw.send(request)
        assert (await raw.answer()).status == 200


async def test_who_expects_a_go_ahead_without_a_key_gets_none(tmp_path: Path) -> None:
    head = post(chat(), key="wrong", headers=["Expect: 100-continue"]).partition(b"\r\n\r\n")[0]
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        raw.send(head + b"\r\n\r\n")
        answer = await raw.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")


async def test_chunked_and_compressed_bodies_are_understood(tmp_path: Path) -> None:
    body = json.dumps(chat()).encode()
    packed = gzip.compress(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        body[:5],
        len(body) - 5,
        body[5:],
    )
    compressed = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        for rest in (chunked, compressed):
            raw.send(head.encode() + rest)
            assert (await raw.answer()).status == 200
    assert [seen.body for seen in rig.engine.seen] == [body] * 2
    assert "content-encoding" not in rig.engine.seen[1].headers


async def test_a_body_that_cannot_be_unpacked_is_the_clients_error(tmp_path: Path) -> None:
    broken = post(b"not gzip at all", headers=["Content-Encoding: gzip"])
    async with serving(tmp_path) as rig:
        answer = await rig.ask(broken)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    given = options(tmp_path, limits=Limits(body_bytes_max=1000))
    packed = gzip.compress(b" " * 1_000_000)
    async with FakeEngine() as engine, running(given, lambda: snapshot(engine)) as rig:
        declared = await rig.ask(post(b" " * 1001).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        unpacked = await rig.ask(post(packed, headers=["Content-Encoding: gzip"]))
        fits = await rig.ask(post(chat()))
    assert (declared.status, declared.json["error"]["code"]) == (413, "request_too_large")
    assert declared.headers["connection"] == "close"
    assert unpacked.status == 413
    assert fits.status == 200


async def test_a_large_body_arrives_whole(tmp_path: Path) -> None:
    body = chat(messages=[{"role": "user", "content": "ä" * 3_000_000}])
    async with serving(tmp_path) as rig:
        assert (await rig.ask(post(body))).status == 200
    assert rig.engine.seen[0].json == body


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, deadlines=replace(QUICK, body_s=0.2)) as rig,
        Raw.to(rig.port) as raw,
    ):
        raw.send(post(chat())[:-3])
        answer = await raw.answer()
        usage = await rig.record()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert (usage.status, usage.prompt_tokens) == (408, 0)


async def test_a_head_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, deadlines=replace(QUICK, keep_alive_s=0.2)) as rig,
        Raw.to(rig.port) as silent,
        Raw.to(rig.port) as slow,
    ):
        slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nHo")
        assert await silent.end() == b""
        assert await slow.end() == b""


async def test_what_is_not_http_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as rig, Raw.to(rig.port) as raw:
        raw.send(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")
        assert b" 400 " in await raw.end()
    assert not [record for record in caplog.records if record.name.startswith("llmgw")]


async def test_more_connections_than_may_be_are_closed(tmp_path: Path) -> None:
    given = options(tmp_path, limits=Limits(connections_max=1))
    async with (
        FakeEngine() as engine,
        running(given, lambda: snapshot(engine)) as rig,
        Raw.to(rig.port) as first,
    ):
        first.send(get("/v1/models"))
        assert (await first.answer()).status == 200
        async with Raw.to(rig.port) as second:
            second.send(get("/v1/models"))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await second.answer()
        first.send(get("/v1/models"))
        assert (await first.answer()).status == 200


@pytest.mark.parametrize(
    ("request_", "status", "code", "header"),
    [
        (post(chat(), key=None), 401, "invalid_api_key", "www-authenticate"),
        (post(chat(), key="wrong"), 401, "invalid_api_key", "www-authenticate"),
        (post(chat(), key=None, headers=["Authorization: Basic eDp5"]), 401, "invalid_api_key", ""),
        (get("/v1/models", key=None), 401, "invalid_api_key", ""),
        (get("/v1/chat/completions"), 405, "method_not_allowed", "allow"),
        (post({}, "/v1/models"), 405, "method_not_allowed", "allow"),
        (post({}, "/v1/responses"), 404, "unknown_url", ""),
        (get("/"), 404, "unknown_url", ""),
        (get("/healthz"), 404, "unknown_url", ""),
        (get("/metrics"), 404, "unknown_url", ""),
        (post(b"{"), 400, "invalid_request", ""),
        (post(b""), 400, "invalid_request", ""),
        (post({"model": "other"}), 404, "model_not_found", ""),
    ],
    ids=str,
)
async def test_refusals_are_openai_shaped(
    tmp_path: Path, request_: bytes, status: int, code: str, header: str
) -> None:
    async with serving(tmp_path) as rig:
        answer = await rig.ask(request_)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert not header or header in answer.headers
    assert not rig.engine.seen


async def test_a_wrong_member_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        answer = await rig.ask(post({"model": 5}))
    assert answer.json["error"]["param"] == "model"


async def test_a_key_may_come_as_x_api_key_and_in_any_case(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        for header in (f"x-api-key: {KEY}", f"X-API-KEY: {KEY}", f"authorization: bEaReR {KEY}"):
            assert (await rig.ask(post(chat(), key=None, headers=[header]))).status == 200


async def test_a_key_in_the_address_is_no_key_and_goes_nowhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        path = f"/v1/chat/completions?api_key={KEY}"
        assert (await rig.ask(post(chat(), path, key=None))).status == 401
        assert (await rig.ask(post(chat(), path))).status == 200
    assert [seen.path for seen in rig.engine.seen] == ["/v1/chat/completions"]


async def test_keys_expire_and_cover_what_they_cover(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        whole = snapshot(engine)
        other = Route("other", targets=whole.routes[0].targets)
        keys = (
            api_key("old", id="k1", expires_wall_s=1.0),
            api_key("fresh", id="k2", expires_wall_s=1e12),
            api_key("one", id="k3", models=("other",)),
            api_key("nick", id="k4", models=("nick",)),
        )
        obeyed = replace(whole, routes=(*whole.routes, other), keys=keys)
        async with running(options(tmp_path), lambda: obeyed) as rig:

            async def status(key: str, model: str) -> int:
                return (await rig.ask(post({**chat(), "model": model}, key=key))).status

            assert await status("old", "m") == 401
            assert await status("fresh", "m") == 200
            assert (await status("one", "m"), await status("one", "other")) == (404, 200)
            assert (await status("nick", "nick"), await status("nick", "m")) == (200, 404)
            listed = await rig.ask(get("/v1/models", key="one"))
    assert [model["id"] for model in listed.json["data"]] == ["other"]


async def test_an_engine_learns_nothing_that_proves_the_client(tmp_path: Path) -> None:
    secrets = [
        f"X-API-Key: {KEY}",
        f"api-key: {KEY}",
        "Cookie: session=s3cret",
        "Proxy-Authorization: Basic s3cret",
        "X-Forwarded-For: 10.1.2.3",
        "Connection: X-Hop",
        "X-Hop: s3cret",
    ]
    passed = ["X-Request-ID: mine", "traceparent: 00-abc-def-01"]
    async with serving(tmp_path, key="engine-key") as rig:
        assert (await rig.ask(post(chat(), headers=secrets + passed))).status == 200
    seen = rig.engine.seen[0].headers
    assert seen == {
        "host": f"127.0.0.1:{rig.engine.port}",
        "authorization": "Bearer engine-key",
        "x-request-id": "mine",
        "traceparent": "00-abc-def-01",
        "content-type": "application/json",
        "content-length": seen["content-length"],
    }


async def test_a_client_learns_nothing_that_is_between_gateway_and_engine(tmp_path: Path) -> None:
    lines = (
        "Connection: X-Hop",
        "X-Hop: s3cret",
        "Set-Cookie: a=b",
        "Keep-Alive: timeout=5",
        "X-Passes: yes",
    )
    async with serving(tmp_path, Behaviour(headers=lines)) as rig:
        whole = await rig.ask(post(chat()))
        stream = await rig.ask(post(chat(stream=True)))
    for answer in (whole, stream):
        assert answer.headers["x-passes"] == "yes"
        known = {"x-passes", "content-type", "x-request-id", "content-length", "transfer-encoding"}
        assert answer.headers.keys() <= known


async def test_small_writes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(silent_after=1)) as rig, Raw.to(rig.port) as raw:
        raw.send(post(chat(stream=True)))
        await raw.tokens_after_head(1)
        mine = [
            each
            for each in gc.get_objects()
            if isinstance(each, socket.socket)
            and each.family is socket.AF_INET
            and each.fileno() >= 0
            and _ports(each) & {rig.port, rig.engine.port}
            and each.getsockname()[1] != rig.engine.port
        ]
        delays = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in mine]
    assert len(delays) >= 2
    assert all(delays)


def _ports(connection: socket.socket) -> set[int]:
    """Both ports of a connection; none of a socket that listens."""
    try:
        return {connection.getsockname()[1], connection.getpeername()[1]}
    except OSError:
        return set()
