"""What the admin API says, as frozen types that server and client share.

Plain JSON both ways through msgspec. A client ignores members that it does not know, and members
that an older server does not send have defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.fleet.catalog import Problem

BASE: Final = "/admin/v1"
"""Under which everything is that needs the admin key."""
EVENTS_MAX: Final = 1_000
"""In one answer."""


@dataclass(frozen=True, slots=True)
class ShortfallInfo:
    """Replicas that are wanted and have no place."""

    profile: str
    model: str
    missing: int
    why: str


@dataclass(frozen=True, slots=True)
class StrayInfo:
    """A running replica that nobody planned; it runs on until somebody stops it."""

    replica: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    """A gateway that belongs."""

    gateway: str
    linked: bool
    silent_s: float
    term: int
    """Of the snapshot that it acts on."""
    revision: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Status:
    """Everything at a glance."""

    version: str
    leads: bool
    term: int
    """Of the lead; 0 while this control plane stands by."""
    store: str
    """Where the store is, or why there is none."""
    catalog_revision: int
    snapshot: tuple[int, int] | None = None
    """(term, revision) of what was published last."""
    hold: str = ""
    """Why nothing is started or stopped yet."""
    brake: str = ""
    """Why lost replicas are not replaced."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """How many are in which phase."""
    nodes: int = 0
    nodes_heard: int = 0
    shortfalls: tuple[ShortfallInfo, ...] = ()
    strays: tuple[StrayInfo, ...] = ()
    gateways: tuple[GatewayInfo, ...] = ()
    warnings: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    """What is wrong now, each with what to do."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of a replica."""

    key: str
    node: str
    phase: str
    """Empty where its node has not reported it."""
    why: str
    address: str
    port: int
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    exit_status: int | None = None
    started_ago_s: float | None = None
    answered_ago_s: float | None = None
    keyed: bool = True
    running: int | None = None
    last_log: str = ""


@dataclass(frozen=True, slots=True)
class FailureInfo:
    """An incarnation that failed."""

    incarnation: int
    why: str
    at_wall_s: float


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica."""

    replica: str
    model: str
    profile: str
    incarnation: int
    phase: str
    why: str
    wanted: str
    """What is wanted of it: run, drain or stop."""
    nodes: tuple[str, ...] = ()
    ready_s: float = 0.0
    shards: tuple[ShardInfo, ...] = ()
    failures: tuple[FailureInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """One profile and how far it is."""

    profile: str
    engine: str
    replicas: int
    """How many are wanted."""
    ready: int
    why: str = ""
    """What is missing."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model and how far it is."""

    model: str
    aliases: tuple[str, ...] = ()
    profiles: tuple[ProfileInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU of a node."""

    index: int
    gpu_class: str
    uuid: str
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    replicas: tuple[str, ...] = ()
    """Whose it is."""
    unusable: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node that belongs."""

    node: str
    name: str
    state: str
    """heard, silent, or unknown where it has not reported to this control plane."""
    silent_s: float
    address: str = ""
    version: str = ""
    cpus: int = 0
    memory_mib: int = 0
    gpus: tuple[GpuInfo, ...] = ()
    engines: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    shards: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that happened."""

    id: int
    at_wall_s: float
    subject: str
    what: str


@dataclass(frozen=True, slots=True)
class UsageInfo:
    """A sum of usage; what it is not split by is None."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: int = 0
    account: str | None = None
    key: str | None = None
    model: str | None = None
    day: int | None = None
    """Days since 1970-01-01, UTC."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A client's key, without what proves it."""

    id: str
    name: str
    account: str
    shown: str
    """The key's first characters."""
    created_wall_s: float
    models: tuple[str, ...] | None = None
    expires_wall_s: float | None = None
    revoked_wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class NewKey:
    """What makes a key."""

    name: str = ""
    account: str = "default"
    models: tuple[str, ...] | None = None
    expires_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that was just made: the only moment at which it can be read."""

    info: KeyInfo
    key: str = field(repr=False)
    warnings: tuple[str, ...] = ()
    """What may have been meant otherwise, although the key was made."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What came, or with a dry run would come, of an edit of the catalog."""

    saved: bool
    revision: int
    """Of the catalog afterwards; of a dry run, the one that it would replace."""
    changes: tuple[str, ...] = ()
    """In words; empty where nothing changes."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """What was asked to stop."""

    replicas: tuple[str, ...] = ()
    revision: int | None = None
    """Of the catalog, where it had to be edited."""


@dataclass(frozen=True, slots=True)
class LogLines:
    """A part of a log."""

    shard: str
    lines: tuple[str, ...] = ()
    error: str = ""
    """Why there is no more."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why a request could not be answered."""

    code: str
    message: str
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of every answer that is an error."""

    error: ErrorInfo
