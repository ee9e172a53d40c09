"""Python processes that find llmgw and the tests."""

import os
import sys
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """Return an environment with this process's import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
