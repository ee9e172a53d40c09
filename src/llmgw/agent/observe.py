"""From what a runner wrote down to a shard's events and phase: pure.

The runner's record is the truth about processes; events are derived from it anew each time, and
those which a phase has behind it are left out, so a record may be seen any number of times.
"""

from collections.abc import Iterator
from typing import Final

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.shard import (
    CouldNotStart,
    Event,
    Exited,
    Phase,
    ProbePassed,
    RendezvousOpen,
    StopWanted,
    WorkerSeen,
    next_phase,
)
from llmgw.runner import record

ENDED: Final = frozenset({Phase.STOPPED, Phase.FAILED})
STARTING: Final = frozenset({Phase.STARTING, Phase.LOADING})
RESTARTED: Final = "the machine restarted"


def phase_after(
    phase: Phase, seen: record.Record, spec: ShardSpec, boot: str, *, was_ready: bool
) -> Phase:
    """Return the phase that follows from a record; one that has ended stays as it is."""
    for event in _events(seen, spec, boot, was_ready=was_ready):
        if phase in ENDED:
            break
        if not _behind(phase, event):
            phase = next_phase(phase, event)
    return phase


def _events(seen: record.Record, spec: ShardSpec, boot: str, *, was_ready: bool) -> Iterator[Event]:
    started = seen.command(spec.commands[-1].name) is not None
    if started:
        yield RendezvousOpen()
        if spec.readiness is None:
            yield WorkerSeen()
        elif was_ready:
            yield ProbePassed()
    if seen.boot_id != boot and seen.exit is None:
        yield Exited(None) if started else CouldNotStart()
        return
    asked = seen.stop_asked and (seen.exit is None or seen.exit.asked)
    over = is_over(seen, boot)
    # What waits and is stopped has sidecars yet: it is stopped when they have ended.
    if asked and (started or over):
        yield StopWanted()
    if seen.exit is not None and not seen.exit.asked:
        # Noticed when it happens, not when the last of its processes is gone.
        yield Exited(seen.exit.status) if started else CouldNotStart()
    elif over:
        status = seen.exit.status if seen.exit is not None else None
        yield Exited(status) if started else CouldNotStart()


def _behind(phase: Phase, event: Event) -> bool:
    """Whether a phase has this event behind it, where the table itself does not say so."""
    match event:
        case RendezvousOpen():
            return phase is not Phase.WAITING
        case ProbePassed() | WorkerSeen():
            return phase not in STARTING
        case _:
            return False


def is_over(seen: record.Record, boot: str) -> bool:
    """Whether nothing of the shard lives any more."""
    return seen.phase is record.Phase.ENDED or seen.boot_id != boot


def engine_of(seen: record.Record, spec: ShardSpec) -> record.CommandState | None:
    """Return the engine's own process, once it was started."""
    return seen.command(spec.commands[-1].name)
