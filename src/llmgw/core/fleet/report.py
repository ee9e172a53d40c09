"""Everything one node has and runs, complete. Times are ages, so clocks need not agree."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.core.document import Json
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.hardware import Inventory
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ShardKey


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard as its node sees it."""

    key: ShardKey
    phase: Phase
    why: str
    spec: ShardSpec | None = None
    """None where the node cannot read it any more."""
    pid: int | None = None
    """The engine's, not a sidecar's."""
    exit_status: int | None = None
    started_ago_s: float | None = None
    answered_ago_s: float | None = None
    """Since the engine last answered a probe."""
    keyed: bool = True
    """Whether the engine demands its key; one started without a store does not."""
    last_log: str = ""
    """The last line that it wrote."""
    port_taken: bool = False
    """The start failed because something else holds its port."""
    running: int | None = None
    """Requests that the engine itself says it runs."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened and is worth remembering."""

    subject: str
    """What it happened to: a shard, a GPU, a node."""
    what: str
    ago_s: float = 0.0
    sequence: int = 0
    """Of its sender; a repeated one is no news."""


@dataclass(frozen=True, slots=True)
class Report:
    """A node's whole truth; sent at every registration and at every change."""

    inventory: Inventory
    shards: tuple[ShardReport, ...] = ()
    term: int = 0
    """The highest that this node has obeyed."""
    generation: int = 0
    """Of this link's assignment that it acts on; 0 before the first has been acted on in full."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Assigned shards that it will never start, with the reason, by shard key."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Assigned shards that it starts as soon as what is named is over, by shard key."""
    events: tuple[Event, ...] = ()
    unknown: Mapping[str, Json] = field(default_factory=dict)
