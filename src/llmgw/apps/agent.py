"""`llmgw agent`: the agent as a daemon, and the inventory of a machine without one."""

import asyncio
import logging
import socket
from contextlib import closing
from importlib.metadata import version
from typing import Final

from llmgw.agent.agent import Agent, Outside, build_agent, outside
from llmgw.agent.discovery.host import read_host
from llmgw.agent.discovery.nvml import Nvml
from llmgw.agent.discovery.programs import find_programs
from llmgw.agent.discovery.sysfs import read_rdma_ports
from llmgw.agent.files import read_text
from llmgw.agent.identity import NODE_FILE, NodeIdentity, read_machine_id
from llmgw.agent.options import AgentOptions
from llmgw.agent.starting import search_path
from llmgw.apps.announcing import Announcing
from llmgw.config.loader import Surroundings
from llmgw.config.settings import AgentSettings
from llmgw.core.document import InvalidDocumentError, load
from llmgw.core.errors import DependencyError, StorageError
from llmgw.core.fleet.hardware import Inventory, PortRange
from llmgw.core.ids import NodeId
from llmgw.runtime.clock import Random, SystemClock
from llmgw.runtime.sd_notify import SystemdNotifier, Watchdog
from llmgw.runtime.tasks import run_services

logger = logging.getLogger(__name__)

NO_NODE: Final = NodeId("")
"""The id of a machine that has never run an agent on this state directory."""


class NoAddressError(DependencyError):
    """Nobody knows where this node's engines are reached."""

    code = "no_address"


async def run_agent(settings: AgentSettings, around: Surroundings, stop: asyncio.Event) -> None:
    """Run until `stop` is set; engines go on after it."""
    clock, random = SystemClock(), Random()
    notifier = SystemdNotifier(around.environment)
    options = options_of(settings, around)
    world: Outside = outside(options, clock, random)
    async with build_agent(options, world) as agent:

        async def ready() -> str:
            status = await _ready(agent)
            logger.info(
                "ready: this is %s, called %s; its engines are reached at %s; it joins %s",
                status,
                options.name,
                options.address,
                ", ".join(options.control),
            )
            return status

        ends = (Watchdog(notifier, clock), Announcing(notifier, ready))
        await run_services((*agent.services, *ends), stop)


async def _ready(agent: Agent) -> str:
    await agent.reporter.ready()
    return f"node {agent.who.node} with {len(agent.supervisor.reports())} shards"


def options_of(settings: AgentSettings, around: Surroundings) -> AgentOptions:
    """Return what the agent is told; raise NoAddressError. May ask the resolver of names."""
    return AgentOptions(
        state=settings.state_dir,
        control=settings.control,
        name=settings.name,
        address=settings.address or address_towards(settings.control[0]),
        ports=PortRange(settings.port_first, settings.port_last),
        labels=settings.labels,
        engines={kind.value: program for kind, program in settings.engines.items()},
        environment=around.environment,
        http_host=settings.metrics_host,
        http_port=settings.metrics_port,
        version=version("llmgw"),
        log_bytes_max=settings.log_bytes_max,
        ended_bytes_max=settings.ended_bytes_max,
        ended_per_replica=settings.ended_per_replica,
        report_s=settings.report_s,
        inventory_s=settings.inventory_s,
        probe_starting_s=settings.probe_starting_s,
        probe_ready_s=settings.probe_ready_s,
    )


def address_towards(endpoint: str) -> str:
    """Return the address of this machine from which `HOST:PORT` is reached; nothing is sent."""
    host, _, port = endpoint.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except OSError as error:
        raise _no_address(host, str(error)) from error
    why = "it has no address"
    for family, kind, protocol, _, place in found:
        with closing(socket.socket(family, kind, protocol)) as probe:
            try:
                probe.connect(place)
            except OSError as error:
                why = error.strerror or str(error)
                continue
            return str(probe.getsockname()[0])
    raise _no_address(host, why)


def _no_address(host: str, why: str) -> NoAddressError:
    return NoAddressError(
        f"cannot tell from which address the control plane {host} is reached ({why}); correct the"
        " setting `control`, or say in `address` where this node's engines are reached"
    )


def read_inventory(settings: AgentSettings, around: Surroundings) -> Inventory:
    """Return what this machine has; needs no agent and no control plane, and disturbs neither.

    What only a running agent knows is left out: quarantined GPUs, and ports that are taken.
    """
    options = AgentOptions(settings.state_dir)
    machine, ports = options.machine, PortRange(settings.port_first, settings.port_last)
    host = read_host(machine.proc, machine.boot, ports)
    driver = Nvml(machine.sys)
    with closing(driver):
        reading = driver.read()
    engines = {kind.value: program for kind, program in settings.engines.items()}
    programs = find_programs(engines, search_path(around.environment))
    node, node_warnings = _node(settings)
    address, address_warnings = _address(settings)
    return Inventory(
        node=node,
        name=settings.name,
        address=address,
        machine=read_machine_id(machine.machine_id),
        boot=host.boot,
        cpus=host.cpus,
        memory_mib=host.memory_mib,
        gpus=tuple(seen.gpu for seen in reading.gpus),
        rdma_ports=read_rdma_ports(machine.sys),
        engines=tuple(program.found() for program in programs.found),
        ports=ports,
        labels=settings.labels,
        warnings=(
            *host.warnings,
            *reading.warnings,
            *programs.warnings,
            *node_warnings,
            *address_warnings,
        ),
        version=version("llmgw"),
    )


def _node(settings: AgentSettings) -> tuple[NodeId, tuple[str, ...]]:
    path = settings.state_dir / NODE_FILE
    try:
        text = read_text(path)
        return (load(NodeIdentity, text).node, ()) if text is not None else (NO_NODE, ())
    except (StorageError, InvalidDocumentError) as error:
        return NO_NODE, (f"the node's id cannot be read: {error}",)


def _address(settings: AgentSettings) -> tuple[str, tuple[str, ...]]:
    try:
        return settings.address or address_towards(settings.control[0]), ()
    except NoAddressError as error:
        return "", (str(error),)
