"""`llmgw ctl` against a control plane that is a script: what it prints, and how it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llmgw.admin.schema import (
    BASE,
    Edit,
    EventInfo,
    GatewayInfo,
    GpuInfo,
    KeyInfo,
    LogLines,
    MadeKey,
    NodeInfo,
    ReplicaInfo,
    ShortfallInfo,
    Stopped,
    UsageInfo,
)
from llmgw.cli.exits import Exit
from llmgw.config.catalog_file import read_catalog
from llmgw.core.document import dump
from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Problem, Profile
from llmgw.testing.waiting import until
from tests.cli.conftest import Done
from tests.cli.fake_admin import FakeAdmin, model, replica, status

Ctl = Callable[..., Done]

CATALOG = Catalog(
    (Model("m", (Profile("m-cpu", EngineKind.LLAMACPP, "/srv/m.gguf"),), ("alias",)),), 3
)
INFO = KeyInfo("kid", "me", "team", "sk-abcd...", 1_750_000_000.0)


def written(folder: Path, text: str) -> str:
    file = folder / "catalog.yaml"
    file.write_text(text)
    return str(file)


def good(folder: Path) -> str:
    profile = "{name: m-cpu, engine: llamacpp, source: /srv/m.gguf}"
    return written(folder, f"models: [{{name: m, profiles: [{profile}]}}]")


# -- reaching the control plane


def test_a_control_plane_that_is_away_has_an_exit_code_of_its_own(
    admin: FakeAdmin, llmgw: Ctl
) -> None:
    nowhere = "http://127.0.0.1:9"
    done = llmgw("ctl", "--url", nowhere, "--key-file", str(admin.key_file), "status")
    assert (done.code, done.out) == (Exit.UNREACHABLE, "")
    assert done.err.count("\n") == 1
    assert nowhere in done.err
    assert "llmgw serve" in done.err


def test_a_wrong_admin_key_is_named_by_its_file_and_never_shown(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.key_file.write_text("sk-admin-wrong-and-secret\n")
    done = ctl("status")
    assert done.code == Exit.FAILED
    assert str(admin.key_file) in done.err
    assert "wrong-and-secret" not in done.err


def test_a_missing_key_file_is_a_mistake_of_the_caller(llmgw: Ctl, tmp_path: Path) -> None:
    done = llmgw("ctl", "--key-file", str(tmp_path / "nothing"), "status")
    assert done.code == Exit.USAGE
    assert str(tmp_path / "nothing") in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("apply",),
        ("get", "nonsense"),
        ("keys", "create"),
        ("logs", "--lines", "x", "r"),
        ("usage", "--by", "nonsense"),
        ("usage", "--since", "nonsense"),
        ("keys", "create", "me", "--expires-in", "nonsense"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(
    admin: FakeAdmin, ctl: Ctl, words: tuple[str, ...]
) -> None:
    done = ctl(*words)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert words[-1] in done.err or "Missing argument" in done.err
    assert admin.asked == []


def test_an_answer_that_is_no_admin_api_is_said_to_be_none(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/status", b"<html>")
    done = ctl("status")
    assert done.code == Exit.UNREACHABLE
    assert admin.url in done.err


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "there is nothing at /admin/v1/status", "code": "unknown_url"}},
        b"404: Not Found",
    ],
)
def test_a_port_that_is_not_the_admin_apis_is_named_with_the_one_that_is(
    admin: FakeAdmin, ctl: Ctl, body: object
) -> None:
    admin.on("GET", "/status", body, status=404)
    done = ctl("status")
    assert done.code == Exit.UNREACHABLE
    assert admin.url in done.err
    assert "8630" in done.err


# -- looking


def test_status_names_what_is_wrong_beside_what_is_well(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on(
        "GET",
        "/status",
        status(
            replicas={"ready": 2},
            shortfalls=(ShortfallInfo("m-cpu", "m", 1, "no GPU is free"),),
            gateways=(GatewayInfo("g1", False, 90.0, 2, 7, 0),),
            troubles=("the disk is full: free some space",),
        ),
    )
    done = ctl("status")
    assert done.code == Exit.DONE
    for said in ("leads (term 2)", "2 ready", "no GPU is free", "not heard for 90s", "free some"):
        assert said in done.out


@pytest.mark.parametrize(
    ("command", "path", "value"),
    [
        (("status",), "/status", status()),
        (("replicas",), "/replicas", (replica(),)),
        (("nodes",), "/nodes", (NodeInfo("n1", "gpu-1", "heard", 0.0),)),
        (("keys",), "/keys", (INFO,)),
        (("keys", "list"), "/keys", (INFO,)),
        (("get", "models"), "/models", (model(),)),
        (("usage",), "/usage", (UsageInfo(1, 2, 3),)),
    ],
)
def test_json_is_what_the_control_plane_said(
    admin: FakeAdmin, ctl: Ctl, command: tuple[str, ...], path: str, value: object
) -> None:
    admin.on("GET", path, value)
    done = ctl(*command, "--json")
    assert (done.code, done.err) == (Exit.DONE, "")
    ((_, body),) = admin.answers["GET", BASE + path]
    assert json.loads(done.out) == json.loads(body)


def test_tables_hold_the_words_that_matter(admin: FakeAdmin, ctl: Ctl) -> None:
    gpu = GpuInfo(0, "l40s-45g", "GPU-1")
    held = GpuInfo(1, "l40s-45g", "GPU-2", replicas=("k3v9qd2m7a",))
    lost = GpuInfo(2, "l40s-45g", "GPU-3", unusable="the driver has lost it")
    admin.on("GET", "/nodes", (NodeInfo("n1", "gpu-1", "silent", 90.0, gpus=(gpu, held, lost)),))
    admin.on("GET", "/replicas", (replica("failed\x1b[2J"),))
    _, row = ctl("nodes").out.splitlines()
    assert row.split()[:9] == ["gpu-1", "n1", "silent", "90s", "-", "3", "l40s-45g", "1", "0"]
    done = ctl("replicas")
    assert "gpu-1  10.0.0.1:18100  says so" in done.out
    assert "\x1b" not in done.out


def test_an_empty_list_is_a_sentence_beside_stdout(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/replicas", ())
    done = ctl("replicas")
    assert (done.code, done.out) == (Exit.DONE, "")
    assert "llmgw ctl apply" in done.err


def test_usage_is_asked_for_as_it_was_typed(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/usage", (UsageInfo(4, 20, 30, 5, 1, model="m", day=20_000),))
    done = ctl("usage", "--by", "model,day", "--since", "2026-01-31T00:00:00+00:00")
    assert done.out.splitlines()[1].split() == ["m", "2024-10-04", "4", "20", "30", "5", "1"]
    (asked,) = admin.asked
    assert asked.query["by"] == ["model,day"]
    assert float(asked.query["since"][0]) == 1_769_817_600.0


def test_events_and_logs_are_lines_of_json_too(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/events", (EventInfo(1, 0.0, "r", "is new"), EventInfo(2, 1.0, "r", "left")))
    lines = [json.loads(line) for line in ctl("events", "--json").out.splitlines()]
    assert [line["what"] for line in lines] == ["is new", "left"]
    admin.on("GET", "/logs/k3v9qd2m7a", b'{"shard":"k3v9qd2m7a.1.0","lines":["a","b"]}\n')
    assert ctl("logs", "k3v9qd2m7a").out == "a\nb\n"
    assert json.loads(ctl("logs", "k3v9qd2m7a", "--json").out)["lines"] == ["a", "b"]


def test_a_log_that_ends_for_a_reason_is_a_failure_with_it(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/logs/r", LogLines("r.1.0", ("a",), "gpu-1 is not connected"))
    done = ctl("logs", "r")
    assert (done.code, done.out) == (Exit.FAILED, "a\n")
    assert "gpu-1 is not connected" in done.err


# -- the catalog


def test_the_catalog_comes_out_so_that_it_can_be_applied_again(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.on("GET", "/catalog", dump(CATALOG).encode())
    text = ctl("get").out
    file = tmp_path / "again.yaml"
    file.write_text(text)
    assert read_catalog(file).catalog.models == CATALOG.models
    assert yaml.safe_load(ctl("get", "catalog", "--json").out) == yaml.safe_load(text)


def test_a_broken_catalog_file_is_told_with_field_and_line(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    done = ctl("apply", written(tmp_path, "models:\n  - nmae: m\n"))
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "nmae" in done.err
    assert "line 2" in done.err
    assert admin.asked == []


def test_apply_says_what_changes_and_sends_the_whole_file(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ("model m is new",)))
    done = ctl("apply", good(tmp_path))
    assert done.code == Exit.DONE
    assert done.out == "model m is new\nsaved as revision 4\n"
    (body,) = admin.bodies("PUT", "/catalog")
    assert json.loads(body)["models"][0]["profiles"][0]["source"] == "/srv/m.gguf"


def test_a_dry_run_that_finds_problems_fails_with_them(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    problem = Problem("models[0].profiles[0].nodes", "is 2", "llama.cpp runs on one node")
    admin.on("PUT", "/catalog", Edit(False, 3, ("model m is new",), (problem,)))
    done = ctl("apply", good(tmp_path), "--dry-run", "--json")
    assert done.code == Exit.USAGE
    assert json.loads(done.out)["saved"] is False
    assert "llama.cpp runs on one node" in done.err
    assert admin.asked[0].query["dry_run"] == ["1"]


def test_what_was_refused_is_not_told_as_if_it_had_happened(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    problem = Problem("models[0].profiles[0].nodes", "is 2", "llama.cpp runs on one node")
    admin.on("PUT", "/catalog", Edit(False, 3, ("model m is new",), (problem,)))
    done = ctl("apply", good(tmp_path), "--dry-run")
    assert (done.code, done.out) == (Exit.USAGE, "")
    admin.on("PUT", "/catalog", Edit(False, 3, ("model m is new",)))
    assert "would change: model m is new\n" in ctl("apply", good(tmp_path), "--dry-run").out


def test_ctrl_c_while_it_waits_says_that_the_change_goes_on(
    admin: FakeAdmin, tmp_path: Path
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ("model m is new",)))
    admin.on("GET", "/status", status(4))
    admin.on("GET", "/models", (model(0),))
    admin.on("GET", "/replicas", (replica("loading"),))
    argv = [sys.executable, "-m", "llmgw.cli", "ctl", "--url", admin.url]
    argv += ["--key-file", str(admin.key_file), "apply", good(tmp_path), "--wait"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as waiting:
        asked = f"{BASE}/replicas"
        until(lambda: any(one.path == asked for one in admin.asked), within_s=20)
        waiting.send_signal(signal.SIGINT)
        _, told = waiting.communicate(timeout=20)
    assert waiting.returncode == Exit.INTERRUPTED
    assert "revision 4 is in force and goes on" in told
    assert "Traceback" not in told


def test_a_catalog_may_come_from_standard_input(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ("model m is new",)))
    with Path(good(tmp_path)).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert ctl("apply", "-").code == Exit.DONE
    (body,) = admin.bodies("PUT", "/catalog")
    assert json.loads(body)["models"][0]["name"] == "m"
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        done = ctl("apply", "-")
    assert done.code == Exit.USAGE
    assert "standard input cannot be used" in done.err


def test_what_fails_prints_no_document_and_one_sentence_with_json_too(
    admin: FakeAdmin, ctl: Ctl
) -> None:
    admin.refuse("GET", "/status", 503, "starting", "it has just started")
    done = ctl("status", "--json")
    assert (done.code, done.out, done.err) == (
        Exit.FAILED,
        "",
        "llmgw: it has just started\n",
    )


def test_a_change_in_between_is_refused_with_the_servers_sentence(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.refuse("PUT", "/catalog", 409, "conflict", "the catalog has changed meanwhile")
    done = ctl("apply", good(tmp_path))
    assert (done.code, done.err) == (Exit.FAILED, "llmgw: the catalog has changed meanwhile\n")


def test_apply_waits_until_it_is_so_and_shows_how_far_it_is(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ("model m is new",)))
    # The last turn knew revision 3: what was ready then says nothing of revision 4.
    admin.on("GET", "/status", status(3), status(4), status(4), status(4))
    admin.on("GET", "/models", (model(),), (model(0, 1, "no room"),), (model(0),), (model(1),))
    admin.on("GET", "/replicas", (replica(),), (), (replica("loading"),), (replica("ready"),))
    done = ctl("apply", good(tmp_path), "--wait")
    assert done.code == Exit.DONE
    assert done.err.splitlines() == [
        "m-cpu k3v9qd2m7a.1 on gpu-1: ready, says so",
        "m-cpu: missing, no room",
        "m-cpu k3v9qd2m7a.1: gone",
        "m-cpu k3v9qd2m7a.1 on gpu-1: loading, says so | its last words",
        "m-cpu k3v9qd2m7a.1 on gpu-1: ready, says so",
    ]


def test_progress_says_each_thing_once_and_no_start_that_another_follows_is_gone(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    line = "2026-12-01T14:09:29.123Z llama-server| no such file"

    def at(phase: str, start: int, why: str) -> ReplicaInfo:
        found = replica(phase)
        shards = tuple(replace(shard, last_log=line) for shard in found.shards)
        return replace(found, incarnation=start, why=why, shards=shards)

    admin.on("PUT", "/catalog", Edit(True, 4, ()))
    admin.on("GET", "/status", status(4))
    admin.on("GET", "/models", (model(0),), (model(0),), (model(0),), (model(1),))
    admin.on(
        "GET",
        "/replicas",
        (at("loading", 1, "it says: no such file"),),
        (at("failed", 1, "shard 0 on gpu-1 ended"),),
        (at("failed", 2, "failed 2 times in a row"),),
        (at("ready", 3, "answers"),),
    )
    done = ctl("apply", good(tmp_path), "--wait")
    assert done.err.splitlines() == [
        "m-cpu k3v9qd2m7a.1 on gpu-1: loading, it says: no such file",
        "m-cpu k3v9qd2m7a.1 on gpu-1: failed, shard 0 on gpu-1 ended",
        "m-cpu k3v9qd2m7a.2 on gpu-1: failed, failed 2 times in a row",
        "m-cpu k3v9qd2m7a.3 on gpu-1: ready, answers",
    ]


def test_what_was_asked_for_is_judged_by_the_turn_that_knew_it(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ()))
    admin.on("GET", "/status", status(3), status(4))
    admin.on("GET", "/models", (), (model(1),))
    admin.on("GET", "/replicas", (), (replica(),))
    assert ctl("apply", good(tmp_path), "--wait").code == Exit.DONE
    first = [asked.path.removeprefix(BASE) for asked in admin.asked[1:4]]
    assert first == ["/status", "/models", "/replicas"]


def test_a_deadline_that_passes_has_an_exit_code_and_says_what_is_missing(
    admin: FakeAdmin, ctl: Ctl, tmp_path: Path
) -> None:
    admin.on("PUT", "/catalog", Edit(True, 4, ()))
    admin.on("GET", "/status", status(4))
    admin.on("GET", "/models", (model(0),))
    admin.on("GET", "/replicas", (replica("loading"),))
    done = ctl("apply", good(tmp_path), "--wait", "--timeout", "0.3")
    assert done.code == Exit.LATE
    assert "m-cpu k3v9qd2m7a.1: loading, says so" in done.err


# -- keys, nodes, stopping


def test_a_new_key_is_all_that_stdout_holds_and_gateways_know_it_by_then(
    admin: FakeAdmin, ctl: Ctl
) -> None:
    late = status(snapshot=(2, 8), gateways=(GatewayInfo("g1", True, 0.0, 2, 7, 0),))
    there = status(snapshot=(2, 8), gateways=(GatewayInfo("g1", True, 0.0, 2, 8, 0),))
    admin.on("GET", "/status", status(), status(), late, there)
    admin.on("POST", "/keys", MadeKey(INFO, "sk-the-key-itself"))
    done = ctl("keys", "create", "me", "--account", "team", "--model", "m", "--expires-in", "2d")
    assert (done.code, done.out) == (Exit.DONE, "sk-the-key-itself\n")
    (body,) = admin.bodies("POST", "/keys")
    assert json.loads(body) == {
        "name": "me",
        "account": "team",
        "models": ["m"],
        "expires_in_s": 172_800.0,
    }
    assert sum(asked.path == f"{BASE}/status" for asked in admin.asked) == 4


def test_a_new_key_as_json_has_the_key_and_what_is_known_of_it(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/status", status(), status(snapshot=(2, 8)))
    admin.on("POST", "/keys", MadeKey(INFO, "sk-the-key-itself"))
    made = json.loads(ctl("keys", "create", "me", "--json").out)
    assert (made["key"], made["info"]["id"]) == ("sk-the-key-itself", "kid")


def test_what_is_odd_about_a_new_key_is_said_beside_it(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/status", status(), status(snapshot=(2, 8)))
    admin.on("POST", "/keys", MadeKey(INFO, "sk-the-key-itself", ("no model is called 'nope'",)))
    done = ctl("keys", "create", "me", "--model", "nope")
    assert (done.code, done.out) == (Exit.DONE, "sk-the-key-itself\n")
    assert "no model is called 'nope'" in done.err


def test_a_key_that_is_not_there_cannot_be_revoked(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/status", status())
    admin.on("GET", "/keys", (INFO,))
    admin.refuse("DELETE", "/keys/x", 404, "not_found", "there is no key x")
    done = ctl("keys", "revoke", "x")
    assert (done.code, done.err) == (Exit.FAILED, "llmgw: there is no key x\n")


def test_a_node_that_is_connected_is_not_removed(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.refuse("DELETE", "/nodes/gpu-1", 409, "conflict", "node gpu-1 is connected")
    done = ctl("nodes", "rm", "gpu-1")
    assert (done.code, done.err) == (Exit.FAILED, "llmgw: node gpu-1 is connected\n")
    admin.on("DELETE", "/nodes/gpu-1", {})
    assert json.loads(ctl("nodes", "rm", "gpu-1", "--json").out) == {"removed": "gpu-1"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("m", "/models/m/stop"),
        ("alias", "/models/m/stop"),
        ("m-cpu", "/profiles/m-cpu/stop"),
        ("k3v9qd2m7a", "/replicas/k3v9qd2m7a/stop"),
    ],
)
def test_a_name_is_a_model_a_profile_or_a_replica(
    admin: FakeAdmin, ctl: Ctl, name: str, path: str
) -> None:
    admin.on("GET", "/models", (model(),))
    admin.on("POST", path, Stopped(("k3v9qd2m7a",)))
    done = ctl("stop", name)
    assert done.code == Exit.DONE
    assert "k3v9qd2m7a" in done.out


def test_an_unknown_name_is_told_what_there_is(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/models", (model(),))
    admin.refuse("POST", "/replicas/x/stop", 404, "not_found", "there is no replica x")
    done = ctl("stop", "x")
    assert done.code == Exit.FAILED
    assert "models are: m" in done.err


def test_stop_waits_until_the_replica_is_gone(admin: FakeAdmin, ctl: Ctl) -> None:
    admin.on("GET", "/models", (model(),))
    admin.on("GET", "/status", status())
    admin.on("GET", "/replicas", (replica("draining"),), (replica("stopping"),), ())
    admin.on("POST", "/replicas/k3v9qd2m7a/stop", Stopped(("k3v9qd2m7a",)))
    done = ctl("stop", "k3v9qd2m7a", "--wait", "--json")
    assert done.code == Exit.DONE
    assert json.loads(done.out)["replicas"] == ["k3v9qd2m7a"]
    assert done.err.splitlines()[-1] == "m-cpu k3v9qd2m7a.1: gone"
