from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.shape import InvalidShapeError, Shape, nearest, path_text
from llmgw.core.fleet.catalog import (
    Catalog,
    EngineKind,
    Model,
    OnSilence,
    Problem,
    Profile,
    Restart,
)

TEXT = st.text(min_size=1, max_size=8)
PROFILES = st.builds(
    Profile,
    name=TEXT,
    engine=st.sampled_from(EngineKind),
    source=TEXT,
    replicas=st.integers(0, 9),
    gpu_class=st.none() | TEXT,
    arguments=st.lists(TEXT, max_size=3).map(tuple),
    environment=st.dictionaries(TEXT, TEXT, max_size=3),
    token_probe=st.booleans(),
    on_silence=st.sampled_from(OnSilence),
    restart=st.builds(Restart, delay_s=st.floats(0.1, 9.0)),
    unknown=st.just({}),
)
CATALOGS = st.builds(
    Catalog,
    models=st.lists(
        st.builds(
            Model,
            name=TEXT,
            profiles=st.lists(PROFILES, max_size=2).map(tuple),
            aliases=st.lists(TEXT, max_size=2).map(tuple),
            unknown=st.just({}),
        ),
        max_size=2,
    ).map(tuple),
    unknown=st.just({}),
)
SHAPE = Shape(Catalog, "docs")


def plain(value: object) -> object:
    """Write a value as JSON has it, with its defaults."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k != "unknown"}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return value.value if isinstance(value, EngineKind | OnSilence) else value


@given(CATALOGS)
def test_what_is_written_in_full_is_read_as_it_was(catalog: Catalog) -> None:
    assert SHAPE.read(plain(asdict(catalog))) == catalog


def refusals(data: object) -> list[Problem] | None:
    try:
        SHAPE.read(data)
    except InvalidShapeError as error:
        return [problem for _, problem in error.found]
    return None


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["models", "name", "profiles", "x"]), inner, max_size=3),
))  # fmt: skip
def test_anything_else_is_refused_with_places_and_remedies(data: object) -> None:
    found = refusals(data)
    if found is None:
        # Only this is a catalog: every member of a model but its name may be left out.
        assert isinstance(data, dict)
        assert data.keys() <= {"models"}
    else:
        assert found
        assert all(p.field and p.what and p.remedy for p in found)


def test_a_missing_member_takes_cores_own_default() -> None:
    profile = Shape(Profile, "docs").read({"name": "p", "engine": "vllm", "source": "/x"})
    assert profile == Profile("p", EngineKind.VLLM, "/x")


def test_a_number_is_no_name() -> None:
    with pytest.raises(InvalidShapeError, match="in quotes"):
        SHAPE.read({"models": [{"name": 7}]})


def test_places_are_written_as_people_do() -> None:
    assert path_text(("models", 0, "profiles", 12, "name")) == "models[0].profiles[12].name"
    assert path_text(()) == "file"


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert nearest("replica", ["replicas", "name"]) == "did you mean 'replicas'?"
    assert nearest("zzz", ["replicas", "name"]) == "use one of replicas, name"
