"""llama.cpp's llama-server on one node.

What shaped the plan (seen on build 11434, xllamacpp 2026.10 and older help texts):

- It listens at once and answers 503 to everything while it loads, before it looks at a key; so
  loading is seen by HTTP.
- After SIGTERM an open stream gets no more tokens and the process waits for the stream's next SSE
  ping, by default 30 s: the ping interval is set to one second. Through the environment, since
  versions that do not know the flag refuse to start with it but ignore the variable.
- It ignores the model that a request names, so the model's own name is alias enough; older ones
  take a comma list for one name, and would never list the one that readiness looks for.
- The default port is about to change and the default context is the model's largest; ports are
  always given, contexts when the profile says so.
- With `--parallel N` it divides the context among N slots: a profile's `context_tokens` is what
  one request may use, so the whole is that many times N.
- Without a llama-server, the wheel xllamacpp (extra `llmgw[llamacpp]`) has the same server inside;
  `llmgw.apps.llama_server` starts it.
"""

import re
from collections.abc import Iterator
from typing import Final

from llmgw.core.fleet.assignment import Command, Readiness, ShardSpec
from llmgw.core.fleet.catalog import EngineKind, Problem, Profile
from llmgw.core.fleet.placement import PlacedShard, Placement
from llmgw.engines.base import Engine, Plan, ProgramModule, Refused, Sign
from llmgw.engines.flags import refused, refused_variables

PROGRAM: Final = "llama-server"
KEY_VARIABLE: Final = "LLAMA_API_KEY"
LOADING_STATUS: Final = 503
SSE_PING_S: Final = 1
ALL_LAYERS: Final = 999
"""More than any model has; "all" is not understood by older versions."""

_OWN: Final = "remove it: llmgw sets it from the placement"
_KEY: Final = "remove it: llmgw gives every replica a key of its own"
_SOURCE: Final = "remove it and put the file's path into `source`"
_PLAIN: Final = "remove it: llmgw speaks plain HTTP to engines, under their usual paths"
_LOGS: Final = "remove it: the engine's output is kept, bounded, and shown by `llmgw ctl logs`"
_ROUTER: Final = "remove it: each model is a profile of its own"
_PRINTS: Final = "remove it: llama-server would print something and end"

_FLAGS: Final = {
    "--host": _OWN,
    "--port": _OWN,
    "--reuse-port": "remove it: two engines could then share a port",
    "-a": _OWN,
    "--alias": _OWN,
    "-m": _SOURCE,
    "--model": _SOURCE,
    "-mu": _SOURCE,
    "--model-url": _SOURCE,
    "-hf": _SOURCE,
    "-hfr": _SOURCE,
    "--hf-repo": _SOURCE,
    "-hff": _SOURCE,
    "--hf-file": _SOURCE,
    "-c": "remove it and set `context_tokens`",
    "--ctx-size": "remove it and set `context_tokens`",
    "-np": "remove it and set `parallel_requests`",
    "--parallel": "remove it and set `parallel_requests`",
    "--api-key": _KEY,
    "--api-key-file": _KEY,
    "--ssl-key-file": _PLAIN,
    "--ssl-cert-file": _PLAIN,
    "--api-prefix": _PLAIN,
    "--models-dir": _ROUTER,
    "--models-preset": _ROUTER,
    "--log-file": _LOGS,
    "--log-disable": _LOGS,
    "-h": _PRINTS,
    "--help": _PRINTS,
    "--usage": _PRINTS,
    "--version": _PRINTS,
    "--list-devices": _PRINTS,
    "-cl": _PRINTS,
    "--cache-list": _PRINTS,
    "--completion-bash": _PRINTS,
}
_GPU_FLAGS: Final = dict.fromkeys(
    ("-ngl", "--gpu-layers", "--n-gpu-layers"), "remove it, or set `gpus_per_node`"
)
_VARIABLES: Final = {
    KEY_VARIABLE: _KEY,
    "LLAMA_ARG_API_KEY_FILE": _KEY,
    "LLAMA_ARG_HOST": _OWN,
    "LLAMA_ARG_PORT": _OWN,
    "LLAMA_ARG_REUSE_PORT": "remove it: two engines could then share a port",
    "LLAMA_ARG_MODEL": _SOURCE,
    "LLAMA_ARG_MODEL_URL": _SOURCE,
    "LLAMA_ARG_HF_REPO": _SOURCE,
    "LLAMA_ARG_HF_FILE": _SOURCE,
    "LLAMA_ARG_SSL_KEY_FILE": _PLAIN,
    "LLAMA_ARG_SSL_CERT_FILE": _PLAIN,
    "LLAMA_ARG_API_PREFIX": _PLAIN,
    "LLAMA_ARG_MODELS_DIR": _ROUTER,
    "LLAMA_ARG_MODELS_PRESET": _ROUTER,
    "LLAMA_ARG_LOG_FILE": _LOGS,
}


def plan(placement: Placement) -> Plan:
    """Return the one shard's spec, or everything that is in the way."""
    problems = tuple(_problems(placement.profile))
    if problems:
        return Refused(problems)
    return tuple(_spec(placement, shard) for shard in placement.shards)


def serves_http(node_rank: int) -> bool:
    """Tell who answers: the only shard."""
    return node_rank == 0


def _problems(profile: Profile) -> Iterator[Problem]:
    if profile.nodes != 1:
        what = f"llama.cpp runs on one node, not on {profile.nodes}"
        yield Problem("nodes", what, "write 1, and more `replicas` for more nodes")
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        if getattr(profile, name) != 1:
            what = "llama.cpp divides a model over its GPUs by itself"
            yield Problem(name, what, "leave it out, and write `gpus_per_node`")
    if profile.quantization is not None:
        what = "llama.cpp takes the quantization from the model file"
        yield Problem("quantization", what, "leave it out, and name a file that is quantized so")
    if not profile.source.startswith("/"):
        what = f"llama.cpp is started with a file, and {profile.source!r} is no absolute path"
        yield Problem("source", what, "write the path of a .gguf file that the nodes have")
    flags = _FLAGS if profile.gpus_per_node else {**_FLAGS, **_GPU_FLAGS}
    yield from refused(profile.arguments, flags)
    yield from refused_variables(profile.environment, _VARIABLES)


def _spec(placement: Placement, shard: PlacedShard) -> ShardSpec:
    profile = placement.profile
    return ShardSpec(
        replica=placement.replica,
        incarnation=placement.incarnation,
        node_rank=shard.node_rank,
        node_count=len(placement.shards),
        model=placement.model,
        profile=profile.name,
        engine=EngineKind.LLAMACPP,
        commands=(Command(PROGRAM, _argv(placement, shard), _environment(profile)),),
        address=shard.address,
        port=shard.port,
        gpus=shard.gpus,
        memory_share=profile.memory_share,
        rendezvous=placement.rendezvous,
        readiness=Readiness(
            health_path="/health",
            models_path="/v1/models",
            served_name=placement.model,
            loading_status=LOADING_STATUS,
            token_probe=profile.token_probe,
        ),
        key_variable=KEY_VARIABLE,
        metrics_path="/metrics",
        source=profile.source,
        start_timeout_s=profile.start_timeout_s,
        stop_grace_s=profile.stop_grace_s,
    )


def _argv(placement: Placement, shard: PlacedShard) -> tuple[str, ...]:
    profile = placement.profile
    argv = [PROGRAM, "--model", profile.source, "--alias", placement.model]
    argv += ["--host", shard.address, "--port", str(shard.port)]
    # Slots show what other callers asked; nothing of llmgw reads them.
    argv += ["--metrics", "--no-slots"]
    if profile.context_tokens is not None:
        tokens = profile.context_tokens * (profile.parallel_requests or 1)
        argv += ["--ctx-size", str(tokens)]
    if profile.parallel_requests is not None:
        argv += ["--parallel", str(profile.parallel_requests)]
    if profile.gpus_per_node:
        argv += ["--n-gpu-layers", str(ALL_LAYERS)]
    return (*argv, *profile.arguments)


def _environment(profile: Profile) -> dict[str, str]:
    environment = {
        "LLAMA_ARG_SSE_PING_INTERVAL": str(SSE_PING_S),
        # The web page of the engine is no way into a model; newer and older name of the setting.
        "LLAMA_ARG_UI": "0",
        "LLAMA_ARG_NO_WEBUI": "1",
    }
    if not profile.gpus_per_node:
        # Recent versions take every GPU that they see, and not all back-ends can be blinded.
        environment["LLAMA_ARG_N_GPU_LAYERS"] = "0"
    return {**environment, **profile.environment}


_MEMORY: Final = "llama-server had too little memory for {source}: {line}"
_ARGUMENT: Final = "this llama-server does not take the profile's arguments: {line}"
_MODEL: Final = "llama-server cannot load {source}: missing, unreadable or no GGUF model"

LLAMACPP: Final = Engine(
    kind=EngineKind.LLAMACPP,
    programs=(PROGRAM,),
    module=ProgramModule("llmgw.apps.llama_server", needs="xllamacpp"),
    plan=plan,
    serves_http=serves_http,
    key_variable=KEY_VARIABLE,
    # "version: 0.6.0-dev (build 11434, commit 1a2b3c)", "version: 6082 (5aa1105d)", our module's
    # "version: xllamacpp 2026.10.11549"; a build of 0 says nothing.
    version_pattern=re.compile(
        r"version: (?:\S+ \(build ([1-9]\d*)\b|(xllamacpp \S+)|(\d+) \(|(\S+))"
    ),
    loading=("loading model",),
    signs=(
        Sign(
            "couldn't bind",
            "llama-server cannot listen on {host}:{port}: something else holds the port, or the "
            "address is not this node's",
            port_taken=True,
        ),
        Sign("invalid argument", _ARGUMENT),
        Sign("unknown argument", _ARGUMENT),
        Sign("error while handling argument", _ARGUMENT),
        Sign("out of memory", _MEMORY),
        Sign("unable to allocate", _MEMORY),
        Sign("failed to allocate", _MEMORY),
        Sign("failed to load model", _MODEL),
    ),
)
