"""`llmgw serve`: the control plane, by default with a gateway inside.

Its end is the end of no engine: agents go on, and so do gateways of their own.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from llmgw.apps.announcing import Announcing
from llmgw.apps.gateway import built, gateway_options, leave_alone_what_stays
from llmgw.config.loader import Surroundings
from llmgw.config.settings import ServeSettings
from llmgw.control.admin_key import Door, admin_key
from llmgw.control.edits import Edits
from llmgw.control.http import AdminApi, AdminOptions
from llmgw.control.memory_store import MemoryStore, store_id_of
from llmgw.control.plane import ControlOptions, ControlPlane, build_control
from llmgw.control.ports import StorePort
from llmgw.core.fleet.view import Rules
from llmgw.gateway.feed import FeedWithin
from llmgw.gateway.gateway import Gateway
from llmgw.runtime.clock import Random, SystemClock
from llmgw.runtime.files import hold_lock, make_private_folder
from llmgw.runtime.sd_notify import SystemdNotifier, Watchdog
from llmgw.runtime.tasks import Service, run_services
from llmgw.runtime.threads import ThreadPool
from llmgw.store.store import open_store
from llmgw.wire.agent_link import AgentServer
from llmgw.wire.gateway_link import GatewayServer
from llmgw.wire.serving import ListenOptions

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "serve.lock"
GATEWAY_FOLDER: Final = "gateway"


async def run_serve(settings: ServeSettings, around: Surroundings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; stands by while another control plane leads on the store."""
    clock, random = SystemClock(), Random()
    notifier = SystemdNotifier(around.environment)
    async with contextlib.AsyncExitStack() as held:
        pool = ThreadPool("serve")
        held.push_async_callback(pool.close)
        await pool.run(make_private_folder, settings.state_dir)
        key = await pool.run(admin_key, settings.admin_key_file, secrets.token_bytes)
        store, place, options = await _open(settings, around, held, pool)
        plane = await build_control(store, options, clock, secrets.token_bytes)
        gateway = await _gateway(settings, held, pool)
        door, edits = Door(key), Edits(plane, secrets.token_bytes)
        recent = gateway.recent_usage if gateway is not None else None
        release = await pool.run(version, "llmgw")
        told = AdminOptions(settings.admin_host, settings.admin_port, release, place, recent)
        api = AdminApi(plane, edits, door, told)
        agents = _listener(settings, plane)
        host = _in_url(settings.gateway_host)

        async def ready() -> str:
            await agents.listening.wait()
            await api.listening.wait()
            await plane.reconciler.turned_once.wait()
            leave_alone_what_stays()
            if gateway is not None:
                logger.info("the gateway serves http://%s:%s/v1", host, gateway.port)
            logger.info("the admin key is in %s", settings.admin_key_file)
            leads = f"leads with term {plane.leader.term}" if plane.leader.term else "stands by"
            status = f"{leads}; the admin API is on port {api.port}"
            logger.info("ready: this control plane %s", status)
            return status

        services: list[Service] = [*plane.services, agents, api]
        if gateway is not None:
            # The server stops first, while what it has open can still be written and stored.
            *inner, server = gateway.services
            feed = FeedWithin(gateway, plane.publisher.on_gateway, clock, random)
            services += [*inner, feed, server]
        services += [Watchdog(notifier, clock), Announcing(notifier, ready)]
        await run_services(services, stop)


async def _open(
    settings: ServeSettings,
    around: Surroundings,
    held: contextlib.AsyncExitStack,
    pool: ThreadPool,
) -> tuple[StorePort, str, ControlOptions]:
    """Return the store, where it is, and what the control plane is told."""
    rules = Rules(settle_s=settings.settle_s, brake_share=settings.brake_share)
    holder = f"llmgw serve (pid {os.getpid()} on {around.host})"
    times = (settings.heartbeat_s, settings.silent_after_s)
    if settings.store_url is not None:
        opened = open_store(settings.store_url, SystemClock(), secrets.token_bytes)
        store = await held.enter_async_context(opened)
        return store, store.database.place, ControlOptions(holder, *times, rules)
    assert settings.catalog is not None  # ServeSettings.problems() sees to it
    lock = hold_lock(
        settings.state_dir / LOCK_FILE, purpose="running a control plane without a store here"
    )
    await pool.run(held.enter_context, lock)
    memory = MemoryStore(settings.catalog, store_id_of(settings.catalog, around.host))
    await memory.file.read()
    door = memory.nodes.why_not_listed
    place = f"none; what is wanted is in {settings.catalog}"
    return memory, place, ControlOptions(holder, *times, rules, door)


async def _gateway(
    settings: ServeSettings, held: contextlib.AsyncExitStack, pool: ThreadPool
) -> Gateway | None:
    if not settings.gateway:
        return None
    options = gateway_options(
        settings.state_dir / GATEWAY_FOLDER,
        settings.gateway_host,
        settings.gateway_port,
        settings.limits,
    )
    if settings.store_url is None:
        options = replace(options, journal=replace(options.journal, acknowledged=False))
    gateway = await pool.run(built, options, SystemClock(), pool, "gateway_port")
    # What has run lets go by itself; what another service's failure kept from running does not.
    held.push_async_callback(pool.run, gateway.close)
    return gateway


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listener(settings: ServeSettings, plane: ControlPlane) -> AgentServer:
    """Return the service that awaits agents and gateways on one port."""
    addresses = [f"{_in_url(settings.agents_host)}:{settings.agents_port}"]
    clock, listen = SystemClock(), ListenOptions(setting="agents_port")
    agents = AgentServer(addresses, plane.links.on_link, plane.links.welcome, clock, listen)
    gateways = GatewayServer(
        addresses, plane.publisher.on_gateway, plane.links.welcome_gateway, clock, listen
    )
    agents.take_in(gateways)
    return agents
