"""Each import contract is seen to catch a violation planted in a copy of the source."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.arch.tree import ROOT, SOURCE

CONTRACTS: dict[str, dict[str, Any]] = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}

# For each contract: the module that gets a line it must not have, and what that line imports.
VIOLATIONS = {
    "layers": ("core.planted_layers", "llmgw.wire"),
    "pure": ("engines.planted_pure", "os"),
    "fleet-traffic": ("core.fleet.planted_fleet", "llmgw.core.traffic"),
    "engines": ("engines.vllm", "llmgw.engines.sglang"),
    "hot-path": ("gateway.planted_hot", "llmgw.wire"),
    "hot-path-light": ("gateway.planted_comfort", "pydantic"),
    "agent-light": ("apps.agent", "sqlalchemy"),
    "pb": ("control.planted_pb", "llmgw.wire.pb"),
    "grpc": ("control.planted_grpc", "grpc"),
    "sql": ("config.planted_sql", "sqlite3"),
    "runner": ("runner.planted_runner", "asyncio"),
    "runner-door": ("control.planted_door", "llmgw.runner.record"),
    "runner-parts": ("agent.planted_parts", "llmgw.runner.planted_runner"),
    "testing": ("admin.planted_testing", "llmgw.testing"),
    "acyclic": ("store.planted_cycle", "llmgw.store.planted_cycle_back"),
}

# And lines that the same contracts allow, in the same run.
ALLOWED = {
    "gateway.feed": "llmgw.wire.gateway_link",
    "agent.planted_allowed": "llmgw.runner.record",
    "runtime.planted_allowed": "asyncio",
    "store.planted_cycle_back": "llmgw.store.planted_cycle",
    "wire.planted_allowed": "grpc",
}


def add_import(source: Path, module: str, imported: str) -> None:
    """Give `module` one more import, and make what is not there yet."""
    for name in (f"llmgw.{module}", imported):
        path = source.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith("llmgw.") and not path.exists() and not path.with_suffix("").is_dir():
            path.write_text('"""Planted."""\n')
    with source.joinpath("llmgw", *module.split(".")).with_suffix(".py").open("a") as file:
        file.write(f"\nimport {imported}\n")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy with every violation in it."""
    copy = tmp_path_factory.mktemp("contracts")
    shutil.copytree(SOURCE, copy / "src" / "llmgw", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for module, imported in [*VIOLATIONS.values(), *ALLOWED.items()]:
        add_import(copy / "src", module, imported)
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy / "src"), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def section(report: str, contract: str) -> str:
    """The part of the report that tells what broke a contract."""
    name = re.escape(CONTRACTS[contract]["name"])
    found = re.search(rf"(?ms)^{name}\n-+\n(.*?)(?=^\S[^\n]*\n-{{4,}}\n|\Z)", report)
    return found[1] if found else ""


def test_every_contract_has_a_planted_violation() -> None:
    assert set(VIOLATIONS) == set(CONTRACTS)


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_contract_catches_its_violation(contract: str, report: str) -> None:
    module, imported = VIOLATIONS[contract]
    broken = section(report, contract)
    assert f"llmgw.{module}" in broken or module.rpartition(".")[2] in broken, report
    assert imported in broken or imported.rpartition(".")[2] in broken


def test_what_is_allowed_is_not_reported(report: str) -> None:
    assert "planted_allowed" not in report
    assert "llmgw.gateway.feed" not in section(report, "hot-path")
