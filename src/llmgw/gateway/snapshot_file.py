"""The obeyed snapshot on disk: a gateway can start with no control plane. All of it blocks."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from llmgw.core.traffic.snapshot import Snapshot
from llmgw.runtime.files import read_bounded, write_atomic

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES_MAX: Final = 256 * 1024 * 1024


def save(path: Path, snapshot: Snapshot) -> None:
    """Replace what is there, readable by its owner alone: it holds the engines' keys."""
    write_atomic(path, msgspec.json.encode(snapshot))


def load(path: Path) -> Snapshot:
    """Return what was saved; an empty snapshot where there is none that can be read."""
    try:
        return msgspec.json.decode(read_bounded(path, bytes_max=SNAPSHOT_BYTES_MAX), type=Snapshot)
    except FileNotFoundError:
        return Snapshot()
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        # What is in it is secret, so the parser's words, which may repeat it, are not said.
        what = str(error) if isinstance(error, OSError) else f"{path} is not a whole snapshot"
        logger.error("%s; the gateway serves nothing until a control plane sends one", what)  # noqa: TRY400
        return Snapshot()
