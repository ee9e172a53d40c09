"""Where `--json` may stand on the command line of `llmgw ctl`."""

import json
from collections.abc import Callable

import pytest

from llmgw.admin.schema import KeyInfo, NodeInfo
from llmgw.cli.exits import Exit
from tests.cli.conftest import Done
from tests.cli.fake_admin import FakeAdmin

Ctl = Callable[..., Done]


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "nodes"),
        ("nodes", "--json"),
        ("--json", "nodes", "rm", "gpu-1"),
        ("nodes", "--json", "rm", "gpu-1"),
        ("--json", "keys", "list"),
        ("keys", "--json", "list"),
    ],
)
def test_json_may_stand_before_the_command_too(
    admin: FakeAdmin, ctl: Ctl, words: tuple[str, ...]
) -> None:
    admin.on("GET", "/nodes", (NodeInfo("n1", "gpu-1", "heard", 0.0),))
    admin.on("DELETE", "/nodes/gpu-1", {})
    admin.on("GET", "/keys", (KeyInfo("kid", "me", "team", "sk-abcd...", 1.0),))
    done = ctl(*words)
    assert (done.code, done.err) == (Exit.DONE, "")
    assert json.loads(done.out)
