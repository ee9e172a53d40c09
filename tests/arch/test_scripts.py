"""The scripts, as far as they are more than a list of commands; in a copy, with our own .venv."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.arch.tree import ROOT

PROTO = """
syntax = "proto3";
package llmgw.v1;
import "llmgw/wire/pb/planted_part.proto";
message Planted { Part part = 1; }
"""
PART = """
syntax = "proto3";
package llmgw.v1;
message Part { string name = 1; }
"""


def run(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the copy from another folder."""
    return subprocess.run(
        [str(root / command[0]), *command[1:]],
        cwd="/",
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with our scripts, two protos, and an environment that needs no making."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "scripts" / "venv").write_text("#!/bin/sh\n")
    pb = tmp_path / "src" / "llmgw" / "wire" / "pb"
    pb.mkdir(parents=True)
    (pb / "__init__.py").write_text('"""Generated."""\n')
    protos = tmp_path / "proto" / "llmgw" / "v1"
    protos.mkdir(parents=True)
    (protos / "planted.proto").write_text(PROTO)
    (protos / "planted_part.proto").write_text(PART)
    return tmp_path


def test_generated_code_imports_from_its_package_and_drift_is_seen(copy: Path) -> None:
    pb = copy / "src" / "llmgw" / "wire" / "pb"
    missing = run(copy, "scripts/proto", "--check")
    assert missing.returncode == 1
    assert "run scripts/proto" in missing.stderr
    made = run(copy, "scripts/proto")
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in pb.iterdir()) == [
        "__init__.py",
        "planted_part_pb2.py",
        "planted_part_pb2.pyi",
        "planted_pb2.py",
        "planted_pb2.pyi",
    ]
    assert "from llmgw.wire.pb import planted_part_pb2" in (pb / "planted_pb2.py").read_text()
    assert run(copy, "scripts/proto", "--check").returncode == 0


def test_a_message_that_changed_or_went_is_drift(copy: Path) -> None:
    assert run(copy, "scripts/proto").returncode == 0
    protos = copy / "proto" / "llmgw" / "v1"
    (protos / "planted_part.proto").write_text(PART.replace("name", "title"))
    changed = run(copy, "scripts/proto", "--check")
    assert changed.returncode == 1
    assert "planted_part_pb2.py" in changed.stdout
    for path in protos.iterdir():
        path.unlink()
    assert run(copy, "scripts/proto", "--check").returncode == 1
    assert run(copy, "scripts/proto").returncode == 0
    assert run(copy, "scripts/proto", "--check").returncode == 0


def test_a_machine_without_a_new_enough_python_is_told_so() -> None:
    done = run(ROOT, "scripts/venv", PYTHON="/bin/false")
    assert done.returncode == 1
    assert "llmgw needs Python 3.11 or newer" in done.stderr


def test_a_missing_part_is_named_where_it_cannot_be_installed(copy: Path) -> None:
    (copy / "scripts" / "lock" / "apt.txt").write_text("ls coreutils\nno-such-command moonlight\n")
    tools = copy / "tools"
    tools.mkdir()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n")
    (tools / "id").chmod(0o755)
    done = run(copy, "scripts/parts", PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0
    assert "not to be had: moonlight;" in done.stderr
