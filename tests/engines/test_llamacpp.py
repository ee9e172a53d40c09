from dataclasses import replace
from typing import Any

import pytest

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import EngineKind, Model, Profile
from llmgw.engines.base import Plan, Refused
from llmgw.engines.check import trial
from llmgw.engines.llamacpp import LLAMACPP, plan

PROFILE = Profile("p", EngineKind.LLAMACPP, "/models/tiny.gguf")


def planned(aliases: tuple[str, ...] = (), **fields: Any) -> Plan:
    return plan(trial(Model("tiny", aliases=aliases), replace(PROFILE, **fields)))


def spec(**fields: Any) -> ShardSpec:
    result = planned(**fields)
    assert not isinstance(result, Refused), result.why
    assert len(result) == 1
    return result[0]


def test_a_plain_profile_gives_exactly_this_command_and_environment() -> None:
    shard = spec(aliases=("small", "default"))
    (command,) = shard.commands
    assert command.name == "llama-server"
    assert command.argv == (
        "llama-server", "--model", "/models/tiny.gguf", "--alias", "tiny",
        "--host", "127.0.0.1", "--port", "18100", "--metrics", "--no-slots",
    )  # fmt: skip
    assert command.environment == {
        "LLAMA_ARG_SSE_PING_INTERVAL": "1",
        "LLAMA_ARG_UI": "0",
        "LLAMA_ARG_NO_WEBUI": "1",
        "LLAMA_ARG_N_GPU_LAYERS": "0",
    }
    assert not command.waits_for_rendezvous


def test_limits_gpus_and_further_arguments_come_in_that_order() -> None:
    shard = spec(
        gpus_per_node=2,
        context_tokens=4096,
        parallel_requests=3,
        arguments=("--flash-attn", "on"),
        environment={"GGML_CUDA_NO_PINNED": "1"},
    )
    assert shard.commands[0].argv[11:] == (
        "--ctx-size", "12288", "--parallel", "3", "--n-gpu-layers", "999", "--flash-attn", "on",
    )  # fmt: skip
    assert shard.commands[0].environment["GGML_CUDA_NO_PINNED"] == "1"
    assert "LLAMA_ARG_N_GPU_LAYERS" not in shard.commands[0].environment
    assert shard.gpus == ("GPU-0-0", "GPU-0-1")


def test_the_context_is_not_multiplied_where_the_engine_chooses_how_many_requests_it_takes() -> (
    None
):
    argv = spec(context_tokens=4096).commands[0].argv
    assert argv[argv.index("--ctx-size") + 1] == "4096"


def test_readiness_asks_for_the_models_own_name_and_knows_503_as_loading() -> None:
    ready = spec(token_probe=True, aliases=("other",)).readiness
    assert ready is not None
    assert (ready.health_path, ready.models_path) == ("/health", "/v1/models")
    assert (ready.served_name, ready.loading_status, ready.token_probe) == ("tiny", 503, True)


def test_the_spec_carries_what_the_profile_says_and_names_the_file_but_no_key() -> None:
    shard = spec(memory_share=0.5, gpus_per_node=1, start_timeout_s=9.0, stop_grace_s=2.0)
    assert shard.source == "/models/tiny.gguf"
    assert shard.key_variable == "LLAMA_API_KEY"
    assert shard.metrics_path == "/metrics"
    assert (shard.memory_share, shard.start_timeout_s, shard.stop_grace_s) == (0.5, 9.0, 2.0)
    assert "LLAMA_API_KEY" not in shard.commands[0].environment
    assert LLAMACPP.serves_http(shard.node_rank)
    assert not LLAMACPP.serves_http(1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"arguments": ("--verbose", "--port", "80")}, "arguments[1]"),
        ({"arguments": ("--port=80",)}, "arguments[0]"),
        ({"arguments": ("--api_key", "x")}, "arguments[0]"),
        ({"arguments": ("-c", "1")}, "arguments[0]"),
        ({"arguments": ("-hf", "a/b")}, "arguments[0]"),
        ({"arguments": ("-ngl", "1")}, "arguments[0]"),
        ({"arguments": ("--reuse-port",)}, "arguments[0]"),
        ({"environment": {"LLAMA_API_KEY": "x"}}, "environment.LLAMA_API_KEY"),
        ({"environment": {"LLAMA_ARG_HOST": "0.0.0.0"}}, "environment.LLAMA_ARG_HOST"),
        ({"source": "owner/name"}, "source"),
        ({"nodes": 2}, "nodes"),
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"quantization": "fp8"}, "quantization"),
    ],
)
def test_what_llmgw_sets_or_llama_cpp_cannot_do_is_refused_with_a_remedy(
    fields: dict[str, Any], field: str
) -> None:
    result = planned(**fields)
    assert isinstance(result, Refused)
    assert [p.field for p in result.problems] == [field]
    assert result.problems[0].remedy
    assert field in result.why


def test_layers_may_be_chosen_where_there_are_gpus_and_negative_numbers_are_no_flags() -> None:
    argv = spec(gpus_per_node=1, arguments=("-ngl", "20", "--predict", "-1")).commands[0].argv
    assert argv[-4:] == ("-ngl", "20", "--predict", "-1")


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("version: 0.6.0-dev (build 11434, commit 1a2b3c)\nbuilt with GNU 12", "11434"),
        ("version: 0.6.0-dev (build 0, commit unknown)", "0.6.0-dev"),
        ("warning: no GPU\nversion: 6082 (5aa1105d)", "6082"),
        ("version: xllamacpp 2026.10.11549\n", "xllamacpp 2026.10.11549"),
        ("usage: llama-server", None),
    ],
)
def test_versions_are_read_as_the_programs_print_them(output: str, version: str | None) -> None:
    assert LLAMACPP.version(output) == version


@pytest.mark.parametrize(
    ("line", "status", "words", "port_taken"),
    [
        ("E srv start: couldn't bind HTTP server socket, hostname: x", 1, "127.0.0.1:18100", True),
        ("E cmn common_init_: failed to load model '/models/tiny.gguf'", 1, "tiny.gguf", False),
        ("error: invalid argument: --mlock", 1, "--mlock", False),
        ("ggml_cuda: out of memory", -6, "memory", False),
        ("I srv update_slots: all slots are idle", -9, "SIGKILL", False),
        ("I srv update_slots: all slots are idle", 0, "exit status 0", False),
        ("", None, "wrote nothing", False),
    ],
)
def test_an_ending_is_told_from_the_log_and_the_status(
    line: str, status: int | None, words: str, port_taken: bool
) -> None:
    ending = LLAMACPP.ending(spec(), status, ["I srv main: hello", line] if line else [])
    assert words in ending.why
    assert ending.port_taken is port_taken


def test_a_failed_load_that_follows_want_of_memory_is_told_as_want_of_memory() -> None:
    lines = ["E alloc: unable to allocate CPU buffer", "E srv: failed to load model"]
    assert "too little memory" in LLAMACPP.ending(spec(), 1, lines).why


def test_a_long_line_is_cut_in_the_sentence_about_it() -> None:
    assert len(LLAMACPP.ending(spec(), 1, ["x" * 10_000]).why) < 500
