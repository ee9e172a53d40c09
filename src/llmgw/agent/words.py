"""The sentence beside a shard's phase: what it is doing or what became of it, and since when."""

from dataclasses import dataclass
from typing import Final

from llmgw.agent.probes import Probe
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.shard import Phase
from llmgw.runner import record

STALE_S: Final = 20.0
"""An engine that was ready and has not answered for so long is said to be silent."""
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a sentence is made of."""

    spec: ShardSpec
    phase: Phase
    seen: record.Record | None
    probe: Probe | None
    ending: str = ""
    """Why it ended, once it has."""
    trouble: str = ""
    """What is wrong with its runner."""
    age_s: float | None = None
    silent_s: float | None = None
    """Since the last answer."""
    stop_wanted: bool = False


def why(about: Circumstances) -> str:
    """Return one sentence."""
    parts = [_main(about)]
    if about.trouble and about.phase not in (Phase.STOPPED, Phase.FAILED):
        parts.append(about.trouble)
    return "; ".join(part for part in parts if part)


def _main(about: Circumstances) -> str:
    said = about.seen.why if about.seen is not None else ""
    match about.phase:
        case Phase.WAITING:
            if about.stop_wanted:
                return f"is being stopped before its engine has started; {said}"
            return said or "its runner starts"
        case Phase.STARTING | Phase.LOADING:
            return _starting(about)
        case Phase.READY:
            return _ready(about)
        case Phase.ALIVE:
            return "its processes live; a worker answers nobody, so more cannot be asked"
        case Phase.STOPPING:
            return said or "is being stopped"
        case Phase.STOPPED | Phase.FAILED:
            return about.ending


def _starting(about: Circumstances) -> str:
    found = about.probe.why if about.probe is not None else "the engine was started"
    if about.age_s is None:
        return found
    since = f"{found}, {words_for(about.age_s)} after its start"
    if about.age_s <= about.spec.start_timeout_s:
        return since
    limit = words_for(about.spec.start_timeout_s)
    return f"{since}; its start was to take {limit} at most"


def _ready(about: Circumstances) -> str:
    if about.silent_s is not None and about.silent_s > STALE_S:
        fault = about.probe.why if about.probe is not None else "it was not asked since"
        return f"was ready, but has not answered for {words_for(about.silent_s)}: {fault}"
    return f"answers, and serves {about.spec.model}"


def words_for(seconds: float) -> str:
    """Put a time into words."""
    if seconds < MINUTE_S:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min" if not rest else f"{minutes} min {rest} s"
