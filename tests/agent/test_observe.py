"""From a runner's record to a shard's phase: each record with the phase that it means."""

from dataclasses import replace

import pytest

from llmgw.agent.observe import phase_after
from llmgw.core.fleet.assignment import Command, Readiness, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ReplicaId
from llmgw.runner import record

HEAD = ShardSpec(
    replica=ReplicaId("a"),
    incarnation=1,
    node_rank=0,
    node_count=1,
    model="m",
    profile="p",
    engine=EngineKind.VLLM,
    commands=(Command("ray", ("ray",)), Command("vllm", ("vllm",))),
    address="127.0.0.1",
    port=1,
    readiness=Readiness("/health", "/v1/models", "m"),
)
WORKER = replace(HEAD, readiness=None)
RAY = record.CommandState("ray", 10, 1, 0.0)
VLLM = record.CommandState("vllm", 11, 1, 0.0)
WAITS = record.Record("boot", record.Phase.WAITING, "waits", 0.0, 0.0, (RAY,))
RUNS = replace(WAITS, phase=record.Phase.RUNNING, commands=(RAY, VLLM))
STOPS = replace(RUNS, phase=record.Phase.STOPPING, stop_asked=True)
CRASHED = record.Exit("vllm", 0, asked=False, why="ended", at_wall_s=0.0)
ASKED = replace(CRASHED, asked=True)
DYING = replace(RUNS, phase=record.Phase.STOPPING, exit=CRASHED)


@pytest.mark.parametrize(
    ("spec", "seen", "ready", "phase"),
    [
        (HEAD, WAITS, False, Phase.WAITING),
        (HEAD, RUNS, False, Phase.STARTING),
        (HEAD, RUNS, True, Phase.READY),
        (WORKER, RUNS, False, Phase.ALIVE),
        (HEAD, STOPS, True, Phase.STOPPING),
        (HEAD, replace(STOPS, exit=ASKED), True, Phase.STOPPING),
        (HEAD, replace(STOPS, phase=record.Phase.ENDED, exit=ASKED), True, Phase.STOPPED),
        (HEAD, DYING, True, Phase.FAILED),
        (HEAD, replace(DYING, phase=record.Phase.ENDED), False, Phase.FAILED),
        (HEAD, replace(DYING, stop_asked=True), True, Phase.FAILED),
        (HEAD, replace(WAITS, stop_asked=True), False, Phase.WAITING),
        (
            HEAD,
            replace(WAITS, stop_asked=True, phase=record.Phase.ENDED, exit=ASKED),
            False,
            Phase.STOPPED,
        ),
        (HEAD, replace(WAITS, phase=record.Phase.ENDED, exit=CRASHED), False, Phase.FAILED),
        (HEAD, replace(RUNS, boot_id="earlier"), True, Phase.FAILED),
        (HEAD, replace(WAITS, boot_id="earlier"), False, Phase.FAILED),
        (
            HEAD,
            replace(STOPS, boot_id="earlier", phase=record.Phase.ENDED, exit=ASKED),
            True,
            Phase.STOPPED,
        ),
    ],
)
def test_a_record_means_a_phase_however_often_it_is_seen(
    spec: ShardSpec, seen: record.Record, ready: bool, phase: Phase
) -> None:
    first = phase_after(Phase.WAITING, seen, spec, "boot", was_ready=ready)
    assert first is phase
    assert phase_after(first, seen, spec, "boot", was_ready=ready) is phase


def test_a_later_record_goes_on_where_the_phase_is() -> None:
    phase = phase_after(Phase.LOADING, RUNS, HEAD, "boot", was_ready=False)
    assert phase is Phase.LOADING
    assert phase_after(phase, DYING, HEAD, "boot", was_ready=False) is Phase.FAILED
    assert phase_after(Phase.FAILED, STOPS, HEAD, "boot", was_ready=False) is Phase.FAILED
