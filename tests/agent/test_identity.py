"""Who a node is and whom it has obeyed, over broken files and copied disks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.agent.files import RealDisk
from llmgw.agent.identity import (
    AnotherAgentError,
    CopiedDiskError,
    StateLock,
    Terms,
    node_identity,
)
from llmgw.core.errors import StorageError

DISK = RealDisk()
ENTROPY = bytes(range(16))
OTHER = bytes(range(50, 66))


class BrokenDisk(RealDisk):
    """Refuses to write files of some names."""

    def __init__(self, refuses: Callable[[str], bool]) -> None:
        self.refuses = refuses

    def write(self, path: Path, text: str) -> None:
        if self.refuses(path.name):
            raise StorageError(f"cannot write {path}: the disk is full: free some space")
        super().write(path, text)


def test_an_id_is_made_once_and_stays_when_the_host_is_renamed(tmp_path: Path) -> None:
    made = node_identity(tmp_path, "machine-1", ENTROPY, DISK)
    assert node_identity(tmp_path, "machine-1", OTHER, DISK) == made
    assert (tmp_path / "node.json").stat().st_mode & 0o777 == 0o600


def test_a_copied_disk_is_refused_with_both_machines_and_the_remedy(tmp_path: Path) -> None:
    node_identity(tmp_path, "machine-1", ENTROPY, DISK)
    with pytest.raises(CopiedDiskError, match=r"machine-1.*machine-2.*copied"):
        node_identity(tmp_path, "machine-2", OTHER, DISK)


def test_a_machine_without_an_id_of_its_own_is_not_called_a_copy(tmp_path: Path) -> None:
    made = node_identity(tmp_path, "", ENTROPY, DISK)
    assert node_identity(tmp_path, "machine-2", OTHER, DISK) == made


@pytest.mark.parametrize("text", ["", "{", '{"node": 1}', "\x00\x00"])
def test_a_broken_identity_is_named_with_the_remedy_and_left_as_it_is(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(StorageError, match=r"node\.json is broken.*remove it to join"):
        node_identity(tmp_path, "machine-1", ENTROPY, DISK)
    assert (tmp_path / "node.json").read_text() == text


def test_a_second_agent_on_a_state_directory_says_so(tmp_path: Path) -> None:
    first, second = StateLock(tmp_path), StateLock(tmp_path)
    first.take()
    try:
        with pytest.raises(AnotherAgentError, match="another llmgw agent"):
            second.take()
    finally:
        first.give_back()
    second.take()
    second.give_back()


def test_the_highest_term_is_remembered(tmp_path: Path) -> None:
    Terms(tmp_path, DISK).raise_to(7, "store-1")
    terms = Terms(tmp_path, DISK)
    assert (terms.obeyed.term, terms.obeyed.store) == (7, "store-1")
    with pytest.raises(ValueError, match="below"):
        terms.raise_to(6, "store-1")


@pytest.mark.parametrize("broken", ["{", '{"version": 1, "term": 18446744073709551616}'])
@pytest.mark.parametrize("name", ["term.json", "term.copy.json"])
def test_one_broken_copy_of_the_term_is_said_and_never_lowers_it(
    tmp_path: Path, name: str, broken: str
) -> None:
    Terms(tmp_path, DISK).raise_to(7, "store-1")
    (tmp_path / name).write_text(broken)
    terms = Terms(tmp_path, DISK)
    assert terms.obeyed.term == 7
    assert name in terms.warning
    terms.raise_to(8, "store-1")
    assert terms.warning == ""
    assert Terms(tmp_path, DISK).warning == ""


def test_with_both_copies_broken_the_agent_does_not_guess(tmp_path: Path) -> None:
    for name in ("term.json", "term.copy.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(StorageError, match=r"not known.*remove"):
        Terms(tmp_path, DISK)


@pytest.mark.parametrize("name", ["term.json", "term.copy.json"])
def test_a_term_counts_only_when_both_copies_are_written(tmp_path: Path, name: str) -> None:
    disk = BrokenDisk(lambda written: written == name)
    Terms(tmp_path, DISK).raise_to(7, "store-1")
    terms = Terms(tmp_path, disk)
    with pytest.raises(StorageError):
        terms.raise_to(8, "store-1")
    assert terms.obeyed.term == 7
    assert Terms(tmp_path, DISK).obeyed.term in (7, 8)
