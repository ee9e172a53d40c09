"""What is wanted: models, and profiles that say how to run them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from llmgw.core.document import Json


class EngineKind(StrEnum):
    """Engines that llmgw can start; values are stored."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


class OnSilence(StrEnum):
    """What to do with a replica whose node is not heard."""

    KEEP = "keep"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Restart:
    """How fast a failed replica is started anew: doubling from the first delay to the cap."""

    delay_s: float = 1.0
    delay_s_max: float = 300.0
    reset_after_s: float = 600.0
    """A replica that was ready for so long starts from the first delay again."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to run a model. Defaults fit a small model on one machine."""

    name: str
    engine: EngineKind
    source: str
    """A local path (absolute), or a hub id that the engine fetches by itself."""
    replicas: int = 1
    gpu_class: str | None = None
    """None means any class."""
    nodes: int = 1
    gpus_per_node: int = 0
    memory_share: float = 1.0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    quantization: str | None = None
    context_tokens: int | None = None
    parallel_requests: int | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Only nodes that carry all of these labels."""
    start_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0
    drain_s_max: float = 300.0
    token_probe: bool = False
    """Ready only after one real token."""
    on_silence: OnSilence = OnSilence.KEEP
    lost_after_s: float = 120.0
    restart: Restart = Restart()
    missing_max: int = 0
    """How many replicas may be missing for a while when a change finds no room beside them."""
    priority: int = 0
    unknown: Mapping[str, Json] = field(default_factory=dict)


_POLICY: Final = (
    "replicas",
    "drain_s_max",
    "token_probe",
    "on_silence",
    "lost_after_s",
    "restart",
    "missing_max",
    "priority",
    "start_timeout_s",
    "stop_grace_s",
)


def runs_the_same(one: Profile, other: Profile) -> bool:
    """Tell whether engines of both would run alike, so that a change between them restarts none.

    The fields left out say how a replica is looked after, not what runs.
    """
    kept = {name: getattr(one, name) for name in _POLICY}
    return one == replace(other, **kept)


@dataclass(frozen=True, slots=True)
class Model:
    """What clients ask for by name."""

    name: str
    profiles: tuple[Profile, ...] = ()
    aliases: tuple[str, ...] = ()
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def served_names(self) -> tuple[str, ...]:
        """The name and then the aliases."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models and profiles; the revision grows with every edit."""

    models: tuple[Model, ...] = ()
    revision: int = 0
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name, if there is one."""
        return next((p for m in self.models for p in m.profiles if p.name == name), None)

    def wanted(self) -> Iterator[tuple[Model, Profile]]:
        """Yield every profile with its model, by priority (highest first), then by name."""
        pairs = [(m, p) for m in self.models for p in m.profiles]
        return iter(sorted(pairs, key=lambda pair: (-pair[1].priority, pair[1].name)))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what somebody wrote."""

    field: str
    """Where, for instance `models[0].profiles[1].nodes`."""
    what: str
    remedy: str

    def __str__(self) -> str:
        """Return one sentence with field, fault and remedy."""
        return f"{self.field}: {self.what}; {self.remedy}"
