"""What differs under uvloop, which the daemons run on."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from llmgw.core.traffic.usage import Ending
from llmgw.testing.engine import Behaviour
from tests.gateway.rig import QUICK, Raw, chat, post, serving

CLIENTS = 20


def test_clients_that_leave_fast_streams_leave_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        behaviour = Behaviour(token_s=0.001, tokens=5_000)
        async with serving(tmp_path, behaviour, QUICK) as rig:
            raws = [
                Raw(*await asyncio.open_connection("127.0.0.1", rig.port)) for _ in range(CLIENTS)
            ]
            for raw in raws:
                raw.send(post(chat(stream=True)))
            for raw in raws:
                await raw.tokens_after_head(1)
            for raw in raws:
                raw.writer.transport.abort()
            records = await rig.records(CLIENTS)
            await rig.idle()
            whole = await rig.ask(post(chat(max_tokens=2)))
            stream = await rig.ask(post(chat(max_tokens=2, stream=True)))
        assert {usage.ending for usage in records} == {Ending.CLIENT_LEFT}
        assert (whole.status, stream.events[-1]) == (200, "[DONE]")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
    assert not caplog.records
