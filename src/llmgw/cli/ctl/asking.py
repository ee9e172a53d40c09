"""How a command reaches the admin API: where it is, with which key, and one loop for the work."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from llmgw.admin.client import AdminClient, connect
from llmgw.config.loader import Surroundings, admin_key_files, ctl_file, load, surroundings
from llmgw.config.settings import CtlSettings
from llmgw.core.errors import InvalidRequestError, NotAuthenticatedError
from llmgw.runtime.files import read_bounded

KEY_BYTES_MAX: Final = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """What was given to `llmgw ctl` before the command's name."""

    config: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)


def ask(target: Target, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Do the work with a client, and return what it returns."""
    around = surroundings()
    file = target.config or ctl_file(around, target.overrides)
    settings = load(CtlSettings, file=file, overrides=target.overrides, around=around)
    key_file = _key_file(settings, around)
    key = read_key(key_file)
    try:
        return asyncio.run(_ask(settings, key, work))
    except NotAuthenticatedError as error:
        raise NotAuthenticatedError(
            f"the control plane at {settings.url} does not take the key in {key_file}: {error}"
        ) from error


async def _ask(settings: CtlSettings, key: str, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    async with connect(settings.url, key, settings.timeout_s) as client:
        return await work(client)


def _key_file(settings: CtlSettings, around: Surroundings) -> Path:
    if settings.key_file is not None:
        return settings.key_file
    places = admin_key_files(around)
    for place in places:
        if os.access(place, os.R_OK):
            return place
    named = " or ".join(map(str, places))
    if not any(map(os.path.lexists, places)):
        raise InvalidRequestError(
            f"nothing seems to run here: there is no admin key in {named}. `llmgw up` starts "
            "everything on this machine, `llmgw serve` a control plane alone; for one that runs "
            "elsewhere, or as another user, use --url and --key-file"
        )
    raise InvalidRequestError(
        f"no admin key that you may read is in {named}; name the file that `llmgw serve` made with"
        " --key-file or LLMGW_CTL_KEY_FILE"
    )


def read_key(file: Path) -> str:
    """Return the admin key in a file."""
    try:
        return read_bounded(file, bytes_max=KEY_BYTES_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise InvalidRequestError(
            f"there is no admin key in {file}: the file is not there"
        ) from None
