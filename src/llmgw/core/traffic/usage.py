"""What was consumed: one record per request, however it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.core.document import Json


class Ending(StrEnum):
    """How a request ended; values are stored."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """By us, before an engine saw it."""
    CLIENT_LEFT = "client_left"
    ENGINE_FAILED = "engine_failed"
    OUR_FAULT = "our_fault"
    UNKNOWN = "unknown"
    """The gateway did not live to tell; settled from its journal."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One closed ledger record."""

    request: str
    """Unique; the store counts a request once however often its record arrives."""
    opened_wall_s: float
    key: str
    """The id of the API key, never the key."""
    account: str
    model: str
    path: str
    ending: Ending
    status: int
    replica: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """The engine did not say; counted from what passed."""
    streamed: bool = False
    duration_s: float = 0.0
    first_byte_s: float | None = None
    unknown: Mapping[str, Json] = field(default_factory=dict)
