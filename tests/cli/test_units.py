"""The systemd units fit the commands and exit codes that they rely on."""

import configparser
from pathlib import Path

import pytest

from llmgw.cli.__main__ import run
from llmgw.cli.exits import Exit
from tests.arch.tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def service_of(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    return parser["Service"]


def test_there_is_a_unit_for_each_daemon() -> None:
    names = [unit.stem for unit in UNITS]
    assert names == ["llmgw-agent", "llmgw-gateway", "llmgw-serve"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(
    unit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = service_of(unit)
    program, *words = service["ExecStart"].split()
    assert program.endswith("/llmgw")
    assert run([*words, "--help"]) == Exit.DONE
    assert service["Type"] == "notify"
    # What cannot get better by itself is not tried again.
    assert service["RestartPreventExitStatus"].split() == [str(Exit.USAGE), str(Exit.RUNNING)]


def test_only_the_agents_end_leaves_what_it_started() -> None:
    modes = {unit.stem: service_of(unit).get("KillMode") for unit in UNITS}
    assert modes == {"llmgw-agent": "process", "llmgw-gateway": None, "llmgw-serve": None}
