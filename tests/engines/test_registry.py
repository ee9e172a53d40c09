from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Profile
from llmgw.engines.base import Refused, status_words
from llmgw.engines.check import check_plans, trial
from llmgw.engines.registry import ENGINES

GOOD = Profile("good", EngineKind.LLAMACPP, "/m.gguf")


def test_every_kind_has_its_engine() -> None:
    assert {kind: engine.kind for kind, engine in ENGINES.items()} == {k: k for k in EngineKind}


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.SGLANG])
def test_an_engine_without_a_plan_refuses_and_says_so(kind: EngineKind) -> None:
    plan = ENGINES[kind].plan(trial(Model("m"), replace(GOOD, engine=kind)))
    assert isinstance(plan, Refused)
    assert f"engine: this llmgw cannot start {kind} yet" in plan.why


def test_the_version_of_vllm_is_read_past_its_warnings() -> None:
    output = "WARNING 12-01 imports took 9.1 s\n0.32.0+cpu\n"
    assert ENGINES[EngineKind.VLLM].version(output) == "0.32.0+cpu"


def test_refusals_stand_under_the_path_of_their_profile() -> None:
    bad = replace(GOOD, name="bad", arguments=("--verbose", "--port", "1"))
    vllm = replace(GOOD, name="v", engine=EngineKind.VLLM)
    catalog = Catalog((Model("a", (GOOD,)), Model("b", (GOOD, bad, vllm))))
    assert [p.field for p in check_plans(catalog)] == [
        "models[1].profiles[1].arguments[1]",
        "models[1].profiles[2].engine",
    ]


@given(
    st.builds(
        Profile,
        name=st.text(max_size=5),
        engine=st.sampled_from(EngineKind),
        source=st.text(max_size=9),
        nodes=st.integers(-2, 4),
        gpus_per_node=st.integers(-2, 4),
        arguments=st.tuples(st.text(max_size=9)),
        environment=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        context_tokens=st.none() | st.integers(),
        parallel_requests=st.none() | st.integers(),
    )
)
def test_any_profile_is_planned_completely_or_refused_with_remedies(profile: Profile) -> None:
    plan = ENGINES[profile.engine].plan(trial(Model("m"), profile))
    if isinstance(plan, Refused):
        assert plan.problems
        assert all(p.field and p.what and p.remedy for p in plan.problems)
    else:
        assert [s.node_rank for s in plan] == list(range(profile.nodes))
        assert all(s.commands and s.commands[-1].argv[0] for s in plan)


def test_statuses_are_words() -> None:
    assert status_words(-11) == "killed by SIGSEGV"
    assert status_words(-64) == "killed by signal 64"
    assert status_words(3) == "exit status 3"
    assert status_words(None) == "exit status unknown"
