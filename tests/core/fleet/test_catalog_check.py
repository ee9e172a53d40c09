from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Profile, Restart
from llmgw.core.fleet.validation import check, check_labels, check_profile

PROFILE = Profile("p", EngineKind.LLAMACPP, "/models/tiny.gguf")
BIG = replace(PROFILE, engine=EngineKind.VLLM, gpus_per_node=8, tensor_parallel=8)


def fields_wrong(profile: Profile) -> list[str]:
    problems = check_profile(profile, "x")
    assert all(p.what and p.remedy for p in problems)
    return [p.field.removeprefix("x.") for p in problems]


@pytest.mark.parametrize(
    "profile",
    [
        PROFILE,
        BIG,
        replace(BIG, nodes=2, pipeline_parallel=2),
        replace(BIG, tensor_parallel=2, pipeline_parallel=2, data_parallel=2),
        replace(BIG, memory_share=0.5, gpu_class="h100-80g", source="meta-llama/Llama-3.1-8B"),
        replace(PROFILE, gpus_per_node=2),
        replace(PROFILE, replicas=0, stop_grace_s=0.0, priority=-5, source="owner/name:Q8_0"),
        replace(PROFILE, arguments=("--max-num-batched-tokens", "1", "--api-key-file", "/k")),
        replace(PROFILE, environment={"HF_HOME": "/cache", "HF_TOKEN_PATH": "/k", "TOKENS": "1"}),
    ],
)
def test_what_can_be_run_has_no_problem(profile: Profile) -> None:
    assert fields_wrong(profile) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"source": "models/tiny.gguf"}, "source"),
        ({"source": "./tiny"}, "source"),
        ({"source": "/models/../etc"}, "source"),
        ({"source": "https://x/y"}, "source"),
        ({"source": ""}, "source"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": 10**9}, "replicas"),
        ({"missing_max": -1}, "missing_max"),
        ({"nodes": 0}, "nodes"),
        ({"gpus_per_node": -1}, "gpus_per_node"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"parallel_requests": 0}, "parallel_requests"),
        ({"gpus_per_node": 1, "memory_share": 0.0}, "memory_share"),
        ({"gpus_per_node": 1, "memory_share": 1.1}, "memory_share"),
        ({"gpus_per_node": 1, "memory_share": nan}, "memory_share"),
        ({"memory_share": 0.5}, "memory_share"),
        ({"gpu_class": "l40s-45g"}, "gpu_class"),
        ({"gpus_per_node": 1, "gpu_class": "L 40"}, "gpu_class"),
        ({"start_timeout_s": 0.0}, "start_timeout_s"),
        ({"start_timeout_s": nan}, "start_timeout_s"),
        ({"stop_grace_s": -1.0}, "stop_grace_s"),
        ({"drain_s_max": inf}, "drain_s_max"),
        ({"lost_after_s": 0.0}, "lost_after_s"),
        ({"restart": Restart(delay_s=0.0)}, "restart.delay_s"),
        ({"restart": Restart(delay_s=10.0, delay_s_max=5.0)}, "restart.delay_s_max"),
        ({"arguments": ("--x", "--api-key", "k")}, "arguments[1]"),
        ({"arguments": ("--admin-api-key=k",)}, "arguments[0]"),
        ({"arguments": ("--hf_token", "k")}, "arguments[0]"),
        ({"arguments": ("--header=sk-abcdefghijklmnopqrstuv",)}, "arguments[0]"),
        ({"arguments": ("a\0b",)}, "arguments[0]"),
        ({"arguments": ("x",) * 1000}, "arguments"),
        ({"environment": {"1X": "y"}}, "environment.1X"),
        ({"environment": {"HF_TOKEN": "y"}}, "environment.HF_TOKEN"),
        ({"environment": {"OPENAI_API_KEY": "y"}}, "environment.OPENAI_API_KEY"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "environment.CUDA_VISIBLE_DEVICES"),
        ({"environment": {"LLMGW_X": "0"}}, "environment.LLMGW_X"),
        ({"environment": {"X": "a\0"}}, "environment.X"),
        ({"node_labels": {"rack": "a b"}}, "node_labels.rack"),
    ],
)
def test_one_wrong_field_is_one_problem_at_that_field(change: dict[str, Any], field: str) -> None:
    assert fields_wrong(replace(PROFILE, **change)) == [field]


def test_gpus_that_are_not_what_the_model_is_divided_over_are_named_with_both_products() -> None:
    (problem,) = check_profile(replace(BIG, nodes=2), "x")
    assert problem.field == "x.gpus_per_node"
    assert "16" in problem.what
    assert "8 x 1 x 1 = 8" in problem.what


@given(
    st.integers(1, 4), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(1, 4)
)
def test_a_division_is_accepted_exactly_when_it_uses_every_gpu_once(
    nodes: int, gpus: int, tensor: int, pipeline: int, data: int
) -> None:
    profile = replace(
        BIG,
        nodes=nodes,
        gpus_per_node=gpus,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
    )
    ranks = {(t, p, d) for t in range(tensor) for p in range(pipeline) for d in range(data)}
    places = {(n, g) for n in range(nodes) for g in range(gpus)}
    assert (fields_wrong(profile) == []) is (len(ranks) == len(places))


def test_a_secret_is_never_repeated() -> None:
    secret = "sk-abcdefghijklmnopqrstuv"
    profile = replace(
        PROFILE, arguments=(f"--api-key={secret}",), environment={"X_TOKEN": secret, "Y": secret}
    )
    problems = check_profile(profile, "x")
    assert len(problems) == 3
    assert all(secret not in str(problem) for problem in problems)


def test_names_and_aliases_are_one_space_and_profiles_another() -> None:
    def model(name: str, profile: str, *aliases: str) -> Model:
        return Model(name, (replace(PROFILE, name=profile),), aliases)

    catalog = Catalog((model("a", "p", "b"), model("b", "q", "c"), model("c", "p", "c2", "a b")))
    assert [p.field for p in check(catalog)] == [
        "models[1].name",
        "models[2].name",
        "models[2].profiles[0].name",
        "models[2].aliases[1]",
    ]


def test_a_model_and_a_profile_may_have_the_same_name() -> None:
    assert check(Catalog((Model("p", (PROFILE,)),))) == ()


def test_every_problem_of_a_catalog_is_found_at_once() -> None:
    bad = replace(PROFILE, replicas=-1, name="")
    fields = [p.field for p in check(Catalog((Model("m", (PROFILE, bad)), Model("n n"))))]
    assert fields == [
        "models[0].profiles[1].name",
        "models[0].profiles[1].replicas",
        "models[1].name",
    ]


def test_labels_are_bounded_in_number_and_characters() -> None:
    assert check_labels({"a/b.c-d_e": "x1"}, "labels") == ()
    assert [p.field for p in check_labels({"-a": "x"}, "labels")] == ["labels.-a"]
    assert check_labels({f"l{i}": "x" for i in range(100)}, "labels")[0].field == "labels"
