"""Logs by the admin API: read from their node, followed, and what is said where there is none."""

from dataclasses import replace

import pytest

from llmgw.core.errors import (
    InvalidRequestError,
    NodeUnreachableError,
    NotFoundError,
    UpstreamFailedError,
)
from llmgw.core.fleet.catalog import Restart
from llmgw.testing.agent import FakeAgent
from llmgw.testing.fleet import catalog, inventory, profile
from tests.control.apis import Api, ready
from tests.control.planes import Nodes


async def test_logs_are_read_from_the_node(api: Api, nodes: Nodes) -> None:
    agent = await ready(api, nodes)
    (key,) = agent.alive
    for subject in (key.replica, str(key)):
        parts = [part async for part in api.client.logs(subject, 2)]
        assert [line for part in parts for line in part.lines] == ["two", "three"]
        assert {part.shard for part in parts} == {str(key)}
    with pytest.raises(NotFoundError, match="no node reports"):
        await anext(api.client.logs("zzz"))
    with pytest.raises(InvalidRequestError, match="neither a replica's id nor"):
        await anext(api.client.logs("a.b.c.d"))


async def test_a_shard_that_never_started_has_a_reason_in_place_of_a_log(
    api: Api, nodes: Nodes
) -> None:
    here = replace(inventory("k7"), name="gpu-1")
    agent = nodes.start(api.plane.endpoint, "k7", FakeAgent(api.plane.endpoint, inventory=here))
    agent.no_log = "this node has no such shard"
    await api.client.put_catalog(catalog(profile(restart=Restart(200.0))))
    await api.plane.until(lambda: api.plane.phases() == ["ready"])
    (key,) = agent.alive
    agent.fail(key, "there is no file /models/m.gguf")
    await api.plane.until(lambda: api.plane.phases() == ["failed"])
    with pytest.raises(UpstreamFailedError) as found:
        await anext(api.client.logs(key.replica))
    assert "node gpu-1 answers: this node has no such shard" in str(found.value)
    assert "is failed" in str(found.value)
    assert "no file /models/m.gguf" in str(found.value)


async def test_a_followed_log_goes_on_and_its_end_is_told_to_the_node(
    api: Api, nodes: Nodes
) -> None:
    agent = await ready(api, nodes)
    (key,) = agent.alive
    following = api.client.logs(key.replica, 1, follow=True)
    assert (await anext(following)).lines == ("three",)
    await agent.say(1, "four")
    assert (await anext(following)).lines == ("four",)
    await following.aclose()  # type: ignore[attr-defined]
    await api.plane.until(lambda: agent.cancelled == [1])


async def test_a_log_that_is_followed_ends_with_a_reason_when_its_node_is_lost(
    api: Api, nodes: Nodes
) -> None:
    agent = await ready(api, nodes)
    following = api.client.logs(agent.alive[0].replica, 1, follow=True)
    await anext(following)
    agent.leave()
    assert "its link ended" in (await anext(following)).error
    with pytest.raises(StopAsyncIteration):
        await anext(following)
    with pytest.raises(NodeUnreachableError, match="not connected"):
        await anext(api.client.logs(next(iter(agent.shards)).replica))
