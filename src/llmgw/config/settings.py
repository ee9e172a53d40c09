"""What an operator may set: one small frozen class per app. Defaults suit one machine.

A field's description is its documentation: docs/reference/settings.md is made from it. State
directories and the machine's name have no default here; the loader finds them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo

from llmgw.core.fleet.catalog import EngineKind, Problem
from llmgw.core.fleet.validation import check_labels

LOOPBACK: Final = "127.0.0.1"
GATEWAY_PORT: Final = 8600
ADMIN_PORT: Final = 8630
AGENTS_PORT: Final = 8631
AGENT_METRICS_PORT: Final = 8632
GATEWAY_ADMIN_PORT: Final = 8633
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
DAY_S: Final = 86400.0

ENDPOINTS_MAX: Final = 16
STORE_FILE: Final = "llmgw.db"
STORE_NONE: Final = "none"
ADMIN_KEY_FILE: Final = "admin.key"
CTL_FILE: Final = "ctl.yaml"
"""In the state directory of a running `llmgw up`: settings of ctl."""
BASES: Final = "bases"
"""Key of the validation context: the folder that a relative path belongs to, by field."""

_STORE: Final = re.compile(r"sqlite:///.+|postgres(ql)?(\+asyncpg)?://.+")


def _absolute(path: Path, info: ValidationInfo) -> Path:
    """A path belongs to the folder of the file that it was written in, else to where we are."""
    bases: Mapping[str, Path] = (info.context or {}).get(BASES, {})
    return (bases.get(info.field_name or "", Path()) / path.expanduser()).absolute()


def _store(url: str) -> str:
    # The message must not repeat the URL: it may hold a password.
    if url not in {"", STORE_NONE} and not _STORE.fullmatch(url):
        raise ValueError(
            "should be 'none', sqlite:///ABSOLUTE/PATH or postgresql://USER@HOST/DATABASE"
        )
    return url


def _matching(pattern: str, words: str) -> AfterValidator:
    """Text that is not so is told in words: nobody should have to read a pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"should be {words}")
        return text

    return AfterValidator(check)


def _some(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(endpoints) <= ENDPOINTS_MAX:
        raise ValueError(f"should name 1 to {ENDPOINTS_MAX} control planes, HOST:PORT each")
    return endpoints


Location = Annotated[Path, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, _matching(r"[0-9A-Za-z.:_-]{1,255}", "an address or a host's name")]
Endpoint = Annotated[
    str,
    _matching(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]{1,255}):[0-9]{1,5}", "HOST:PORT"),
]
Name = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "letters, digits and . _ -, at most 253"),
]
Program = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(ge=0.05, le=DAY_S, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=MIB, le=1024 * GIB)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class JournalFull(StrEnum):
    """What a gateway does with new requests when its journal cannot be written."""

    REFUSE = "refuse"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of the data plane."""

    body_bytes_max: Annotated[
        Bytes, Field(description="The largest request body that is taken.")
    ] = 32 * MIB
    connections_max: Annotated[
        Count, Field(description="How many client connections may be open at once.")
    ] = 4096
    idle_s: Annotated[
        Seconds, Field(description="A stream that says nothing for so long ends as an error.")
    ] = 300.0
    journal_full: Annotated[
        JournalFull,
        Field(
            description="When the journal's disk is full: `refuse` new requests with the reason, "
            "or `serve` them without a record."
        ),
    ] = JournalFull.REFUSE


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`llmgw serve`: the control plane, by default with a gateway inside."""

    state_dir: Annotated[
        Location,
        Field(
            description="Where the store, the admin key and the journal are kept. Default: "
            "`/var/lib/llmgw/serve` for root, else `$XDG_STATE_HOME/llmgw/serve`."
        ),
    ]
    store: Annotated[
        str,
        AfterValidator(_store),
        Field(
            description="Where what is wanted is kept: a URL (`sqlite:///PATH`, "
            "`postgresql://...`), or `none` to run from a catalog file alone. Empty: SQLite in "
            "the state directory."
        ),
    ] = field(default="", repr=False)
    catalog: Annotated[
        Location | None,
        Field(description="The catalog file; needed with `store: none`, and for nothing else."),
    ] = None
    admin_host: Annotated[Host, Field(description="Address of the admin API.")] = LOOPBACK
    admin_port: Annotated[Port, Field(description="Port of the admin API, metrics and health.")] = (
        ADMIN_PORT
    )
    agents_host: Annotated[
        Host, Field(description="Address on which agents and gateways are awaited (gRPC).")
    ] = LOOPBACK
    agents_port: Annotated[
        Port, Field(description="Port on which agents and gateways are awaited (gRPC).")
    ] = AGENTS_PORT
    gateway: Annotated[bool, Field(description="Whether a gateway runs inside this process.")] = (
        True
    )
    gateway_host: Annotated[Host, Field(description="Address of the gateway inside.")] = LOOPBACK
    gateway_port: Annotated[Port, Field(description="Port of the gateway inside.")] = GATEWAY_PORT
    limits: GatewayLimits = GatewayLimits()
    heartbeat_s: Annotated[
        Seconds, Field(description="How often both ends of a link show that they live.")
    ] = 2.0
    silent_after_s: Annotated[
        Seconds, Field(description="A node that is not heard for so long is silent.")
    ] = 10.0
    settle_s: Annotated[
        Seconds,
        Field(
            description="How long a new leader waits for nodes that it knows of before it decides "
            "without them."
        ),
    ] = 30.0
    brake_share: Annotated[
        Share,
        Field(
            description="When more than this share of the nodes falls silent at once, nothing is "
            "replaced: then it is the control plane that is ill."
        ),
    ] = 0.5

    @property
    def store_url(self) -> str | None:
        """The store to open; None where there is to be none."""
        if self.store == STORE_NONE:
            return None
        return self.store or f"sqlite:///{self.state_dir / STORE_FILE}"

    @property
    def admin_key_file(self) -> Path:
        """Where the admin key is kept, readable by its owner only."""
        return self.state_dir / ADMIN_KEY_FILE

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong between fields."""
        if self.store == STORE_NONE and self.catalog is None:
            what = "is missing, and with `store: none` there is no other catalog"
            yield Problem("catalog", what, "name a catalog file")
        if self.store != STORE_NONE and self.catalog is not None:
            what = "is only read with `store: none`"
            yield Problem("catalog", what, "leave it out and use `llmgw ctl apply`")
        yield from _silence(self.heartbeat_s, self.silent_after_s)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`llmgw agent`: one per node."""

    state_dir: Annotated[
        Location,
        Field(
            description="Where the node's identity and its shards are kept. Default: "
            "`/var/lib/llmgw/agent` for root, else `$XDG_STATE_HOME/llmgw/agent`."
        ),
    ]
    name: Annotated[Name, Field(description="The node's name. Default: the host's.")]
    control: Annotated[
        tuple[Endpoint, ...],
        AfterValidator(_some),
        Field(description="Every control plane, `HOST:PORT`."),
    ] = (f"{LOOPBACK}:{AGENTS_PORT}",)
    address: Annotated[
        Host | None,
        Field(
            description="Where this node's engines are reached. Default: the address from which "
            "the first control plane is reached."
        ),
    ] = None
    port_first: Annotated[
        Port, Field(description="First of the ports that engines may be given.")
    ] = 18100
    port_last: Annotated[Port, Field(description="Last of these ports.")] = 18999
    labels: Annotated[
        Mapping[str, str],
        Field(description="What profiles may ask for; `island` names the node's fabric."),
    ] = field(default_factory=dict)
    engines: Annotated[
        Mapping[EngineKind, Program],
        Field(
            description="Programs of engines, by engine, where the search path does not have the "
            "right ones: a path, or a command with arguments."
        ),
    ] = field(default_factory=dict)
    log_bytes_max: Annotated[Bytes, Field(description="How much of one shard's log is kept.")] = (
        64 * MIB
    )
    ended_bytes_max: Annotated[
        Bytes, Field(description="How much all ended shards together may keep.")
    ] = 512 * MIB
    ended_per_replica: Annotated[
        Count, Field(description="How many ended incarnations of a replica keep their logs.")
    ] = 3
    report_s: Annotated[Seconds, Field(description="A report is sent at least so often.")] = 5.0
    inventory_s: Annotated[Seconds, Field(description="The inventory is read anew so often.")] = (
        15.0
    )
    probe_starting_s: Annotated[
        Seconds, Field(description="How often an engine that is not ready yet is asked.")
    ] = 0.5
    probe_ready_s: Annotated[Seconds, Field(description="How often a ready engine is asked.")] = 5.0
    metrics_host: Annotated[Host, Field(description="Address of metrics and health.")] = LOOPBACK
    metrics_port: Annotated[Port, Field(description="Port of metrics and health.")] = (
        AGENT_METRICS_PORT
    )

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong between fields."""
        yield from _range(self.port_first, self.port_last)
        yield from check_labels(self.labels, "labels")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`llmgw gateway`: a gateway as a process of its own."""

    state_dir: Annotated[
        Location,
        Field(
            description="Where the last snapshot and the journal are kept. Default: "
            "`/var/lib/llmgw/gateway` for root, else `$XDG_STATE_HOME/llmgw/gateway`."
        ),
    ]
    control: Annotated[
        tuple[Endpoint, ...],
        AfterValidator(_some),
        Field(description="Every control plane, `HOST:PORT`."),
    ] = (f"{LOOPBACK}:{AGENTS_PORT}",)
    host: Annotated[Host, Field(description="Address that clients use.")] = LOOPBACK
    port: Annotated[Port, Field(description="Port that clients use.")] = GATEWAY_PORT
    admin_host: Annotated[Host, Field(description="Address of metrics and health.")] = LOOPBACK
    admin_port: Annotated[Port, Field(description="Port of metrics and health.")] = (
        GATEWAY_ADMIN_PORT
    )
    limits: GatewayLimits = GatewayLimits()


@dataclass(frozen=True, slots=True)
class UpSettings:
    """`llmgw up`: everything on one machine."""

    state_dir: Annotated[
        Location,
        Field(
            description="Where everything is kept. Default: `/var/lib/llmgw/up` for root, else "
            "`$XDG_STATE_HOME/llmgw/up`."
        ),
    ]
    catalog: Annotated[
        Location | None, Field(description="A catalog file that is applied at the start.")
    ] = None
    gateway_port: Annotated[Port, Field(description="Port that clients use.")] = GATEWAY_PORT
    admin_port: Annotated[Port, Field(description="Port of the admin API.")] = ADMIN_PORT
    agents_port: Annotated[Port, Field(description="Port between control plane and agent.")] = (
        AGENTS_PORT
    )
    metrics_port: Annotated[Port, Field(description="Port of the agent's metrics and health.")] = (
        AGENT_METRICS_PORT
    )
    port_first: Annotated[
        Port, Field(description="First of the ports that engines may be given.")
    ] = 18100
    port_last: Annotated[Port, Field(description="Last of these ports.")] = 18999
    engines: Annotated[
        Mapping[EngineKind, Program],
        Field(
            description="Programs of engines, by engine, where the search path does not have the "
            "right ones: a path, or a command with arguments."
        ),
    ] = field(default_factory=dict)

    @property
    def serve_dir(self) -> Path:
        """State of the control plane."""
        return self.state_dir / "serve"

    @property
    def agent_dir(self) -> Path:
        """State of the agent."""
        return self.state_dir / "agent"

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong between fields."""
        yield from _range(self.port_first, self.port_last)
        ports = (self.gateway_port, self.admin_port, self.agents_port, self.metrics_port)
        if len(set(ports)) < len(ports):
            what = f"the daemons' ports {', '.join(map(str, ports))} are not all different"
            yield Problem("gateway_port", what, "give each its own")


@dataclass(frozen=True, slots=True)
class CtlSettings:
    """`llmgw ctl`: the operator's command line."""

    url: Annotated[
        str,
        _matching(r"https?://[^\s/@]+/?", "http://HOST:PORT, without user, password or path"),
        Field(
            description="Where the admin API is, without a path. While `llmgw up` runs on this "
            "machine, `ctl.yaml` in its state directory says this and `key_file`, unless one of "
            "them is set."
        ),
    ] = f"http://{LOOPBACK}:{ADMIN_PORT}"
    key_file: Annotated[
        Location | None,
        Field(
            description="File that holds the admin key. Default: `admin.key` in the state "
            "directory of `llmgw serve` or `llmgw up` on this machine."
        ),
    ] = None
    timeout_s: Annotated[
        Seconds, Field(description="How long one answer of the admin API may take.")
    ] = 30.0


PORTS_MIN: Final = 4
"""A shard takes a serving port and three spare ones."""


def _range(first: int, last: int) -> Iterator[Problem]:
    if last - first + 1 < PORTS_MIN:
        what = f"is {last}, and {first} is the first: fewer than {PORTS_MIN} ports"
        yield Problem("port_last", what, "each engine takes a serving port and three beside it")


def _silence(heartbeat_s: float, silent_after_s: float) -> Iterator[Problem]:
    if silent_after_s < 2 * heartbeat_s:
        what = f"is {silent_after_s:g} s, less than two heartbeats of {heartbeat_s:g} s"
        yield Problem("silent_after_s", what, "one lost heartbeat must not make a node silent")
