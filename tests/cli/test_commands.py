"""What every command has in common: help, mistakes, exit codes, and starts that are quick."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from llmgw.cli.__main__ import run
from llmgw.cli.app import build_app
from llmgw.cli.exits import DeadlinePassedError, Exit, exit_of, sentences
from llmgw.config.written import InvalidInputError
from llmgw.core.document import load
from llmgw.core.errors import BugError, ConflictError, NotFoundError, StorageError
from llmgw.core.fleet.catalog import Problem
from llmgw.core.fleet.hardware import Inventory
from llmgw.runtime.files import LockHeldError
from llmgw.testing.waiting import until
from tests.arch.tree import ROOT
from tests.cli.conftest import Done
from tests.e2e.cluster import ENVIRONMENT, free_ports

Llmgw = Callable[..., Done]


class SecondAgentError(ConflictError):
    """As the agent raises it."""

    code = "another_agent"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("x"), Exit.FAILED),
        (StorageError("x"), Exit.FAILED),
        (OSError(28, "No space left on device"), Exit.FAILED),
        (InvalidInputError("x", (Problem("a", "b", "c"),)), Exit.USAGE),
        (DeadlinePassedError("x"), Exit.LATE),
        (SecondAgentError("x"), Exit.RUNNING),
        (LockHeldError(11, "x"), Exit.RUNNING),
        (BugError("x"), Exit.FAILED),
        (ExceptionGroup("", [ExceptionGroup("", [SecondAgentError("x")])]), Exit.RUNNING),
        (KeyError("x"), None),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error: Exception, code: Exit | None) -> None:
    assert exit_of(error) is code


def test_a_group_of_failures_says_each_sentence_once() -> None:
    group = ExceptionGroup(
        "services failed",
        [StorageError("the disk is full"), ExceptionGroup("", [StorageError("the disk is full")])],
    )
    assert sentences(group) == "the disk is full"


def test_what_looks_like_a_secret_is_not_printed() -> None:
    assert "hunter2" not in sentences(StorageError("cannot open postgresql://me:hunter2@db/x"))


def test_no_command_shows_the_commands(llmgw: Llmgw) -> None:
    shown = llmgw("--help")
    assert shown.code == Exit.DONE
    for command in ("up", "down", "serve", "agent", "gateway", "ctl"):
        assert f"\n  {command} " in shown.out


@pytest.mark.parametrize("words", [("nonsense",), ("up", "--nonsense"), ("agent", "nonsense")])
def test_what_does_not_exist_is_a_usage_error(llmgw: Llmgw, words: tuple[str, ...]) -> None:
    done = llmgw(*words)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert words[-1] in done.err


@pytest.mark.parametrize("app", ["serve", "agent", "gateway", "up"])
@pytest.mark.parametrize("word", ["nonsense=1", "state_dir"])
def test_every_daemon_refuses_settings_that_do_not_exist(llmgw: Llmgw, app: str, word: str) -> None:
    done = llmgw(app, "--set", word)
    assert done.code == Exit.USAGE
    assert word.partition("=")[0] in done.err


def test_a_setting_file_that_is_wrong_is_told_with_its_line(llmgw: Llmgw, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("name: gpu-1\nport_first: many\n")
    done = llmgw("agent", "--config", str(file))
    assert done.code == Exit.USAGE
    assert f"{file}, line 2" in done.err


def test_the_inventory_needs_no_control_plane_and_makes_nothing(
    llmgw: Llmgw, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    done = llmgw("agent", "inventory", "--json", "--state-dir", str(state))
    found = load(Inventory, done.out)
    assert done.code == Exit.DONE
    assert found.cpus > 0
    assert found.node == ""
    assert not state.exists()
    assert f"node      {found.name}" in llmgw("agent", "inventory").out


def test_options_before_the_subcommand_are_not_lost_in_silence(llmgw: Llmgw) -> None:
    done = llmgw("agent", "--name", "gpu-1", "inventory")
    assert done.code == Exit.USAGE
    assert "after 'inventory'" in done.err


def loaded_by(*words: str) -> set[str]:
    """Return the modules that a command loads."""
    code = (
        "import sys\n"
        "from llmgw.cli.__main__ import run\n"
        f"run({list(words)!r})\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_a_command_loads_what_it_needs_and_no_more() -> None:
    heavy = {"grpc", "sqlalchemy", "aiohttp", "httpx", "pydantic", "rich", "yaml", "asyncio"}
    assert not heavy & loaded_by("--help")
    # Typer reads some kinds of options through pydantic.
    assert not (heavy - {"pydantic"}) & loaded_by("ctl", "--help")
    nowhere = ("ctl", "--url", "http://127.0.0.1:9", "--key-file", "/dev/null")
    assert not {"grpc", "sqlalchemy", "aiohttp"} & loaded_by(*nowhere, "status")
    assert not {"sqlalchemy", "llmgw.admin", "llmgw.control"} & loaded_by("agent", "inventory")


def test_a_fault_of_our_own_is_a_sentence_and_a_trace(
    llmgw: Llmgw, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> object:
        raise ZeroDivisionError("what nobody foresaw")

    monkeypatch.setattr("llmgw.cli.__main__.build_app", broken)
    done = llmgw("up")
    assert done.code == Exit.FAILED
    assert "llmgw: what nobody foresaw\n" in done.err


def test_an_interrupt_has_the_shells_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmgw.cli.__main__.build_app", interrupted)
    assert run(["up"]) == Exit.INTERRUPTED


@pytest.mark.e2e
def test_a_second_agent_on_a_state_directory_says_so_and_how(tmp_path: Path) -> None:
    control, first_port, second_port = free_ports(3)
    lock = tmp_path / "state" / "agent.lock"

    def agent(port: int) -> subprocess.Popen[str]:
        words = ["--state-dir", str(tmp_path / "state"), "--control", f"127.0.0.1:{control}"]
        argv = [sys.executable, "-m", "llmgw.cli", "agent", *words, "--set", f"metrics_port={port}"]
        return subprocess.Popen(argv, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)

    with agent(first_port) as first:
        until(lock.exists, within_s=30)
        with agent(second_port) as second:
            _, said = second.communicate(timeout=30)
            assert second.returncode == Exit.RUNNING
            assert "another llmgw agent works on" in said
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=30)
        assert first.returncode == Exit.DONE, said


def commands(group: typer.Typer) -> Iterator[str]:
    """Yield every command that is shown, with the words that lead to it."""
    for info in group.registered_commands:
        if not info.hidden:
            assert info.callback is not None
            yield info.name or info.callback.__name__
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield str(below.name)
        yield from (f"{below.name} {words}" for words in commands(below.typer_instance))


def test_every_command_and_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert not [words for words in commands(build_app()) if f"`llmgw {words}" not in page]
    for code in Exit:
        assert f"| {code.value} | {code.name.lower()} |" in page


@pytest.mark.parametrize(
    "words", [("apply",), ("get",), ("logs",), ("keys", "create"), ("usage",), ("stop",)]
)
def test_help_speaks_no_python(llmgw: Llmgw, words: tuple[str, ...]) -> None:
    told = llmgw("ctl", *words, "--help").out
    for foreign in ("{", "list[", " <"):
        assert foreign not in told


def test_a_kind_that_does_not_exist_is_told_which_do(llmgw: Llmgw) -> None:
    done = llmgw("ctl", "get", "nonsense")
    assert done.code == Exit.USAGE
    assert "use one of catalog, models, profiles" in done.err
    assert "Value error" not in done.err


def test_where_nothing_runs_ctl_says_so_and_what_starts_it(
    llmgw: Llmgw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for app in ("UP", "SERVE"):
        monkeypatch.setenv(f"LLMGW_{app}_STATE_DIR", str(tmp_path / app))
    done = llmgw("ctl", "status")
    assert done.code == Exit.USAGE
    for told in ("nothing seems to run here", "llmgw up", "llmgw serve", "--key-file"):
        assert told in done.err
    assert str(tmp_path / "UP") in done.err
