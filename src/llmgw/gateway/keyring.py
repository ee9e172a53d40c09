"""Who asks: the hash of a bearer token or an x-api-key, looked up in the snapshot."""

import hashlib
from collections.abc import Iterable
from typing import Final

from llmgw.core.errors import NotAuthenticatedError
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.gateway.ports import Caller, Request
from llmgw.runtime.clock import Clock

_BEARER: Final = "bearer "


class SnapshotKeyring:
    """Identifies callers by the obeyed snapshot's keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, tuple[Caller, float | None]] = {}

    def obey(self, keys: Iterable[ApiKey]) -> None:
        """Know these keys and no others from now on."""
        self._keys = {
            key.hash.lower(): (
                Caller(key.id, key.account, None if key.models is None else frozenset(key.models)),
                key.expires_wall_s,
            )
            for key in keys
        }

    def identify(self, request: Request) -> Caller:
        """See Keyring."""
        secret = _secret_in(request)
        known = self._keys.get(hashlib.sha256(secret).hexdigest())
        if known is None:
            raise NotAuthenticatedError("the API key is not known here")
        caller, expires_wall_s = known
        if expires_wall_s is not None and self._clock.wall_s() >= expires_wall_s:
            raise NotAuthenticatedError(f"the API key {caller.key} has expired")
        return caller


def _secret_in(request: Request) -> bytes:
    authorization = request.header("Authorization") or ""
    if authorization[: len(_BEARER)].lower() == _BEARER:
        secret = authorization[len(_BEARER) :]
    else:
        secret = request.header("x-api-key") or ""
    if not secret.strip():
        raise NotAuthenticatedError("no API key: send it as `Authorization: Bearer KEY`")
    return secret.strip().encode("utf-8", "surrogateescape")
