"""What daemons say to each other, as typed values; the codecs turn them into protobuf and back.

Complete things (Report, Assignment, Snapshot, Change, Usage) are core's own types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from llmgw.core.fleet.assignment import Assignment
from llmgw.core.fleet.report import Report
from llmgw.core.ids import LinkId, NodeId
from llmgw.core.traffic.snapshot import Change, Snapshot
from llmgw.core.traffic.usage import Usage

BATCH_RECORDS_MAX: Final = 2_000
"""Usage records in one batch; at about 500 bytes each it is a megabyte."""


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first message."""

    node: NodeId
    name: str
    machine: str
    boot: str
    version: str
    term: int
    """The highest that the agent has obeyed."""
    store: str = ""
    """Which store's leader it obeyed; two stores that claim one node are an error."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The control plane's first message; after it the agent reports, and a gateway listens."""

    link: LinkId
    term: int
    store: str
    heartbeat_s: float
    """Both ends say something at least so often,"""
    silent_after_s: float
    """and end the link when they have heard nothing for so long."""
    ledger: bool = True
    """Whether usage that gateways send is stored and acknowledged."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The control plane's first and only message to a caller that it does not take."""

    why: str
    retry_after_s: float = 0.0
    """When it makes sense to ask again; 0 leaves that to the caller's back-off."""


class QuestionKind(StrEnum):
    """Questions change nothing and may be asked again."""

    LOGS = "logs"


@dataclass(frozen=True, slots=True)
class Question:
    """Asked by the control plane, answered by one or more Answers with the same id."""

    id: int
    kind: str
    """One of QuestionKind; an agent that does not know it answers with an error."""
    subject: str
    """For logs: a shard key."""
    options: Mapping[str, str] = field(default_factory=dict)
    """For logs: `lines` (how many of the last) and `follow` ("1": go on until cancelled)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answers to this question any more."""

    id: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the answer; `last` ends it."""

    id: int
    lines: tuple[str, ...] = ()
    last: bool = False
    error: str = ""


AgentUp = Report | Answer
AgentDown = Assignment | Question | Cancel


@dataclass(frozen=True, slots=True)
class GatewayHello:
    """A gateway's first message; it is answered with a Welcome and a whole Snapshot."""

    gateway: str
    """Its id, kept over restarts."""
    term: int
    revision: int


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in flight per replica, and the snapshot that the gateway acts on."""

    term: int
    revision: int
    in_flight: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Closed records, at most BATCH_RECORDS_MAX; kept in the journal until acknowledged."""

    batch: int
    records: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageStored:
    """The batch is in the store."""

    batch: int


Handshake = Hello | GatewayHello | Welcome | Refusal
"""What is said once, before anything else."""

GatewayUp = Load | UsageBatch
GatewayDown = Snapshot | Change | UsageStored
