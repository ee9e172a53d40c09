"""From a shard as it was planned to a launch on this node: pure, what it needs is given.

Paths of programs, GPU indexes and the environment are this node's own and are found anew at each
start. An engine's environment is built from an allow-list; the agent's own is not inherited.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.agent.discovery.programs import Program
from llmgw.core.fleet.assignment import Command, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.hardware import Gpu
from llmgw.runner import record

INHERITED: Final = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
        "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "CUDA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
        "HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_CACHE",
    }
)  # fmt: skip
INHERITED_PREFIXES: Final = ("LC_",)
SECRET_WORDS: Final = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
SECRET_CHARS_MIN: Final = 6
"""Blanking shorter values would tear logs apart and hide nothing."""
TAKE_UUIDS: Final = frozenset({EngineKind.LLAMACPP})
"""Engines that leave CUDA_VISIBLE_DEVICES to CUDA; many versions of vLLM take only numbers."""
LOG_FILES: Final = 4
LOG_FILE_BYTES_MIN: Final = 64 * 1024
CUDA_NONE: Final = ""
"""Hides every GPU, where leaving the variable out would show all of them."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was started, and why, with the remedy."""

    why: str
    port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """What this node has, for one start."""

    program: Program | None
    gpus: tuple[Gpu, ...]
    any_gpu_lost: bool
    environment: Mapping[str, str] = field(repr=False)
    """The agent's own."""
    has_path: Callable[[str], bool]
    """Whether a file or folder is there and can be read."""
    find: Callable[[str, str], str | None]
    """The path of a program by name and search path."""
    log_bytes_max: int


def localize(spec: ShardSpec, key: str | None, ground: Ground) -> record.Launch | Refusal:
    """Return what the runner is to start here, or why it cannot be started."""
    if ground.program is None:
        return Refusal(
            f"this node has no {spec.engine}: install it, or name its program in the agent's"
            " settings"
        )
    if spec.source and not ground.has_path(spec.source):
        return Refusal(
            f"{spec.source} is not there or cannot be read on this node; copy the model to it or"
            " correct `source` in the profile"
        )
    cuda = _cuda(spec, ground)
    if isinstance(cuda, Refusal):
        return cuda
    inherited = inherit(ground.environment)
    commands: list[record.Command] = []
    for planned in spec.commands:
        environment = {**inherited, **planned.environment, **cuda}
        if key is not None and spec.key_variable is not None:
            environment[spec.key_variable] = key
        if planned is spec.commands[-1]:
            argv: tuple[str, ...] | Refusal = (*ground.program.argv, *planned.argv[1:])
        else:
            argv = _sidecar(planned, ground.program, ground.find, environment.get("PATH", ""))
        if isinstance(argv, Refusal):
            return argv
        try:
            commands.append(
                record.Command(
                    planned.name,
                    argv,
                    environment,
                    waits_for_rendezvous=planned.waits_for_rendezvous,
                )
            )
        except ValueError as error:
            return Refusal(f"the plan of {spec.key} cannot be started: {error}")
    return _launch(spec, commands, key, ground)


def inherit(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the agent's environment that an engine gets."""
    return {
        name: value
        for name, value in environment.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }


def _cuda(spec: ShardSpec, ground: Ground) -> dict[str, str] | Refusal:
    if not spec.gpus:
        return {"CUDA_VISIBLE_DEVICES": CUDA_NONE}
    here = {gpu.uuid: gpu for gpu in ground.gpus}
    chosen: list[Gpu] = []
    for uuid in spec.gpus:
        if uuid not in here:
            return Refusal(f"GPU {uuid} is not in this node (any more); place the shard anew")
        chosen.append(here[uuid])
    if ground.any_gpu_lost:
        if spec.engine not in TAKE_UUIDS:
            return Refusal(
                "the driver of this node has lost a GPU, so the numbers of the others lie, and"
                f" {spec.engine} takes no UUIDs; reset or replace that GPU, then start again"
            )
        visible = ",".join(gpu.uuid for gpu in chosen)
    else:
        visible = ",".join(str(gpu.index) for gpu in chosen)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


def _sidecar(
    planned: Command, program: Program, find: Callable[[str, str], str | None], search_path: str
) -> tuple[str, ...] | Refusal:
    name = planned.argv[0]
    # A sidecar belongs to its engine (ray beside vllm): its neighbour is the right one.
    beside = program.argv[0].rpartition("/")[0]
    path = find(name, beside) or find(name, search_path)
    if path is None:
        return Refusal(
            f"this node has no {name}, which {planned.name} needs: install it beside"
            f" {program.argv[0]}"
        )
    return (path, *planned.argv[1:])


def _launch(
    spec: ShardSpec, commands: Sequence[record.Command], key: str | None, ground: Ground
) -> record.Launch | Refusal:
    meeting = None
    if spec.rendezvous is not None:
        meeting = record.Rendezvous(
            spec.rendezvous.host, spec.rendezvous.port, spec.start_timeout_s
        )
    try:
        return record.Launch(
            commands=tuple(commands),
            blank=tuple(sorted(_secrets(commands, key))),
            rendezvous=meeting,
            grace_s=spec.stop_grace_s,
            log_bytes_max=max(ground.log_bytes_max // LOG_FILES, LOG_FILE_BYTES_MIN),
            log_files_max=LOG_FILES,
        )
    except ValueError as error:
        return Refusal(f"the plan of {spec.key} cannot be started: {error}")


def _secrets(commands: Iterable[record.Command], key: str | None) -> set[str]:
    found = {key} if key else set()
    for command in commands:
        for name, value in command.env.items():
            if len(value) >= SECRET_CHARS_MIN and any(w in name.upper() for w in SECRET_WORDS):
                found.add(value)
    return found
