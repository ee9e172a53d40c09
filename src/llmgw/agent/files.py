"""How the agent writes its own small files: the seam at which a test makes a disk refuse."""

from pathlib import Path
from typing import Protocol

from llmgw.core.errors import StorageError
from llmgw.runtime.files import (
    StateFileError,
    make_private_folder,
    read_bounded,
    write_atomic,
)


class Disk(Protocol):
    """Writes files whole or not at all; blocking."""

    def write(self, path: Path, text: str) -> None:
        """Replace the file durably, mode 0600; raise StorageError if the disk refuses."""
        ...

    def make_folder(self, path: Path) -> None:
        """Make a folder of mode 0700 if it is not there; raise StorageError likewise."""
        ...


class RealDisk:
    """The disk itself."""

    def write(self, path: Path, text: str) -> None:
        """See Disk."""
        try:
            write_atomic(path, text.encode())
        except StateFileError as error:
            raise StorageError(str(error)) from error

    def make_folder(self, path: Path) -> None:
        """See Disk."""
        try:
            make_private_folder(path)
        except StateFileError as error:
            raise StorageError(str(error)) from error


def read_text(path: Path) -> str | None:
    """Return a file's text, None if there is no such file; raise StorageError if unreadable."""
    try:
        return read_bounded(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is broken: it is no text; restore or remove it") from error
    except OSError as error:
        raise StorageError(str(error)) from error
