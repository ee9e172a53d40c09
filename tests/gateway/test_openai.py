"""The openai client against the gateway: what users really run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from llmgw.core.traffic.usage import Ending
from llmgw.testing.engine import Behaviour
from llmgw.testing.waiting import eventually
from tests.gateway.rig import KEY, Rig, serving

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client_of(rig: Rig, key: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client as users make one, but without retries."""
    base = f"http://127.0.0.1:{rig.port}/v1"
    async with openai.AsyncOpenAI(api_key=key, base_url=base, max_retries=0) as client:
        yield client


async def test_chat_whole_and_streamed(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, client_of(rig) as client:
        whole = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=3)
        assert whole.choices[0].message.content == "AAA"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 3
        stream = await client.chat.completions.create(
            model="nick", messages=HELLO, max_tokens=3, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "AAA"
        assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_with_usage(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, client_of(rig) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=HELLO,
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_completions_embeddings_and_models(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig, client_of(rig) as client:
        text = await client.completions.create(model="m", prompt="x", max_tokens=2)
        vectors = await client.embeddings.create(model="m", input=["a", "b"])
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("nick")
    assert text.choices[0].text == "AA"
    assert len(vectors.data) == 2
    assert models == ["m", "nick"]
    assert one.id == "nick"


async def test_errors_are_those_that_the_client_knows(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        async with client_of(rig, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.chat.completions.create(model="m", messages=HELLO)
        async with client_of(rig) as client:
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.chat.completions.create(model="other", messages=HELLO)
            assert unknown.value.code == "model_not_found"
            assert unknown.value.param == "model"
            rig.engine.behaviour = Behaviour(status=500)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize("behaviour", [Behaviour(cut_after=2), Behaviour(error_after=2)], ids=str)
async def test_a_stream_that_fails_raises_in_the_client(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    got = []
    async with serving(tmp_path, behaviour) as rig, client_of(rig) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, max_tokens=5, stream=True
        )
        chunks = aiter(stream)
        got += [await anext(chunks), await anext(chunks)]
        with pytest.raises(openai.APIError):
            await anext(chunks)
    assert [chunk.choices[0].delta.content for chunk in got] == ["A", "A"]


async def test_closing_a_stream_frees_the_engine(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(silent_after=2)) as rig, client_of(rig) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, max_tokens=5, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
        await eventually(lambda: rig.engine.aborted == 1)
        usage = await rig.record()
    assert usage.ending is Ending.CLIENT_LEFT
