"""`llmgw gateway`: a gateway of its own, which serves while no control plane is there."""

import asyncio
import errno
import gc
import os
from pathlib import Path
from typing import Final

from aiohttp import web

from llmgw.apps.announcing import Announcing
from llmgw.config.loader import Surroundings
from llmgw.config.settings import GatewayLimits, GatewaySettings, JournalFull
from llmgw.core.errors import StorageError
from llmgw.gateway.feed import feed_from
from llmgw.gateway.gateway import Gateway, build_gateway
from llmgw.gateway.options import Deadlines, GatewayOptions, JournalOptions, Limits
from llmgw.runtime.clock import Clock, Random, SystemClock
from llmgw.runtime.sd_notify import SystemdNotifier, Watchdog
from llmgw.runtime.tasks import Service, run_services
from llmgw.runtime.threads import ThreadPool
from llmgw.wire.dialing import DialOptions
from llmgw.wire.errors import CannotListenError

YOUNG_OBJECTS: Final = 50_000
"""How many new objects the collector waits for: a request makes few that need it."""
CANNOT_LISTEN: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})
SHUTDOWN_S: Final = 1.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def run_gateway(settings: GatewaySettings, around: Surroundings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; answers under way are brought to their end."""
    clock, random = SystemClock(), Random()
    notifier = SystemdNotifier(around.environment)
    pool = ThreadPool("gateway")
    try:
        options = options_of(settings)
        gateway = await pool.run(built, options, clock, pool, "port")
        dial = DialOptions()
        feeds = [feed_from(one, gateway, dial, clock, random) for one in settings.control]
        own = GatewayHttp(settings.admin_host, settings.admin_port, gateway)
        watchdog = Watchdog(notifier, clock)

        async def ready() -> str:
            leave_alone_what_stays()
            return f"serving on {options.host}:{gateway.port}"

        # The server stops first, while what it has open can still be written and reported.
        *inner, server = gateway.services
        services: list[Service] = [*inner, *feeds, own, server, watchdog]
        await run_services((*services, Announcing(notifier, ready)), stop)
    finally:
        await pool.close()


def options_of(settings: GatewaySettings) -> GatewayOptions:
    """Return what a gateway of its own is told."""
    return gateway_options(settings.state_dir, settings.host, settings.port, settings.limits)


def gateway_options(state_dir: Path, host: str, port: int, limits: GatewayLimits) -> GatewayOptions:
    """Return what any gateway is told, inside `llmgw serve` or on its own."""
    return GatewayOptions(
        state_dir,
        host,
        port,
        deadlines=Deadlines(idle_s=limits.idle_s),
        limits=Limits(body_bytes_max=limits.body_bytes_max, connections_max=limits.connections_max),
        journal=JournalOptions(refuse_when_full=limits.journal_full is JournalFull.REFUSE),
    )


def built(options: GatewayOptions, clock: Clock, pool: ThreadPool, setting: str) -> Gateway:
    """Build a gateway, which listens from then on; `setting` is the name of its port's."""
    try:
        return build_gateway(options, clock, pool)
    except OSError as error:
        if error.filename is not None or error.errno not in CANNOT_LISTEN:
            raise
        raise CannotListenError(
            f"the gateway {error.strerror}; stop what listens there or choose another (`{setting}`)"
        ) from error


def leave_alone_what_stays() -> None:
    """Keep the garbage collector from walking, again and again, what lives as long as we do."""
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *older)


class GatewayHttp:
    """Metrics and health of a gateway of its own; clients never see this port."""

    name = "gateway's metrics"

    def __init__(self, host: str, port: int, gateway: Gateway) -> None:
        self._host = host
        self._port = port
        self._gateway = gateway

    async def run(self) -> None:
        """Serve until cancelled."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._host, self._port).start()
            except OSError as error:
                raise StorageError(
                    f"cannot listen on {self._host}:{self._port} for metrics: "
                    f"{os.strerror(error.errno or 0)}; stop what listens there or choose another "
                    "(`admin_port`)"
                ) from error
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = self._gateway.metrics_text().encode()
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        well, state = self._gateway.health()
        return web.json_response(state, status=200 if well else 503)
