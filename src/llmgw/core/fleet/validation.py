"""What is wrong with a catalog, before anything is placed: each problem with field and remedy.

Only what holds for every engine is here; what one engine refuses, its own plan says
(`engines.check`). Pure, and complete: everything that is wrong is said at once.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Problem, Profile

MODELS_MAX: Final = 1000
PROFILES_MAX: Final = 1000
ALIASES_MAX: Final = 32
REPLICAS_MAX: Final = 1000
NODES_MAX: Final = 256
GPUS_PER_NODE_MAX: Final = 64
CONTEXT_TOKENS_MAX: Final = 2**24
PARALLEL_REQUESTS_MAX: Final = 4096
PRIORITY_MAX: Final = 1_000_000
ARGUMENTS_MAX: Final = 256
ARGUMENT_CHARS_MAX: Final = 8192
VARIABLES_MAX: Final = 128
LABELS_MAX: Final = 32
DAY_S: Final = 86400.0

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?(:[\w.-]{1,63})?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRET_FLAG: Final = re.compile(
    r"--?(hft|([a-z0-9_-]+[_-])?(api[_-]?key|(hf|auth|access)[_-]?token|password|secret))"
)
_SECRET_VARIABLE: Final = re.compile(r"(.*_)?(API_?KEY|SECRET(_KEY)?|TOKEN|PASSWORD|ACCESS_KEY)")
_SECRET_VALUE: Final = re.compile(r"(sk-|hf_)[A-Za-z0-9_-]{16,}")

_PER_NODE: Final = "remove it: each node's agent sets it to what is right there"
_DERIVED: Final = "remove it: llmgw gives every replica a key of its own"
OWN_VARIABLES: Final[Mapping[str, str]] = {
    "CUDA_DEVICE_ORDER": _PER_NODE,
    "CUDA_VISIBLE_DEVICES": "remove it and write `gpus_per_node`: placement hands GPUs out",
    "GLOO_SOCKET_IFNAME": _PER_NODE,
    "LLAMA_API_KEY": _DERIVED,
    "NCCL_IB_GID_INDEX": _PER_NODE,
    "NCCL_IB_HCA": _PER_NODE,
    "NCCL_SOCKET_IFNAME": _PER_NODE,
    "NVIDIA_VISIBLE_DEVICES": "remove it and write `gpus_per_node`: placement hands GPUs out",
    "VLLM_API_KEY": _DERIVED,
    "VLLM_HOST_IP": _PER_NODE,
    "VLLM_PORT": "remove it: placement hands ports out",
}
"""Environment that llmgw makes itself, with what to do instead."""

DIVIDES_BY_ITSELF: Final = frozenset({EngineKind.LLAMACPP})
"""Engines that spread a model over their GPUs without being told how."""


def check(catalog: Catalog) -> tuple[Problem, ...]:
    """Return everything that is wrong, in the order of the fields; empty if nothing is."""
    problems = [*_names(catalog)]
    if len(catalog.models) > MODELS_MAX:
        what = f"there are {len(catalog.models)} models; the limit is {MODELS_MAX}"
        problems.append(Problem("models", what, "divide them among several llmgw"))
    for i, model in enumerate(catalog.models):
        problems += _model(f"models[{i}]", model)
        for j, profile in enumerate(model.profiles):
            problems += check_profile(profile, f"models[{i}].profiles[{j}]")
    return tuple(problems)


def check_profile(profile: Profile, path: str) -> tuple[Problem, ...]:
    """Return what is wrong with one profile that stands at `path`."""
    at = _At(path)
    return (
        *_matches(at, "name", profile.name, PROFILE_NAME),
        *_source(at, profile.source),
        *_amounts(at, profile),
        *_shape(at, profile),
        *_durations(at, profile),
        *_arguments(at, profile.arguments),
        *_environment(at, profile.environment),
        *check_labels(profile.node_labels, f"{path}.node_labels"),
    )


def check_labels(labels: Mapping[str, str], path: str) -> tuple[Problem, ...]:
    """Return what is wrong with labels that stand at `path`."""
    problems: list[Problem] = []
    if len(labels) > LABELS_MAX:
        what = f"there are {len(labels)} labels; the limit is {LABELS_MAX}"
        problems.append(Problem(path, what, "keep those that placement needs"))
    for name, value in labels.items():
        bad = [text for text in (name, value) if not LABEL.fullmatch(text)]
        problems += [Problem(f"{path}.{name}", _is_no(text), _CHARACTERS) for text in bad]
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class _At:
    """Makes problems of the fields below one path."""

    path: str

    def problem(self, field: str, what: str, remedy: str) -> Problem:
        return Problem(f"{self.path}.{field}", what, remedy)


_CHARACTERS: Final = "use letters, digits and . _ - /, at most 63, a letter or digit at both ends"


def _is_no(text: str) -> str:
    return f"{text[:80]!r} cannot be used here"


def _matches(at: _At, field: str, text: str, pattern: re.Pattern[str]) -> Iterator[Problem]:
    if not pattern.fullmatch(text):
        remedy = f"begin with a letter or digit; the whole must match {pattern.pattern}"
        yield at.problem(field, _is_no(text), remedy)


def _names(catalog: Catalog) -> Iterator[Problem]:
    """Names and aliases are one space over the catalog, names of profiles another."""
    served: dict[str, str] = {}
    profiles: dict[str, str] = {}
    for i, model in enumerate(catalog.models):
        paths = [f"models[{i}].name"]
        paths += [f"models[{i}].aliases[{j}]" for j in range(len(model.aliases))]
        for path, name in zip(paths, model.served_names, strict=True):
            yield from _once(served, path, name, "clients could not tell the models apart")
        for j, profile in enumerate(model.profiles):
            path = f"models[{i}].profiles[{j}].name"
            yield from _once(profiles, path, profile.name, "profiles are named over all models")
    if len(profiles) > PROFILES_MAX:
        what = f"there are {len(profiles)} profiles; the limit is {PROFILES_MAX}"
        yield Problem("models", what, "divide them among several llmgw")


def _once(seen: dict[str, str], path: str, name: str, reason: str) -> Iterator[Problem]:
    if name in seen:
        what = f"{name[:80]!r} is {seen[name]} already"
        yield Problem(path, what, f"choose another name: {reason}")
    else:
        seen[name] = path


def _model(path: str, model: Model) -> Iterator[Problem]:
    at = _At(path)
    yield from _matches(at, "name", model.name, MODEL_NAME)
    for i, alias in enumerate(model.aliases):
        yield from _matches(at, f"aliases[{i}]", alias, MODEL_NAME)
    if len(model.aliases) > ALIASES_MAX:
        what = f"there are {len(model.aliases)} aliases; the limit is {ALIASES_MAX}"
        yield at.problem("aliases", what, "keep those that clients use")


def _source(at: _At, source: str) -> Iterator[Problem]:
    if source.startswith("/"):
        if "\0" in source or ".." in source.split("/"):
            yield at.problem("source", _is_no(source), "write the path without `..`")
    elif source.endswith(".gguf") or not _HUB_ID.fullmatch(source):
        what = f"{source[:80]!r} is neither an absolute path nor a hub id"
        yield at.problem("source", what, "write /PATH/ON/THE/NODES or OWNER/NAME")


def _amounts(at: _At, profile: Profile) -> Iterator[Problem]:
    bounds: tuple[tuple[str, int | None, int, int], ...] = (
        ("replicas", profile.replicas, 0, REPLICAS_MAX),
        ("missing_max", profile.missing_max, 0, REPLICAS_MAX),
        ("nodes", profile.nodes, 1, NODES_MAX),
        ("gpus_per_node", profile.gpus_per_node, 0, GPUS_PER_NODE_MAX),
        ("tensor_parallel", profile.tensor_parallel, 1, NODES_MAX * GPUS_PER_NODE_MAX),
        ("pipeline_parallel", profile.pipeline_parallel, 1, NODES_MAX * GPUS_PER_NODE_MAX),
        ("data_parallel", profile.data_parallel, 1, NODES_MAX * GPUS_PER_NODE_MAX),
        ("context_tokens", profile.context_tokens, 1, CONTEXT_TOKENS_MAX),
        ("parallel_requests", profile.parallel_requests, 1, PARALLEL_REQUESTS_MAX),
        ("priority", profile.priority, -PRIORITY_MAX, PRIORITY_MAX),
    )
    for field, value, low, high in bounds:
        if value is not None and not low <= value <= high:
            yield at.problem(field, f"is {value}", f"write a whole number from {low} to {high}")


def _shape(at: _At, profile: Profile) -> Iterator[Problem]:
    if not 0.0 < profile.memory_share <= 1.0:
        what = f"is {profile.memory_share}"
        yield at.problem("memory_share", what, "write a share above 0 and up to 1, a whole GPU")
    for field, text in (("gpu_class", profile.gpu_class), ("quantization", profile.quantization)):
        if text is not None:
            yield from _matches(at, field, text, _WORD)
    if profile.gpus_per_node <= 0:
        if profile.gpu_class is not None:
            what = "names a GPU class, but no GPU is asked for"
            yield at.problem("gpu_class", what, "write `gpus_per_node`, or leave it out")
        if profile.memory_share < 1.0:
            what = "shares a GPU, but no GPU is asked for"
            yield at.problem("memory_share", what, "write `gpus_per_node`, or leave it out")
        return
    gpus = profile.nodes * profile.gpus_per_node
    parts = (profile.tensor_parallel, profile.pipeline_parallel, profile.data_parallel)
    if profile.engine not in DIVIDES_BY_ITSELF and gpus != prod(parts):
        what = f"{profile.nodes} nodes x {profile.gpus_per_node} GPUs are {gpus}, but tensor x "
        what += f"pipeline x data parallel is {' x '.join(map(str, parts))} = {prod(parts)}"
        yield at.problem("gpus_per_node", what, "make the two products equal")


def _durations(at: _At, profile: Profile) -> Iterator[Problem]:
    restart = profile.restart
    bounds = (
        ("start_timeout_s", profile.start_timeout_s, 1.0, DAY_S),
        ("stop_grace_s", profile.stop_grace_s, 0.0, 3600.0),
        ("drain_s_max", profile.drain_s_max, 0.0, DAY_S),
        ("lost_after_s", profile.lost_after_s, 1.0, 7 * DAY_S),
        ("restart.delay_s", restart.delay_s, 0.1, DAY_S),
        ("restart.delay_s_max", restart.delay_s_max, 0.1, DAY_S),
        ("restart.reset_after_s", restart.reset_after_s, 1.0, 7 * DAY_S),
    )
    for field, value, low, high in bounds:
        # Not `low > value`: what is no number at all must fail too.
        if not low <= value <= high:
            yield at.problem(field, f"is {value} s", f"write seconds from {low:g} to {high:g}")
    if restart.delay_s > restart.delay_s_max:
        what = f"is {restart.delay_s_max} s, less than the first delay of {restart.delay_s} s"
        yield at.problem("restart.delay_s_max", what, "write `delay_s` or more")


def _arguments(at: _At, arguments: tuple[str, ...]) -> Iterator[Problem]:
    if len(arguments) > ARGUMENTS_MAX:
        what = f"there are {len(arguments)}; the limit is {ARGUMENTS_MAX}"
        yield at.problem("arguments", what, "use the engine's own configuration file")
    for i, argument in enumerate(arguments):
        field = f"arguments[{i}]"
        if "\0" in argument or len(argument) > ARGUMENT_CHARS_MAX:
            what = f"has a NUL or more than {ARGUMENT_CHARS_MAX} characters"
            yield at.problem(field, what, "shorten it, or name a file")
        if _secret_argument(argument):
            what = "looks like a secret, and arguments are shown to everybody on the machine"
            remedy = "remove it; put the secret into a file on the node and name that"
            yield at.problem(field, what, remedy)


def _secret_argument(argument: str) -> bool:
    """Tell whether a flag takes a secret, or a value is one."""
    flag = argument.partition("=")[0]
    return bool(_SECRET_FLAG.fullmatch(flag) or _SECRET_VALUE.search(argument))


def _environment(at: _At, environment: Mapping[str, str]) -> Iterator[Problem]:
    if len(environment) > VARIABLES_MAX:
        what = f"there are {len(environment)} variables; the limit is {VARIABLES_MAX}"
        yield at.problem("environment", what, "keep those that the engine reads")
    for name, value in environment.items():
        field = f"environment.{name[:80]}"
        if not _VARIABLE.fullmatch(name):
            yield at.problem(field, _is_no(name), "use letters, digits and _")
        elif remedy := _own_variable(name):
            yield at.problem(field, "is set by llmgw itself", remedy)
        elif _SECRET_VARIABLE.fullmatch(name.upper()) or _SECRET_VALUE.search(value):
            what = "looks like a secret, and a catalog is shown to everybody who may read it"
            remedy = "remove it; put the secret into a file on the node and name that"
            yield at.problem(field, what, remedy)
        if "\0" in value or len(value) > ARGUMENT_CHARS_MAX:
            what = f"has a NUL or more than {ARGUMENT_CHARS_MAX} characters"
            yield at.problem(field, what, "shorten it, or name a file")


def _own_variable(name: str) -> str:
    if name.startswith("LLMGW_"):
        return "remove it: names that begin so belong to llmgw"
    return OWN_VARIABLES.get(name, "")
