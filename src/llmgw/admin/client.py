"""The admin API's client: typed answers, deadlines, and errors as sentences.

Raises what the server raised, as the same classes of core.errors; AdminUnreachableError where there
is no answer.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from llmgw.admin.catalog import written_form
from llmgw.admin.errors import AdminUnreachableError, error_of
from llmgw.admin.schema import (
    BASE,
    EVENTS_MAX,
    Edit,
    ErrorBody,
    ErrorInfo,
    EventInfo,
    KeyInfo,
    LogLines,
    MadeKey,
    ModelInfo,
    NewKey,
    NodeInfo,
    ReplicaInfo,
    Status,
    Stopped,
    UsageInfo,
)
from llmgw.config.settings import ADMIN_PORT
from llmgw.core.document import InvalidDocumentError, load
from llmgw.core.errors import NotAuthenticatedError
from llmgw.core.fleet.catalog import Catalog

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_S: Final = 5.0
WAIT_S: Final = 20.0
"""How long one question for new events is left open."""

NOT_THERE: Final = {404: "not_found", 405: "method_not_allowed"}
"""Statuses with the code that the admin API gives them; anybody else's has another, or none."""

T = TypeVar("T")
Parameters = Mapping[str, str | int | float]


class AdminClient:
    """One control plane's admin API."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    # -- looking

    async def status(self) -> Status:
        """Return everything at a glance."""
        return await self._ask(Status, "GET", "/status")

    async def catalog(self) -> Catalog:
        """Return the catalog, with its revision."""
        body = await self._request("GET", "/catalog", {})
        try:
            return load(Catalog, body, ANSWER_BYTES_MAX)
        except InvalidDocumentError as error:
            raise self._puzzled(error) from error

    async def models(self) -> tuple[ModelInfo, ...]:
        """Return all models with their profiles."""
        return await self._ask(tuple[ModelInfo, ...], "GET", "/models")

    async def replicas(self) -> tuple[ReplicaInfo, ...]:
        """Return all replicas."""
        return await self._ask(tuple[ReplicaInfo, ...], "GET", "/replicas")

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return all nodes that belong."""
        return await self._ask(tuple[NodeInfo, ...], "GET", "/nodes")

    async def events(
        self,
        after: int | None = None,
        limit: int = 100,
        subject: str | None = None,
        wait_s: float = 0.0,
    ) -> tuple[EventInfo, ...]:
        """Return events, oldest first: those after an id, or (None) the newest.

        With `wait_s`, and where there are none after the id, wait so long for some.
        """
        asked: dict[str, str | int | float] = {"limit": limit, "wait": wait_s}
        if after is not None:
            asked["after"] = after
        if subject is not None:
            asked["subject"] = subject
        return await self._ask(tuple[EventInfo, ...], "GET", "/events", asked)

    async def follow_events(
        self, after: int | None = None, subject: str | None = None
    ) -> AsyncIterator[EventInfo]:
        """Yield the newest events, or those after an id, and then those to come, without end."""
        wait_s = 0.0
        while True:
            found = await self.events(after, EVENTS_MAX if after else 20, subject, wait_s)
            for event in found:
                yield event
            after = found[-1].id if found else after or 0
            wait_s = WAIT_S

    async def usage(
        self,
        since_wall_s: float | None = None,
        until_wall_s: float | None = None,
        by: Sequence[str] = (),
    ) -> tuple[UsageInfo, ...]:
        """Sum up usage, split by any of account, key, model and day."""
        asked: dict[str, str | int | float] = {"by": ",".join(by)}
        if since_wall_s is not None:
            asked["since"] = since_wall_s
        if until_wall_s is not None:
            asked["until"] = until_wall_s
        return await self._ask(tuple[UsageInfo, ...], "GET", "/usage", asked)

    async def keys(self) -> tuple[KeyInfo, ...]:
        """Return all client keys, revoked ones too."""
        return await self._ask(tuple[KeyInfo, ...], "GET", "/keys")

    async def logs(
        self, subject: str, lines: int = 100, *, follow: bool = False
    ) -> AsyncIterator[LogLines]:
        """Yield the last lines of a replica's head, or of a shard; to follow, those to come too."""
        asked: Parameters = {"lines": lines, "follow": int(follow)}
        path = f"/logs/{quote(subject, safe='')}"
        timeout = httpx.Timeout(self._http.timeout.read, connect=CONNECT_S)
        if follow:
            timeout = httpx.Timeout(None, connect=CONNECT_S)
        try:
            async with self._http.stream(
                "GET", BASE + path, params=asked, timeout=timeout
            ) as answer:
                if answer.status_code >= 400:
                    raise self._refused(await answer.aread(), answer.status_code)
                async for line in answer.aiter_lines():
                    yield self._read(LogLines, line.encode())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    # -- changing

    async def put_catalog(
        self, catalog: Catalog, base_revision: int | None = None, *, dry_run: bool = False
    ) -> Edit:
        """Make this the catalog, if the newest is still `base_revision` (None: whatever it is)."""
        asked: dict[str, str | int | float] = {"dry_run": int(dry_run)}
        if base_revision is not None:
            asked["base"] = base_revision
        body = msgspec.json.encode(written_form(catalog))
        return await self._ask(Edit, "PUT", "/catalog", asked, body)

    async def remove_node(self, node: str) -> None:
        """Let a node, by id or name, belong no more."""
        await self._request("DELETE", f"/nodes/{quote(node, safe='')}", {})

    async def make_key(self, new: NewKey) -> MadeKey:
        """Make a client key; its text is in this answer and nowhere else."""
        return await self._ask(MadeKey, "POST", "/keys", {}, msgspec.json.encode(new))

    async def revoke_key(self, key: str) -> KeyInfo:
        """End a client key for good."""
        return await self._ask(KeyInfo, "DELETE", f"/keys/{quote(key, safe='')}")

    async def stop_replica(self, replica: str) -> Stopped:
        """Stop one replica; where its profile still wants it, a new one takes its place."""
        return await self._ask(Stopped, "POST", f"/replicas/{quote(replica, safe='')}/stop")

    async def stop_profile(self, profile: str) -> Stopped:
        """Want no replica of a profile any more."""
        return await self._ask(Stopped, "POST", f"/profiles/{quote(profile, safe='')}/stop")

    async def stop_model(self, model: str) -> Stopped:
        """Want no replica of a model any more."""
        return await self._ask(Stopped, "POST", f"/models/{quote(model, safe='')}/stop")

    # -- the wire

    async def _ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        asked: Parameters | None = None,
        body: bytes | None = None,
    ) -> T:
        return self._read(kind, await self._request(method, path, asked or {}, body))

    async def _request(
        self, method: str, path: str, asked: Parameters, body: bytes | None = None
    ) -> bytes:
        read_s = self._http.timeout.read
        if read_s is not None:
            read_s += float(asked.get("wait", 0.0))
        timeout = httpx.Timeout(read_s, connect=CONNECT_S)
        try:
            answer = await self._http.request(
                method, BASE + path, params=asked, content=body, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise self._refused(answer.content, answer.status_code)
        return answer.content

    def _read(self, kind: type[T], body: bytes) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise self._puzzled(error) from error

    def _puzzled(self, error: Exception) -> AdminUnreachableError:
        return AdminUnreachableError(
            f"what answers at {self._url} is no llmgw admin API of this version ({error})"
        )

    def _unreachable(self, error: httpx.HTTPError) -> AdminUnreachableError:
        if isinstance(error, httpx.ConnectError):
            return AdminUnreachableError(
                f"nothing answers at {self._url}; is `llmgw serve` or `llmgw up` running there?"
            )
        what = str(error) or type(error).__name__
        return AdminUnreachableError(f"the control plane at {self._url} did not answer: {what}")

    def _refused(self, body: bytes, status: int) -> Exception:
        try:
            told = msgspec.json.decode(body, type=ErrorBody).error
        except msgspec.MsgspecError:
            told = ErrorInfo("", f"{self._url} answered with status {status}")
        if status in NOT_THERE and told.code != NOT_THERE[status]:
            return AdminUnreachableError(
                f"what answers at {self._url} is no admin API ({told.message}); a gateway's port "
                f"is for clients, and the admin API has its own: {ADMIN_PORT}, or what "
                "`admin_port` says"
            )
        return error_of(told.code, told.message, told.problems, status)


@asynccontextmanager
async def connect(url: str, key: str, timeout_s: float = 30.0) -> AsyncIterator[AdminClient]:
    """Give a client of the admin API at `url`; nothing is asked before its first use."""
    base, key = url.rstrip("/"), key.strip()
    if not (key.isascii() and key.isprintable()):
        # Checked here: httpx would repeat the key in its message.
        raise NotAuthenticatedError(
            "the admin key holds characters that no key has; copy it anew from the file admin.key"
        )
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(
        base_url=base,
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
        trust_env=False,
    ) as http:
        yield AdminClient(http, base)
