"""HTTP/2 pings: neither end calls the other's too many, and a dead connection is closed."""

import asyncio
from dataclasses import replace

import pytest

from llmgw.testing.proxy import Proxy
from llmgw.testing.waiting import eventually
from llmgw.wire.transport import KEEPALIVE, Keepalive, client_options, server_options
from tests.wire.ends import DIAL, LISTEN, Control, attach, serving

QUICK = Keepalive(ping_s=1.0, pong_s=2.0)
"""gRPC never pings more often than once a second."""
PERIODS = 8
"""A server that counts such pings closes after 5 of them: its third strike."""


def _quiet() -> Control:
    """No heartbeat comes during the test: only pings pass."""
    return Control(heartbeat_s=60.0, silent_after_s=120.0)


@pytest.mark.slow
async def test_an_idle_stream_outlives_many_ping_periods() -> None:
    control = _quiet()
    dial, listen = replace(DIAL, keepalive=QUICK), replace(LISTEN, keepalive=QUICK)
    loop = asyncio.get_running_loop()
    async with serving(control, listen) as server, attach(server.ports[0], options=dial) as link:
        until_s = loop.time() + PERIODS * QUICK.ping_s
        await eventually(lambda: loop.time() > until_s or bool(link.ended_why), within_s=60)
        assert link.ended_why == ""
        assert len(server.links) == 1


@pytest.mark.slow
async def test_a_server_with_another_floor_would_close_that_stream() -> None:
    # Shows that the test above can fail: the pings do come, and a server that counts them acts.
    control = _quiet()
    dial = replace(DIAL, keepalive=QUICK)
    listen = replace(LISTEN, keepalive=Keepalive(ping_s=600.0, pong_s=10.0))
    async with serving(control, listen) as server, attach(server.ports[0], options=dial) as link:
        await eventually(lambda: bool(link.ended_why), within_s=20)
        assert "Too many pings" in link.ended_why


@pytest.mark.slow
async def test_pings_close_a_connection_that_heartbeats_would_not_miss_yet() -> None:
    control = _quiet()
    quick = Keepalive(ping_s=1.0, pong_s=1.0)
    dial, listen = replace(DIAL, keepalive=quick), replace(LISTEN, keepalive=quick)
    async with (
        serving(control, listen) as server,
        Proxy(server.ports[0]) as proxy,
        attach(proxy.port, options=dial) as link,
    ):
        await eventually(lambda: len(control.live) == 1)
        proxy.stall()
        await eventually(lambda: bool(link.ended_why) and not control.live, within_s=10)
        assert "ping timeout" in link.ended_why
        proxy.resume()


@pytest.mark.parametrize("keepalive", [KEEPALIVE, QUICK])
def test_the_server_s_floor_is_below_what_the_client_does(keepalive: Keepalive) -> None:
    client, server = dict(client_options(keepalive)), dict(server_options(keepalive))
    floor_ms = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert floor_ms * 2 <= client["grpc.keepalive_time_ms"]
    for options in (client, server):
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.http2.max_pings_without_data"] == 0
