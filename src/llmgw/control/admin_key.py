"""The admin key: made at the first start, kept in a file for its owner alone, never in a log."""

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

from llmgw.core.errors import NotAuthenticatedError, StorageError
from llmgw.runtime.files import StateFileError, read_bounded, write_atomic

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4096
KEY_CHARS_MIN: Final = 20
_SCHEME: Final = "bearer"


def admin_key(file: Path, entropy: Callable[[int], bytes]) -> str:
    """Return the key in `file`, made there if there is none; blocking."""
    try:
        try:
            key = read_bounded(file, bytes_max=FILE_BYTES_MAX).decode().strip()
        except FileNotFoundError:
            key = f"sk-admin-{entropy(KEY_BYTES).hex()}"
            write_atomic(file, f"{key}\n".encode())
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except (StateFileError, OSError, UnicodeDecodeError) as error:
        raise StorageError(f"the admin key in {file} cannot be used: {error}") from error
    if len(key) < KEY_CHARS_MIN:
        raise StorageError(
            f"the admin key in {file} has fewer than {KEY_CHARS_MIN} characters; remove the file "
            "and a new one is made at the next start"
        )
    return key


class Door:
    """Lets those in who have the key."""

    def __init__(self, key: str) -> None:
        self._digest = hashlib.sha256(key.encode()).digest()

    def check(self, authorization: str) -> None:
        """Raise NotAuthenticatedError for a header that does not hold the key."""
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode(errors="replace")).digest()
        # Digests are of one length, so the time tells nothing of the key.
        if not hmac.compare_digest(digest, self._digest) or scheme.lower() != _SCHEME:
            raise NotAuthenticatedError(
                "the admin API wants the admin key as a bearer token; it is in the file admin.key "
                "in the state directory of `llmgw serve`"
            )
