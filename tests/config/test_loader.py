from pathlib import Path
from typing import Any

import pytest

from llmgw.config.loader import (
    APPS,
    Surroundings,
    admin_key_files,
    ctl_file,
    default_state_dir,
    load,
    settings_of,
    surroundings,
)
from llmgw.config.settings import (
    AgentSettings,
    CtlSettings,
    GatewaySettings,
    JournalFull,
    ServeSettings,
    UpSettings,
)
from llmgw.config.written import InvalidInputError
from llmgw.core.fleet.catalog import EngineKind

USER = {"HOME": "/users/ada"}


def around(root: bool = False, **variables: str) -> Surroundings:
    return Surroundings({**USER, **variables}, root=root, host="gpu-1")


def problems(kind: Any, **given: Any) -> list[str]:
    given.setdefault("around", around())
    with pytest.raises(InvalidInputError) as caught:
        load(kind, **given)
    assert all(p.remedy for p in caught.value.problems)
    return [str(p) for p in caught.value.problems]


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


def test_every_app_starts_without_any_setting() -> None:
    for kind in APPS:
        load(kind, around=around())


def test_defaults_keep_everything_on_loopback_and_the_stores_file_in_the_state_directory() -> None:
    serve = load(ServeSettings, around=around(root=True))
    assert serve.state_dir == Path("/var/lib/llmgw/serve")
    assert serve.store_url == "sqlite:////var/lib/llmgw/serve/llmgw.db"
    assert serve.admin_key_file == Path("/var/lib/llmgw/serve/admin.key")
    assert (serve.admin_host, serve.admin_port) == ("127.0.0.1", 8630)
    assert (serve.agents_host, serve.agents_port) == ("127.0.0.1", 8631)
    assert (serve.gateway, serve.gateway_host, serve.gateway_port) == (True, "127.0.0.1", 8600)
    agent = load(AgentSettings, around=around(root=True))
    assert (agent.name, agent.control) == ("gpu-1", ("127.0.0.1:8631",))


@pytest.mark.parametrize(
    ("surroundings", "state"),
    [
        (around(root=True, XDG_STATE_HOME="/xdg"), "/var/lib/llmgw/agent"),
        (around(XDG_STATE_HOME="/xdg"), "/xdg/llmgw/agent"),
        (around(XDG_STATE_HOME="xdg"), "/users/ada/.local/state/llmgw/agent"),
        (around(), "/users/ada/.local/state/llmgw/agent"),
    ],
)
def test_state_is_kept_where_the_system_or_the_user_keeps_it(
    surroundings: Surroundings, state: str
) -> None:
    assert default_state_dir("agent", surroundings) == Path(state)


def test_the_admin_key_is_looked_for_where_serve_and_up_keep_it() -> None:
    files = admin_key_files(around(XDG_STATE_HOME="/xdg"))
    assert [str(f) for f in files] == [
        "/xdg/llmgw/serve/admin.key",
        "/xdg/llmgw/up/serve/admin.key",
    ]
    up = load(UpSettings, around=around(XDG_STATE_HOME="/xdg"))
    assert files[1].parent == up.serve_dir


def test_ctl_follows_what_a_running_up_has_written_unless_something_else_is_said(
    tmp_path: Path,
) -> None:
    here = around(LLMGW_UP_STATE_DIR=str(tmp_path))
    assert admin_key_files(here)[1] == tmp_path / "serve" / "admin.key"
    assert ctl_file(here, {}) is None
    file = written_by_up = tmp_path / "ctl.yaml"
    file.write_text("url: http://127.0.0.1:4711\nkey_file: serve/admin.key\n")
    assert ctl_file(here, {"url": None}) == written_by_up
    found = load(CtlSettings, file=file, around=here)
    assert (found.url, found.key_file) == ("http://127.0.0.1:4711", tmp_path / "serve/admin.key")
    # Its key is not for another control plane.
    assert ctl_file(here, {"url": "http://elsewhere:1"}) is None
    elsewhere = around(LLMGW_UP_STATE_DIR=str(tmp_path), LLMGW_CTL_URL="http://elsewhere:1")
    assert ctl_file(elsewhere, {}) is None


def test_the_program_is_named_as_it_works_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "venv" / "bin" / "llmgw"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert surroundings().program == "venv/bin/llmgw"
    monkeypatch.chdir("/")
    assert surroundings().program in {str(program), str(program).removeprefix("/")}
    monkeypatch.chdir(program.parent)
    assert surroundings().program == "./llmgw"
    monkeypatch.setenv("PATH", str(program.parent))
    assert surroundings().program == "llmgw"


def test_a_later_source_wins_and_the_others_still_count(tmp_path: Path) -> None:
    file = written(
        tmp_path, "admin_port: 1001\nagents_port: 1001\ngateway_port: 1001\nheartbeat_s: 1.5\n"
    )
    variables = around(LLMGW_SERVE_AGENTS_PORT="1002", LLMGW_SERVE_GATEWAY_PORT="1002")
    overrides = {"gateway_port": 1003, "settle_s": None}
    serve = load(ServeSettings, file=file, around=variables, overrides=overrides)
    ports = (serve.admin_port, serve.agents_port, serve.gateway_port)
    assert ports == (1001, 1002, 1003)
    assert (serve.heartbeat_s, serve.settle_s) == (1.5, 30.0)


def test_a_group_of_settings_may_come_from_several_sources(tmp_path: Path) -> None:
    file = written(tmp_path, "limits: {idle_s: 7, journal_full: serve}\n")
    variables = around(LLMGW_GATEWAY_LIMITS_CONNECTIONS_MAX="9")
    limits = load(
        GatewaySettings, file=file, around=variables, overrides={"limits.idle_s": "8"}
    ).limits
    assert (limits.idle_s, limits.connections_max) == (8.0, 9)
    assert limits.journal_full is JournalFull.SERVE


def test_lists_and_mappings_are_written_with_commas_in_variables_and_on_the_command_line() -> None:
    variables = around(
        LLMGW_AGENT_CONTROL="a:1, [::1]:2", LLMGW_AGENT_ENGINES="llamacpp=/opt/llama-server"
    )
    agent = load(AgentSettings, around=variables, overrides={"labels": "rack=a1,disk=fast"})
    assert agent.control == ("a:1", "[::1]:2")
    assert agent.engines == {EngineKind.LLAMACPP: "/opt/llama-server"}
    assert agent.labels == {"rack": "a1", "disk": "fast"}


def test_relative_paths_belong_to_the_folder_of_the_file_or_to_where_the_command_was_given(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "state_dir: state\ncatalog: ~/c.yaml\nstore: none\n")
    assert load(ServeSettings, file=file, around=around()).state_dir == tmp_path / "state"
    overridden = load(ServeSettings, file=file, around=around(), overrides={"state_dir": "here"})
    assert overridden.state_dir == Path.cwd() / "here"
    assert overridden.catalog == Path.home() / "c.yaml"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "port_first: 20000\nport_last: 20100\n")
    agent = load(AgentSettings, around=around(LLMGW_AGENT_CONFIG=str(file)))
    assert (agent.port_first, agent.port_last) == (20000, 20100)


def test_each_problem_names_field_source_and_remedy_and_all_are_found_at_once(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "report_s: fast\ncontrol: [nowhere]\n")
    variables = around(LLMGW_AGENT_METRICS_PORT="70000")
    found = problems(AgentSettings, file=file, around=variables, overrides={"log_bytes_max": "x"})
    assert len(found) == 4
    told = "\n".join(found)
    assert f"(from {file}, line 1)" in told
    assert f"(from {file}, line 2)" in told
    assert "metrics_port: " in told
    assert "(from environment LLMGW_AGENT_METRICS_PORT)" in told
    assert "(from command line)" in told


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    file = written(tmp_path, "admin_prot: 1\nlimits: {idle: 3}\n")
    variables = around(LLMGW_SERVE_AGENT_PORT="1", LLMGW_TEST_X="1")
    found = problems(ServeSettings, file=file, around=variables, overrides={"gatway": False})
    assert len(found) == 4
    told = "\n".join(found)
    assert "admin_prot: there is no such field" in told
    assert "did you mean 'admin_port'?" in told
    assert "did you mean 'idle_s'?" in told
    assert "did you mean 'LLMGW_SERVE_AGENTS_PORT'?" in told
    assert "did you mean 'gateway'?" in told


@pytest.mark.parametrize(
    ("kind", "overrides", "field"),
    [
        (ServeSettings, {"store": "none"}, "catalog"),
        (ServeSettings, {"catalog": "/c.yaml"}, "catalog"),
        (ServeSettings, {"heartbeat_s": 5, "silent_after_s": 6}, "silent_after_s"),
        (AgentSettings, {"port_first": 19000}, "port_last"),
        (AgentSettings, {"labels": {"a b": "c"}}, "labels.a b"),
        (UpSettings, {"admin_port": 8600}, "gateway_port"),
        (CtlSettings, {"url": "http://user:pw@host"}, "url"),
        (AgentSettings, {"control": ""}, "control"),
        (AgentSettings, {"probe_ready_s": "nan"}, "probe_ready_s"),
        (AgentSettings, {"engines": "ollama=/x"}, "engines.ollama"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    kind: type, overrides: dict[str, Any], field: str
) -> None:
    (found,) = problems(kind, overrides=overrides)
    assert found.startswith(f"{field}: ")


def test_a_value_that_may_be_a_secret_is_in_no_message_and_no_repr(tmp_path: Path) -> None:
    secret = "hunter2"
    for url in (f"mysql://u:{secret}@h/d", f"postgres:/{secret}"):
        told = "\n".join(problems(ServeSettings, overrides={"store": url}))
        assert secret not in told
        assert "store: " in told
    broken = written(tmp_path, f"store: 'postgresql://u:{secret}@h/d\nadmin_port: 1\n")
    assert secret not in "\n".join(problems(ServeSettings, file=broken))
    kept = load(ServeSettings, overrides={"store": f"postgresql://u:{secret}@h/d"}, around=around())
    assert kept.store_url is not None
    assert secret in kept.store_url
    assert secret not in repr(kept)


def test_a_file_that_cannot_be_read_or_is_no_mapping_is_a_sentence(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in problems(AgentSettings, file=tmp_path / "no")[0]
    assert "no mapping" in problems(AgentSettings, file=written(tmp_path, "- a\n"))[0]
    twice = written(tmp_path, "name: a\nname: b\n")
    assert "'name' on line 2 is given twice" in problems(AgentSettings, file=twice)[0]


def test_every_variable_is_its_own() -> None:
    variables = [s.variable(app) for kind, app in APPS.items() for s in settings_of(kind)]
    assert len(variables) == len(set(variables))
    assert "LLMGW_SERVE_LIMITS_IDLE_S" in variables
