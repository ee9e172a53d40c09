import json
from pathlib import Path

import pytest

from llmgw.config.catalog_file import parse_catalog, read_catalog
from llmgw.config.written import BYTES_MAX, InvalidInputError
from llmgw.core.fleet.catalog import EngineKind, OnSilence
from llmgw.engines.check import check_plans

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy/examples").glob("*.yaml"))
HASH = "5e884898da28047151d0e56f8dc6292773603d0d6aabbd62a11ef721d1542d8a"
GOOD = f"""
models:
  - name: tiny
    aliases: [small]
    profiles:
      - name: tiny-cpu
        engine: llamacpp
        source: ./tiny.gguf
        replicas: 2
        on_silence: replace
        environment: {{A: "1"}}
        restart: {{delay_s: 0.5}}
nodes: [gpu-1]
keys:
  - {{id: k1, hash: {HASH}, account: team, models: [small]}}
  - {{id: k2, hash: {HASH}, account: team}}
"""


def written(folder: Path, text: str, name: str = "catalog.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def problems(folder: Path, text: str, name: str = "catalog.yaml") -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        read_catalog(written(folder, text, name))
    assert all(p.remedy for p in caught.value.problems)
    assert name in str(caught.value)
    return [str(p) for p in caught.value.problems]


def test_a_file_gives_models_nodes_and_keys(tmp_path: Path) -> None:
    content = read_catalog(written(tmp_path, GOOD))
    (model,) = content.catalog.models
    (profile,) = model.profiles
    assert model.served_names == ("tiny", "small")
    assert profile.engine is EngineKind.LLAMACPP
    assert profile.source == str(tmp_path / "tiny.gguf")
    assert (profile.replicas, profile.on_silence) == (2, OnSilence.REPLACE)
    assert (profile.restart.delay_s, profile.restart.delay_s_max) == (0.5, 300.0)
    assert dict(profile.environment) == {"A": "1"}
    assert content.nodes == ("gpu-1",)
    assert [(k.id, k.account, k.models) for k in content.keys] == [
        ("k1", "team", ("small",)),
        ("k2", "team", None),
    ]


def test_json_says_the_same_as_yaml(tmp_path: Path) -> None:
    profile = {"name": "p", "engine": "llamacpp", "source": "/m.gguf", "arguments": ["--verbose"]}
    text = json.dumps({"models": [{"name": "m", "profiles": [profile]}]})
    as_json = read_catalog(written(tmp_path, text, "c.json"))
    assert as_json == read_catalog(written(tmp_path, text, "c.yaml")) == parse_catalog(text)
    assert as_json.models[0].profiles[0].arguments == ("--verbose",)


@pytest.mark.parametrize(
    ("source", "becomes"),
    [
        ("./a/b.gguf", "FOLDER/a/b.gguf"),
        ("a/b.gguf", "FOLDER/a/b.gguf"),
        ("./weights", "FOLDER/weights"),
        ("/srv/m.gguf", "/srv/m.gguf"),
        ("owner/name", "owner/name"),
    ],
)
def test_a_relative_source_is_meant_from_the_files_folder(
    tmp_path: Path, source: str, becomes: str
) -> None:
    content = read_catalog(written(tmp_path, GOOD.replace("./tiny.gguf", source)))
    assert content.models[0].profiles[0].source == becomes.replace("FOLDER", str(tmp_path))


def test_a_relative_source_that_came_over_the_network_is_refused() -> None:
    profile = {"name": "p", "engine": "llamacpp", "source": "./m.gguf"}
    with pytest.raises(InvalidInputError, match="neither an absolute path"):
        parse_catalog(json.dumps({"models": [{"name": "m", "profiles": [profile]}]}))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("replicas: 2", "replica: 2", "profiles[0].replica: there is no such field (line 9); did"),
        ("replicas: 2", "replicas: two", "profiles[0].replicas: "),
        ("replicas: 2", "replicas: -2", "profiles[0].replicas: is -2 (line 9); write"),
        ("replicas: 2", "unknown: {}", "profiles[0].unknown: there is no such field"),
        (
            "llamacpp",
            "llama.cpp",
            "profiles[0].engine: is not known here (line 7); did you mean 'llamacpp'",
        ),
        ("name: tiny\n", "name: 1.5\n", "models[0].name: is no text (line 3)"),
        ('A: "1"', "A: 1", "in quotes"),
        ("{delay_s: 0.5}", "{delay: 0.5}", "restart.delay: there is no such field (line 12)"),
        ("        source: ./tiny.gguf\n", "", "profiles[0].source: is missing"),
        ("nodes: [gpu-1]", "nodes: [gpu-1, gpu-1]", "nodes[1]: 'gpu-1' is listed twice"),
        ("nodes: [gpu-1]", "node: [gpu-1]", "did you mean 'nodes'?"),
        ("id: k2", "id: k1", "keys[1].id: 'k1' is used already"),
        ("[small]}", "[large]}", "keys[0].models: there is no model 'large'"),
        ("account: team,", "account: '',", "keys[0].account: is empty"),
        ("aliases: [small]", "aliases: [tiny]", "models[0].aliases[0]: 'tiny' is models[0].name"),
        ("aliases: [small]", "aliases: small", "models[0].aliases: "),
    ],
)
def test_each_fault_is_named_with_its_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in GOOD
    assert told in "\n".join(problems(tmp_path, GOOD.replace(old, new, 1)))


def test_a_key_in_place_of_its_hash_is_refused_and_not_repeated(tmp_path: Path) -> None:
    told = problems(tmp_path, GOOD.replace(HASH, "llmgw-secret-key", 1))
    assert len(told) == 1
    assert "keys[0].hash" in told[0]
    assert "secret-key" not in told[0]


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("models: [", "c.yaml", "is no YAML"),
        ("a: &a [*a]\nmodels: []", "c.yaml", "unfolds"),
        ("models: \x00", "c.yaml", "is no YAML"),
        ("{]", "c.json", "is no JSON"),
        ('{"models": [], "models": []}', "c.json", "'models' is given twice"),
        ("models: []\nmodels: []", "c.yaml", "'models' on line 2 is given twice"),
        ("[]", "c.yaml", "file: is no mapping"),
        ("", "c.yaml", "models: is missing"),
        ("# nothing but a comment", "c.yaml", "write `models: []`"),
        ("{}", "c.json", "models: is missing"),
        ("null", "c.json", "models: is missing"),
        ("nodes: [a]", "c.yaml", "models: is missing"),
        ("#" * (BYTES_MAX + 1), "c.yaml", "more than"),
        ("models: !!python/name:os.system", "c.yaml", "is no YAML"),
        ("[" * 2000, "c.yaml", "c"),
        ("[" * 100_000, "c.json", "is no JSON"),
    ],
)
def test_what_is_no_catalog_at_all_is_a_sentence(
    tmp_path: Path, text: str, name: str, told: str
) -> None:
    assert told in problems(tmp_path, text, name)[0]


def test_nothing_at_all_is_wanted_only_where_that_is_said(tmp_path: Path) -> None:
    assert read_catalog(written(tmp_path, "models: []")).models == ()


def test_a_misspelt_models_is_told_as_what_it_is(tmp_path: Path) -> None:
    missing, misspelt = problems(tmp_path, "modles: []")
    assert "models: is missing" in missing
    assert "modles: there is no such field (line 1); did you mean 'models'?" in misspelt


def test_what_is_wrong_is_said_in_words_of_people_and_values_are_not_repeated(
    tmp_path: Path,
) -> None:
    text = """
models:
  - name: m
    aliases: sk-one
    profiles:
      - {name: a, engine: llamacp, source: 5, replicas: sk-two, nodes: 1.5, memory_share: sk-three,
         token_probe: 7, restart: 3, arguments: {a: 1}, environment: [1], on_silence: kep}
      - 7
"""
    told = "\n".join(problems(tmp_path, text))
    for words in (
        "is no list",
        "is no mapping",
        "is no whole number",
        "is no number",
        "is no text",
    ):
        assert words in told
    assert "engine: is not known here (line 6); did you mean 'llamacpp'?" in told
    assert "neither true nor false" in told
    for foreign in ("input should", "tuple", "dictionary", "instance", "Profile", "sk-", "integer"):
        assert foreign not in told, told


def test_a_small_file_that_unfolds_into_a_huge_one_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (told,) = problems(tmp_path, "\n".join([*lines, "models: *a11"]))
    assert "unfolds to more than" in told


def test_aliases_and_merge_keys_of_yaml_work(tmp_path: Path) -> None:
    text = """
models:
  - name: a
    profiles:
      - &p {name: p, engine: llamacpp, source: /m.gguf, replicas: 3}
  - name: b
    profiles:
      - {<<: *p, name: q}
"""
    models = read_catalog(written(tmp_path, text)).models
    assert [(m.profiles[0].name, m.profiles[0].replicas) for m in models] == [("p", 3), ("q", 3)]


def test_bytes_that_are_no_text_are_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"models: \xff\xfe")
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        read_catalog(file)


@pytest.mark.parametrize("file", EXAMPLES)
def test_the_examples_are_right(file: Path) -> None:
    content = read_catalog(file)
    assert content.models
    assert check_plans(content.catalog) == ()
