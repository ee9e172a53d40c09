"""Reading a run's directory: whatever lies in it, what can be known is known and nothing raises."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.agent.files import RealDisk
from llmgw.agent.runs import Ready, RunsFolder
from llmgw.core.document import dump
from llmgw.core.fleet.assignment import Command, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.ids import ReplicaId
from llmgw.runner.record import Command as Launched
from llmgw.runner.record import Launch

SPEC = ShardSpec(
    replica=ReplicaId("k3v9qd2m7a"),
    incarnation=3,
    node_rank=0,
    node_count=1,
    model="m",
    profile="p",
    engine=EngineKind.LLAMACPP,
    commands=(Command("llama-server", ("llama-server",)),),
    address="127.0.0.1",
    port=18100,
    key_variable="LLAMA_API_KEY",
)
NAME = str(SPEC.key)
LAUNCH = Launch((Launched("llama-server", ("/x",), {"LLAMA_API_KEY": "secret"}),))
FILES = ("spec.json", "launch.json", "record.json", "ready.json")
SCRAPS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"{", b"[]", b"null", b'{"version": 1}', b"\xff\xfe", b"[" * 5000]),
)


@pytest.fixture
def runs(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path, RealDisk())


def test_what_was_made_is_found_with_its_key_and_no_other_may_read_it(runs: RunsFolder) -> None:
    runs.create(SPEC, LAUNCH)
    runs.write_ready(NAME, Ready(12.5))
    found = runs.read(NAME)
    assert (found.spec, found.key, found.ready) == (SPEC, "secret", Ready(12.5))
    assert found.untouched
    assert found.prepared
    assert found.faults == ()
    for path in runs.folder(NAME).iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert runs.names() == (NAME,)
    runs.remove(NAME)
    assert runs.names() == ()


def test_a_spec_under_another_shard_s_name_is_no_spec(runs: RunsFolder) -> None:
    runs.create(SPEC, LAUNCH)
    runs.folder(NAME).rename(runs.folder("k3v9qd2m7a.4.0"))
    found = runs.read("k3v9qd2m7a.4.0")
    assert found.spec is None
    assert "not of k3v9qd2m7a.4.0" in found.faults[0]


@given(st.dictionaries(st.sampled_from(FILES), SCRAPS), st.none() | SCRAPS)
def test_scraps_are_faults_and_never_an_exception(
    files: dict[str, bytes], identity: bytes | None
) -> None:
    with tempfile.TemporaryDirectory() as state:
        runs = RunsFolder(Path(state), RealDisk())
        folder = runs.folder(NAME)
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        if identity is not None:
            folder.with_name(f"{NAME}.identity").write_bytes(identity)
        found = runs.read(NAME)
        assert found.spec is None
        assert found.seen_broken == ("record.json" in files)
        assert found.identity_broken == (identity is not None)
        assert len(found.faults) >= ("spec.json" in files) + ("record.json" in files)
        if found.is_remnant:
            assert not {"launch.json", "record.json"} & set(files)
            assert identity is None


def test_members_of_a_later_version_survive(runs: RunsFolder) -> None:
    runs.create(SPEC, LAUNCH)
    path = runs.folder(NAME) / "spec.json"
    path.write_text(path.read_text()[:-1] + ', "from_later": [1]}')
    spec = runs.read(NAME).spec
    assert spec is not None
    assert '"from_later":[1]' in dump(spec)
