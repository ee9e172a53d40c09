"""Parts that some tests need and some machines lack: skipped by name at home, a failure in CI."""

import os

import pytest


def require(part: str, *, here: bool, how: str) -> None:
    """Skip the test when `part` is not here; in CI fail it. `how` says how to get the part."""
    if here:
        return
    message = f"{part} is not here: {how}"
    if os.environ.get("CI"):
        pytest.fail(f"{message} (in CI nothing is skipped)", pytrace=False)
    pytest.skip(message)
