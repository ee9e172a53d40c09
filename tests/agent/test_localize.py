"""From a plan to a launch on this node."""

from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.agent.discovery.programs import Program, find_programs
from llmgw.agent.localize import Ground, Refusal, localize
from llmgw.core.fleet.assignment import Command, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.hardware import Gpu
from llmgw.core.fleet.placement import Rendezvous
from llmgw.core.ids import ReplicaId
from llmgw.runner.record import Launch

SPEC = ShardSpec(
    replica=ReplicaId("k3v9qd2m7a"),
    incarnation=1,
    node_rank=0,
    node_count=1,
    model="m",
    profile="p",
    engine=EngineKind.VLLM,
    commands=(
        Command("ray", ("ray", "start", "--head")),
        Command("vllm", ("vllm", "serve", "/m"), {"PYTHONUNBUFFERED": "1"}),
    ),
    address="10.0.0.1",
    port=18100,
    key_variable="VLLM_API_KEY",
    source="/m",
)
AGENT = {
    "PATH": "/usr/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "HF_TOKEN": "hf_secret_token",
    "VLLM_PORT": "tcp://1.2.3.4:5",
    "CUDA_VISIBLE_DEVICES": "7",
    "LD_PRELOAD": "/evil.so",
}


def gpu(index: int) -> Gpu:
    return Gpu(f"GPU-{index}", index, "NVIDIA L40S", "l40s-45g")


GROUND = Ground(
    program=Program(EngineKind.VLLM, ("/opt/vllm/bin/vllm",)),
    gpus=tuple(gpu(index) for index in range(4)),
    any_gpu_lost=False,
    environment=AGENT,
    has_path=lambda path: path == "/m",
    find=lambda name, path: f"{path}/{name}" if path == "/opt/vllm/bin" else None,
    log_bytes_max=4 << 20,
)


def launched(spec: ShardSpec, key: str | None = "k" * 64, ground: Ground = GROUND) -> Launch:
    launch = localize(spec, key, ground)
    assert isinstance(launch, Launch), launch
    return launch


def refused(spec: ShardSpec, ground: Ground = GROUND) -> str:
    refusal = localize(spec, None, ground)
    assert isinstance(refusal, Refusal)
    return refusal.why


def test_programs_are_this_node_s_and_a_sidecar_is_its_engine_s_neighbour() -> None:
    ray, vllm = launched(SPEC).commands
    assert ray.argv == ("/opt/vllm/bin/ray", "start", "--head")
    assert vllm.argv == ("/opt/vllm/bin/vllm", "serve", "/m")


def test_an_engine_that_is_a_module_stands_in_for_its_usual_program() -> None:
    program = Program(EngineKind.VLLM, ("/py", "-m", "engine"))
    spec = replace(SPEC, commands=SPEC.commands[1:])
    (command,) = launched(spec, ground=replace(GROUND, program=program)).commands
    assert command.argv == ("/py", "-m", "engine", "serve", "/m")


def test_the_environment_is_an_allow_list_and_the_plan_s_own() -> None:
    environment = launched(SPEC).engine.env
    assert set(environment) == {
        "PATH", "HOME", "LC_ALL", "HF_TOKEN", "PYTHONUNBUFFERED", "VLLM_API_KEY",
        "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_the_key_is_in_its_variable_blanked_and_in_no_argument() -> None:
    launch = launched(SPEC, key="k" * 64)
    assert launch.engine.env["VLLM_API_KEY"] == "k" * 64
    assert set(launch.blank) == {"k" * 64, "hf_secret_token"}
    assert not any("k" * 64 in word for command in launch.commands for word in command.argv)


def test_without_a_store_there_is_no_key() -> None:
    launch = launched(SPEC, key=None)
    assert "VLLM_API_KEY" not in launch.engine.env


def test_a_profile_cannot_take_other_gpus_than_it_was_given() -> None:
    greedy = Command("vllm", ("vllm",), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    launch = launched(replace(SPEC, commands=(greedy,), gpus=("GPU-2", "GPU-1")))
    assert launch.engine.env["CUDA_VISIBLE_DEVICES"] == "2,1"
    assert launch.engine.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_while_a_gpu_is_lost_numbers_lie_so_uuids_are_used_or_nothing_is_started() -> None:
    ground = replace(GROUND, any_gpu_lost=True)
    spec = replace(SPEC, gpus=("GPU-1",))
    assert "lost" in refused(spec, ground)
    llama = replace(spec, engine=EngineKind.LLAMACPP, commands=SPEC.commands[1:])
    assert launched(llama, ground=ground).engine.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    launched(SPEC, ground=ground)


@pytest.mark.parametrize(
    ("spec", "ground", "word"),
    [
        (SPEC, replace(GROUND, program=None), "has no vllm"),
        (replace(SPEC, source="/gone"), GROUND, "/gone"),
        (replace(SPEC, gpus=("GPU-9",)), GROUND, "GPU-9"),
        (SPEC, replace(GROUND, find=lambda name, path: None), "has no ray"),
        (replace(SPEC, commands=(Command("a b", ("vllm",)),)), GROUND, "cannot be started"),
        (replace(SPEC, commands=(Command("a", ("ray",)),) * 2), GROUND, "cannot be started"),
    ],
)
def test_what_is_missing_is_said(spec: ShardSpec, ground: Ground, word: str) -> None:
    assert word in refused(spec, ground)


def test_a_rendezvous_is_waited_for_as_long_as_the_start_may_take() -> None:
    spec = replace(SPEC, rendezvous=Rendezvous("10.0.0.2", 18101), start_timeout_s=77.0)
    meeting = launched(spec).rendezvous
    assert meeting is not None
    assert (meeting.host, meeting.port, meeting.timeout_s) == ("10.0.0.2", 18101, 77.0)


def test_programs_are_found_by_configuration_then_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    on_path = find_programs({}, str(tmp_path)).of(EngineKind.LLAMACPP)
    assert on_path is not None
    assert on_path.argv == (str(program),)
    configured = find_programs({"llamacpp": f"{program} --verbose"}, "").of(EngineKind.LLAMACPP)
    assert configured is not None
    assert configured.argv == (str(program), "--verbose")


@pytest.mark.parametrize(
    ("configured", "word"),
    [({"vllm": "/no/such/vllm"}, "/no/such/vllm"), ({"vllm": '"open'}, "open"), ({"x": "y"}, "x")],
)
def test_a_configured_program_that_is_not_there_is_a_warning(
    configured: dict[str, str], word: str
) -> None:
    programs = find_programs(configured, "/nowhere")
    assert word in programs.warnings[0]
    assert programs.of(EngineKind.VLLM) is None
