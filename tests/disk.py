"""A small disk of a test's own, which can be full or read-only for root as well."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.guards.parts import require

SIZE_BYTES: Final = 1024 * 1024
MOUNT_S_MAX: Final = 10


class SmallDisk:
    """A mounted tmpfs; use `small_disk`, which unmounts it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / ".filling"

    def fill(self) -> None:
        """Use up all space."""
        try:
            with self._filling.open("wb", buffering=0) as file:
                while file.write(b"\0" * 4096):
                    pass
        except OSError:
            return

    def free(self) -> None:
        """Give the space back."""
        self._filling.unlink()

    def read_only(self) -> None:
        """Let every write fail with EROFS. No file may be open for writing."""
        self._mount("remount,ro")

    def writable(self) -> None:
        """Take `read_only` back."""
        self._mount("remount,rw")

    def _mount(self, option: str) -> None:
        command = ["mount", "-o", option, str(self.path)]
        subprocess.run(command, check=True, capture_output=True, timeout=MOUNT_S_MAX)


@contextmanager
def small_disk(path: Path, *, size_bytes: int = SIZE_BYTES) -> Iterator[SmallDisk]:
    """Mount a disk of `size_bytes` at `path`."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "llmgw-test", str(path)]
    mounted = subprocess.run(command, check=False, capture_output=True, timeout=MOUNT_S_MAX)
    require("a small disk", here=mounted.returncode == 0, how="run as root, who may mount a tmpfs")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=MOUNT_S_MAX)
