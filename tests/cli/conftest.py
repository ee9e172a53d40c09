"""Commands are run in this process, against a control plane that is a script."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw.cli.__main__ import run
from tests.cli.fake_admin import FakeAdmin, fake_admin


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[FakeAdmin]:
    with fake_admin(tmp_path) as fake:
        yield fake


@pytest.fixture
def llmgw(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def command(*words: str) -> Done:
        code = run(words)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return command


@pytest.fixture
def ctl(admin: FakeAdmin, llmgw: Callable[..., Done]) -> Callable[..., Done]:
    def command(*words: str) -> Done:
        return llmgw("ctl", "--url", admin.url, "--key-file", str(admin.key_file), *words)

    return command
