"""A state directory that another process holds, though its record does not tell of it (yet)."""

from collections.abc import Callable
from pathlib import Path

from llmgw.apps.up import LOCK_FILE
from llmgw.cli.exits import Exit
from llmgw.runtime.files import hold_lock
from tests.cli.conftest import Done


def test_the_sentence_says_what_to_type_for_this_very_directory(
    tmp_path: Path, llmgw: Callable[..., Done]
) -> None:
    with hold_lock(tmp_path / LOCK_FILE, purpose="at work"):
        done = llmgw("up", "--state-dir", str(tmp_path))
    assert done.code == Exit.RUNNING, done.err
    assert f" down --state-dir {tmp_path}` stops it" in done.err


def test_a_second_down_does_not_name_itself_as_the_way_out(
    tmp_path: Path, llmgw: Callable[..., Done]
) -> None:
    with hold_lock(tmp_path / LOCK_FILE, purpose="at work"):
        done = llmgw("down", "--state-dir", str(tmp_path))
    assert done.code == Exit.RUNNING, done.err
    assert "once it has ended" in done.err
    assert "stops it" not in done.err
