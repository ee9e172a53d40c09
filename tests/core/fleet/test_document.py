"""The documents of the fleet: what one version writes, another reads and gives back whole."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.document import DOCUMENT_BYTES_MAX, InvalidDocumentError, dump, load
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import Catalog, Model, Profile
from llmgw.core.fleet.placement import Placement
from llmgw.testing.fleet import inventory, placement, profile

PLACEMENT = placement()
PROFILE = profile(environment={"A": "1"}, arguments=("--verbose",), context_tokens=None)
CATALOG = Catalog((Model("m", (PROFILE, replace(PROFILE, name="q")), ("alias",)),), revision=7)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NEW = st.dictionaries(st.sampled_from(["new", "later", "x-y"]), JSON, min_size=1)


@pytest.mark.parametrize("document", [PLACEMENT, CATALOG, inventory(), PROFILE])
def test_a_document_is_read_as_it_was_written(
    document: Placement | Catalog | Profile | ShardSpec,
) -> None:
    assert load(type(document), dump(document)) == document
    assert "unknown" not in json.loads(dump(document))


@given(NEW, NEW, NEW)
def test_members_of_a_later_version_survive_at_every_depth(
    top: dict[str, object], middle: dict[str, object], deep: dict[str, object]
) -> None:
    raw = json.loads(dump(CATALOG))
    raw |= top
    raw["models"][0] |= middle
    raw["models"][0]["profiles"][1]["restart"] |= deep
    passed_on = load(Catalog, json.dumps(raw))
    assert json.loads(dump(passed_on)) == raw
    assert passed_on.models[0].profiles[1].name == "q"


def test_a_change_by_an_older_version_keeps_what_only_a_newer_one_knows() -> None:
    raw = json.loads(dump(CATALOG)) | {"later": [1]}
    changed = replace(load(Catalog, json.dumps(raw)), revision=8)
    assert json.loads(dump(changed)) == raw | {"revision": 8}


def test_a_member_that_is_missing_has_its_default() -> None:
    raw = json.loads(dump(PROFILE))
    del raw["replicas"]
    assert load(Profile, json.dumps(raw)).replicas == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"name": 3}',
        '{"name": "p"}',
        "{",
        b"\xff",
        '{"name": "p", "engine": "x"}',
    ],
)
def test_what_is_no_document_is_refused_by_name(text: str | bytes) -> None:
    with pytest.raises(InvalidDocumentError, match="Profile"):
        load(Profile, text)


def test_a_wrong_member_is_named() -> None:
    raw = json.loads(dump(PROFILE)) | {"replicas": "two"}
    with pytest.raises(InvalidDocumentError, match="replicas"):
        load(Profile, json.dumps(raw))


def test_a_document_without_bound_is_refused() -> None:
    with pytest.raises(InvalidDocumentError, match="limit"):
        load(Profile, " " * (DOCUMENT_BYTES_MAX + 1))
