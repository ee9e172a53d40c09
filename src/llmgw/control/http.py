"""The admin API, metrics and health, on the admin port: bounded bodies, JSON, one key."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from llmgw.admin.errors import StartingError
from llmgw.admin.schema import (
    BASE,
    EVENTS_MAX,
    EventInfo,
    LogLines,
    NewKey,
    Status,
    UsageInfo,
)
from llmgw.config.written import BYTES_MAX
from llmgw.control import metrics, views
from llmgw.control.admin_key import Door
from llmgw.control.answers import (
    answer,
    error_answer,
    flag,
    http_error_answer,
    line,
    number,
    read,
    set_within,
    text_of,
)
from llmgw.control.edits import Edits, key_info
from llmgw.control.plane import ControlPlane
from llmgw.control.recent_usage import totals
from llmgw.control.reconciler import Seen
from llmgw.control.sources import find_log, why_no_log
from llmgw.control.troubles import troubles
from llmgw.core import document
from llmgw.core.errors import (
    InvalidRequestError,
    LlmgwError,
    NoCapacityError,
    NodeUnreachableError,
    NotAllowedError,
    UpstreamFailedError,
)
from llmgw.core.fleet.decision import count_phases
from llmgw.core.ids import ShardKey
from llmgw.core.traffic.usage import Usage
from llmgw.store.usage import By, Total
from llmgw.wire.errors import CannotListenError
from llmgw.wire.messages import Answer

logger = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.0
"""For answers under way when the daemon stops."""
LINES: Final = 100
LINES_MAX: Final = 10_000
EVENTS: Final = 100
WAIT_S_MAX: Final = 60.0
"""How long a question for new events may be left open."""
LOOK_S: Final = 1.0
"""How often a waiting question looks for events that no turn announced."""
FOLLOWERS_MAX: Final = 64
"""Logs and events that are followed at once."""
RETRY_S: Final = 2.0
FIRST_TURN_S: Final = 5.0
"""Whoever asks right after the start waits so long for the first look at the fleet."""
FOR_EVER_S: Final = 1e12

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """Where the admin API listens, and what it says of this control plane."""

    host: str
    port: int
    version: str
    place: str
    """Where the store is, without a password, or why there is none."""
    recent_usage: Callable[[], Awaitable[Sequence[Usage]]] | None = None
    """Where there is no ledger: what the gateway inside has in its journal."""


class AdminApi:
    """A service: answers until cancelled."""

    name = "admin API"

    def __init__(
        self, plane: ControlPlane, edits: Edits, door: Door, options: AdminOptions
    ) -> None:
        self._plane = plane
        self._edits = edits
        self._door = door
        self._options = options
        self._followers = 0
        self.port = 0
        """What it listens on, once `listening` is set."""
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled."""
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._options.host, self._options.port)
            try:
                await site.start()
            except OSError as error:
                raise CannotListenError(
                    f"the admin API cannot listen on {self._options.host} port "
                    f"{self._options.port}: {os.strerror(error.errno or 0)}; stop what listens "
                    "there or choose another (`admin_port`)"
                ) from error
            self.port = int(runner.addresses[0][1])
            logger.info("the admin API listens on %s port %s", self._options.host, self.port)
            self.listening.set()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded], client_max_size=BYTES_MAX)
        routes: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/healthz", self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", f"{BASE}/status", self._status),
            ("GET", f"{BASE}/catalog", self._catalog),
            ("PUT", f"{BASE}/catalog", self._put_catalog),
            ("GET", f"{BASE}/models", self._models),
            ("POST", f"{BASE}/models/{{name}}/stop", self._stop_model),
            ("POST", f"{BASE}/profiles/{{name}}/stop", self._stop_profile),
            ("GET", f"{BASE}/replicas", self._replicas),
            ("POST", f"{BASE}/replicas/{{name}}/stop", self._stop_replica),
            ("GET", f"{BASE}/nodes", self._nodes),
            ("DELETE", f"{BASE}/nodes/{{name}}", self._remove_node),
            ("GET", f"{BASE}/events", self._events),
            ("GET", f"{BASE}/usage", self._usage),
            ("GET", f"{BASE}/keys", self._keys),
            ("POST", f"{BASE}/keys", self._make_key),
            ("DELETE", f"{BASE}/keys/{{name}}", self._revoke_key),
            ("GET", f"{BASE}/logs/{{name}}", self._logs),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        return app

    @property
    def _guarded(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                if request.path.startswith(f"{BASE}/"):
                    self._door.check(request.headers.get("Authorization", ""))
                return await handler(request)
            except LlmgwError as error:
                return error_answer(error)
            except web.HTTPException as error:
                return http_error_answer(request, error)

        return guarded

    async def _seen(self) -> Seen:
        reconciler = self._plane.reconciler
        await set_within(reconciler.turned_once, FIRST_TURN_S)
        if reconciler.seen is None:
            why = reconciler.trouble or "it has just started; ask again in a moment"
            raise StartingError(f"this control plane has no view of the fleet yet: {why}")
        return reconciler.seen

    # -- open to all who reach the port

    async def _health(self, _: web.Request) -> web.Response:
        plane = self._plane
        troubles = self._troubles()
        health = {
            "status": "degraded" if troubles else "ok",
            "leads": plane.leader.term > 0,
            "turned": plane.reconciler.seen is not None,
        }
        return answer(health, 200 if plane.reconciler.seen is not None else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render(self._plane),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    # -- looking

    async def _status(self, _: web.Request) -> web.Response:
        plane = self._plane
        current = plane.publisher.current
        seen = plane.reconciler.seen
        status = Status(
            self._options.version,
            plane.leader.term > 0,
            plane.leader.term,
            self._options.place,
            seen.view.catalog.revision if seen else 0,
            current.order if current else None,
            warnings=self._warnings(),
            troubles=self._troubles(),
        )
        return answer(status if seen is None else _with_fleet(status, seen))

    def _warnings(self) -> tuple[str, ...]:
        plane = self._plane
        found = []
        if plane.store.usage is None:
            found.append(
                "there is no store: engines are started without a key, and usage stays in the "
                "gateways' journals"
            )
        for node, store in sorted(plane.links.claims.items()):
            found.append(
                f"node {plane.fleet.name_of(node)} has obeyed another store's leader, {store}: two "
                "control planes that claim one node are an error; stop one of them"
            )
        seen = plane.reconciler.seen
        return (*found, *(views.warnings(seen) if seen else ()))

    def _troubles(self) -> tuple[str, ...]:
        """Return what this control plane itself cannot do; the fleet's are in troubles.py."""
        plane = self._plane
        parts = (plane.leader, plane.reader, plane.reconciler, plane.usage)
        return tuple(dict.fromkeys(part.trouble for part in parts if part.trouble))

    async def _catalog(self, _: web.Request) -> web.Response:
        catalog = await self._plane.store.catalog.current()
        return web.Response(text=document.dump(catalog), content_type="application/json")

    async def _models(self, _: web.Request) -> web.Response:
        return answer(views.models(await self._seen()))

    async def _replicas(self, _: web.Request) -> web.Response:
        return answer(views.replicas(await self._seen()))

    async def _nodes(self, _: web.Request) -> web.Response:
        return answer(views.nodes(await self._seen()))

    async def _events(self, request: web.Request) -> web.Response:
        after = number(request, "after", int)
        limit = number(request, "limit", int)
        limit = EVENTS if limit is None else limit
        wait_s = min(number(request, "wait", float) or 0.0, WAIT_S_MAX)
        if not 0 < limit <= EVENTS_MAX:
            raise InvalidRequestError(f"limit: is {limit}; write 1 to {EVENTS_MAX}")
        subject = request.query.get("subject")
        events = self._plane.store.events
        clock = self._plane.clock
        until_s = clock.monotonic_s() + wait_s
        with self._following(wait_s > 0):
            found = await events.read(after, limit, subject)
            while not found and (left_s := until_s - clock.monotonic_s()) > 0:
                await set_within(self._plane.reconciler.turned, min(left_s, LOOK_S))
                found = await events.read(after, limit, subject)
        return answer([EventInfo(e.id, e.at_wall_s, e.subject, e.what) for e in found])

    async def _usage(self, request: web.Request) -> web.Response:
        names = [name for name in request.query.get("by", "").split(",") if name]
        try:
            by = tuple(By(name) for name in names)
        except ValueError:
            raise InvalidRequestError(
                f"by: {','.join(names)[:80]!r} is not known; use any of {', '.join(By)}"
            ) from None
        since_s = number(request, "since", float) or 0.0
        until_s = number(request, "until", float)
        until_s = FOR_EVER_S if until_s is None else until_s
        ledger, recent = self._plane.store.usage, self._options.recent_usage
        if ledger is not None:
            sums = await ledger.totals(since_s, until_s, by)
            return answer([_usage_info(total) for total in sums])
        if recent is not None:
            return answer(totals(await recent(), since_s, until_s, by))
        raise NotAllowedError(
            "this control plane runs without a store and has no ledger: usage is in the gateways' "
            "journals; run a gateway inside (`gateway: true`), or use a store"
        )

    async def _keys(self, _: web.Request) -> web.Response:
        return answer([key_info(record) for record in await self._plane.store.keys.all()])

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        lines = number(request, "lines", int)
        lines = LINES if lines is None else lines
        if not 0 <= lines <= LINES_MAX:
            raise InvalidRequestError(f"lines: is {lines}; write 0 to {LINES_MAX}")
        seen = await self._seen()
        node, key = find_log(seen, request.match_info["name"])
        follow = flag(request, "follow")
        answers = self._plane.links.logs(node, str(key), lines, follow=follow)
        with self._following(follow):
            async with contextlib.aclosing(answers):
                # What goes wrong before the first part is an error with a status of its own.
                try:
                    first = await anext(answers, Answer(0, last=True))
                except (NodeUnreachableError, UpstreamFailedError) as error:
                    raise type(error)(f"{error}; {why_no_log(seen, key)}") from error
                return await _stream_log(request, key, first, answers)

    @contextlib.contextmanager
    def _following(self, follows: bool) -> Iterator[None]:  # noqa: FBT001
        """Hold a place among those who follow something."""
        if follows and self._followers >= FOLLOWERS_MAX:
            raise NoCapacityError(f"{FOLLOWERS_MAX} logs and events are followed already", RETRY_S)
        self._followers += follows
        try:
            yield
        finally:
            self._followers -= follows

    # -- changing

    async def _put_catalog(self, request: web.Request) -> web.Response:
        text, base = await text_of(request), number(request, "base", int)
        return answer(await self._edits.put_catalog(text, base, dry_run=flag(request, "dry_run")))

    async def _stop_replica(self, request: web.Request) -> web.Response:
        return answer(await self._edits.stop_replica(request.match_info["name"]))

    async def _stop_profile(self, request: web.Request) -> web.Response:
        return answer(await self._edits.stop_profile(request.match_info["name"]))

    async def _stop_model(self, request: web.Request) -> web.Response:
        return answer(await self._edits.stop_model(request.match_info["name"]))

    async def _remove_node(self, request: web.Request) -> web.Response:
        await self._edits.remove_node(request.match_info["name"])
        return answer({})

    async def _make_key(self, request: web.Request) -> web.Response:
        return answer(await self._edits.make_key(await read(NewKey, await text_of(request))))

    async def _revoke_key(self, request: web.Request) -> web.Response:
        return answer(await self._edits.revoke_key(request.match_info["name"]))


def _with_fleet(status: Status, seen: Seen) -> Status:
    phases = count_phases(seen.decision)
    nodes = seen.view.nodes.values()
    return replace(
        status,
        hold=seen.decision.hold,
        brake=seen.decision.brake,
        replicas={phase.value: count for phase, count in sorted(phases.items())},
        nodes=len(nodes),
        nodes_heard=sum(node.heard for node in nodes),
        shortfalls=views.shortfalls(seen),
        strays=views.strays(seen),
        gateways=views.gateways(seen),
        troubles=(*status.troubles, *troubles(seen)),
    )


def _usage_info(total: Total) -> UsageInfo:
    return UsageInfo(
        total.requests,
        total.prompt_tokens,
        total.completion_tokens,
        total.cached_tokens,
        total.estimated,
        total.account,
        total.key,
        total.model,
        total.day,
    )


async def _stream_log(
    request: web.Request, key: ShardKey, first: Answer, answers: AsyncGenerator[Answer, None]
) -> web.StreamResponse:
    """Send a log on."""
    stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await stream.prepare(request)
    await stream.write(line(LogLines(str(key), first.lines)))
    try:
        async for part in answers:
            await stream.write(line(LogLines(str(key), part.lines)))
    except LlmgwError as error:
        await stream.write(line(LogLines(str(key), error=str(error))))
    await stream.write_eof()
    return stream
