"""What a client gets, and what is written down about it."""

import gzip
import json
from pathlib import Path

import pytest

from llmgw.core.traffic.usage import Ending
from llmgw.testing.engine import Behaviour
from tests.gateway.rig import chat, get, post, serving


async def test_an_answer_comes_as_the_engine_gave_it_and_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, key="engine-key") as rig:
        answer = await rig.ask(post(chat(max_tokens=3)))
        usage = await rig.record()
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == "AAA"
    assert (usage.ending, usage.status, usage.model) == (Ending.ANSWERED, 200, "m")
    assert (usage.key, usage.account, usage.replica) == ("key-1", "acme", "r1")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 3, False)
    assert usage.path == "/v1/chat/completions"
    assert answer.headers["x-request-id"] == usage.request
    assert 0 < (usage.first_byte_s or 0) <= usage.duration_s


async def test_a_stream_that_did_not_ask_for_usage_gets_none_and_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        answer = await rig.ask(post(chat(stream=True, max_tokens=3)))
        usage = await rig.record()
    assert rig.engine.seen[0].json["stream_options"] == {"include_usage": True}
    assert [json.loads(e)["choices"] != [] for e in answer.events[:-1]] == [True] * 3
    assert answer.events[-1] == "[DONE]"
    assert b"usage" not in answer.body
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 3, False)
    assert usage.streamed


async def test_a_stream_that_asked_for_usage_passes_byte_by_byte(tmp_path: Path) -> None:
    body = chat(stream=True, max_tokens=3, stream_options={"include_usage": True})
    async with serving(tmp_path) as rig:
        answer = await rig.ask(post(body))
        usage = await rig.record()
    assert rig.engine.seen[0].json == body
    assert json.loads(answer.events[-2])["usage"]["completion_tokens"] == 3
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 3, False)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(together=True),
        Behaviour(pieces=1),
        Behaviour(pieces=37, line_end="\r\n"),
        Behaviour(line_end="\r", pieces=11),
        Behaviour(until_close=True),
        Behaviour(usage_every_chunk=True),
    ],
    ids=str,
)
async def test_however_a_stream_is_cut_only_the_usage_event_is_missing(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    asking = chat(stream=True, max_tokens=3, stream_options={"include_usage": True})
    async with serving(tmp_path, behaviour) as rig:
        whole = (await rig.ask(post(asking))).body
        without = (await rig.ask(post(chat(stream=True, max_tokens=3)))).body
        records = await rig.records(2)
    end = behaviour.line_end * 2
    events = whole.decode().split(end)
    assert json.loads(events[3].removeprefix("data: "))["choices"] == []
    assert without.decode() == end.join(events[:3] + events[4:])
    assert {(u.prompt_tokens, u.completion_tokens, u.estimated) for u in records} == {(7, 3, False)}


async def test_without_usage_the_chunks_are_counted_and_the_record_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(says_usage=False)) as rig:
        body = chat(stream=True, max_tokens=5)
        await rig.ask(post(body))
        usage = await rig.record()
    assert (usage.completion_tokens, usage.estimated) == (5, True)
    assert usage.prompt_tokens == -(-len(json.dumps(body)) // 4)


async def test_the_last_usage_of_a_stream_counts_not_the_sum(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(usage_every_chunk=True, says_usage=False)) as rig:
        await rig.ask(post(chat(stream=True, max_tokens=4)))
        usage = await rig.record()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 4, False)


async def test_completions_and_embeddings_are_served_and_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        text = await rig.ask(
            post({"model": "m", "prompt": "x", "max_tokens": 2}, "/v1/completions")
        )
        vectors = await rig.ask(post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings"))
        records = await rig.records(2)
    assert text.json["choices"][0]["text"] == "AA"
    assert len(vectors.json["data"]) == 2
    assert [(u.path, u.prompt_tokens, u.completion_tokens) for u in records] == [
        ("/v1/completions", 7, 2),
        ("/v1/embeddings", 10, 0),
    ]


async def test_an_alias_reaches_the_model_by_its_own_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        answer = await rig.ask(post({**chat(), "model": "nick"}))
        usage = await rig.record()
    assert answer.status == 200
    assert rig.engine.seen[0].json["model"] == "m"
    assert usage.model == "m"


async def test_a_compressed_answer_passes_as_it_is_and_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(gzip=True)) as rig:
        whole = await rig.ask(post(chat(max_tokens=3)))
        stream = await rig.ask(post(chat(stream=True, max_tokens=3)))
        records = await rig.records(2)
    assert whole.headers["content-encoding"] == stream.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(whole.body))["usage"]["completion_tokens"] == 3
    assert b"[DONE]" in gzip.decompress(stream.body)
    assert [(u.completion_tokens, u.estimated) for u in records] == [(3, False)] * 2


async def test_the_model_list_shows_what_the_key_covers(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        listed = await rig.ask(get("/v1/models"))
        one = await rig.ask(get("/v1/models/nick"))
        none = await rig.ask(get("/v1/models/other"))
        head = await rig.ask(get("/v1/models", method="HEAD"))
    assert [m["id"] for m in listed.json["data"]] == ["m", "nick"]
    assert one.json == {"id": "nick", "object": "model", "created": 7, "owned_by": "llmgw"}
    assert (none.status, none.json["error"]["code"]) == (404, "model_not_found")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len(listed.body)
