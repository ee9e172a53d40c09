"""The store of `llmgw serve --store none`: a catalog file, and otherwise memory that dies with us.

The file lists models, nodes and the hashes of client keys; it is read again when it changes, and a
broken edit leaves what was there before. There is no secret, so engines get no key, and no ledger:
usage stays in the gateways' journals. The term begins at 1 and goes past what agents have obeyed.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from llmgw.config.catalog_file import CatalogFile, read_catalog
from llmgw.config.written import InvalidInputError
from llmgw.core.errors import NotAllowedError, NotFoundError
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.engines.check import check_plans
from llmgw.store.errors import StaleTermError
from llmgw.store.events import NewEvent, StoredEvent
from llmgw.store.gateways import Gateway
from llmgw.store.keys import KeyRecord
from llmgw.store.nodes import Node, Refused, admit
from llmgw.store.placements import Placed

logger = logging.getLogger(__name__)

EVENTS_KEPT: Final = 1_000
FIRST_TERM: Final = 1
NEVER_S: Final = 0.0
"""When a node was seen that is only listed yet."""


class WatchedFile:
    """A catalog file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._content = CatalogFile()
        self._revision = 0
        self.trouble = ""
        """Why the newest edit is not used; empty while all is well."""

    async def read(self) -> CatalogFile:
        """Return what the file says, or said before it was broken; the first time it must be right.

        Raises InvalidInputError.
        """
        await asyncio.to_thread(self._read_if_changed)
        return self._content

    @property
    def catalog(self) -> Catalog:
        """The models as last read; the revision counts the edits that were seen."""
        return replace(self._content.catalog, revision=self._revision)

    def _read_if_changed(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp and stamp is not None:
            return
        try:
            content = _read_checked(self.path)
        except InvalidInputError as error:
            if self._revision == 0:
                raise
            if self.trouble != str(error):
                logger.warning("%s; going on with what it said before", error)
            self.trouble = str(error)
        else:
            self._content, self.trouble = content, ""
            self._revision += 1
            logger.info("read %s: %s models", self.path, len(content.models))
        self._stamp = stamp

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def refusal(self, what: str) -> NotAllowedError:
        """Return what to say to somebody who wants to change something."""
        return NotAllowedError(
            f"this control plane runs without a store, so {what}: edit {self.path}, it is read "
            "again by itself"
        )


def _read_checked(path: Path) -> CatalogFile:
    content = read_catalog(path)
    if problems := check_plans(content.catalog):
        raise InvalidInputError(str(path), problems)
    return content


class FileCatalog:
    """See CatalogPort."""

    def __init__(self, file: WatchedFile) -> None:
        self._file = file

    async def current(self) -> Catalog:
        """See CatalogPort."""
        await self._file.read()
        return self._file.catalog

    async def save(
        self, _catalog: Catalog, _base_revision: int | None, _at_wall_s: float
    ) -> Catalog:
        """Refuse: the file is the catalog."""
        raise self._file.refusal("its catalog is a file")


class FileKeys:
    """See KeysPort."""

    def __init__(self, file: WatchedFile) -> None:
        self._file = file

    async def create(self, _key: ApiKey, _name: str, _shown: str, _at_wall_s: float) -> KeyRecord:
        """Refuse: the file lists the keys."""
        raise self._file.refusal("client keys come as hashes from a file")

    async def revoke(self, _id: str, _at_wall_s: float) -> KeyRecord:
        """Refuse: the file lists the keys."""
        raise self._file.refusal("client keys come as hashes from a file")

    async def all(self) -> tuple[KeyRecord, ...]:
        """See KeysPort."""
        content = await self._file.read()
        return tuple(KeyRecord(key, key.id, "", NEVER_S) for key in content.keys)


class FileNodes:
    """See NodesPort; the file lists nodes by name or id, and only those may attach."""

    def __init__(self, file: WatchedFile) -> None:
        self._file = file
        self._listed: tuple[str, ...] = ()
        self._seen: dict[NodeId, Node] = {}

    def why_not_listed(self, node: NodeId, name: str) -> str:
        """Say why a node may not attach; empty if it is listed."""
        if {node, name} & set(self._listed):
            return ""
        return (
            f"node {name} is not listed in {self._file.path}, and without a store that file says "
            "which nodes belong: add it under `nodes`"
        )

    async def seen(self, node: NodeId, name: str, machine: str, at_wall_s: float) -> Node | Refused:
        """See NodesPort."""
        if why := self.why_not_listed(node, name):
            return Refused(why)
        answer = admit(self._seen.values(), node, name, machine, at_wall_s)
        if isinstance(answer, Node):
            self._seen[node] = answer
        return answer

    async def all(self) -> tuple[Node, ...]:
        """Return those that were seen, and those that are listed and yet to come."""
        self._listed = (await self._file.read()).nodes
        here = [n for n in self._seen.values() if not self.why_not_listed(n.node, n.name)]
        known = {name for node in here for name in (node.node, node.name)}
        return (
            *here,
            *(
                Node(NodeId(name), name, "", NEVER_S, NEVER_S)
                for name in self._listed
                if name not in known
            ),
        )

    async def remove(self, _node: NodeId) -> None:
        """Refuse: the file lists the nodes."""
        raise self._file.refusal("its nodes are listed in a file")


class MemoryPlacements:
    """See PlacementsPort."""

    def __init__(self, lead: "MemoryLead", events: "MemoryEvents") -> None:
        self._lead = lead
        self._events = events
        self._intents: dict[ReplicaId, Intent] = {}

    async def all(self) -> Placed:
        """See PlacementsPort."""
        return Placed(tuple(self._intents[id_] for id_ in sorted(self._intents)))

    async def apply(
        self,
        term: int,
        saves: Iterable[Intent] = (),
        forgets: Iterable[ReplicaId] = (),
        events: Iterable[NewEvent] = (),
    ) -> None:
        """See PlacementsPort."""
        if term != self._lead.term:
            raise StaleTermError(term, self._lead.term)
        self._intents.update({intent.replica: intent for intent in saves})
        for replica in forgets:
            self._intents.pop(replica, None)
        await self._events.add(events)


class MemoryEvents:
    """See EventsPort."""

    def __init__(self) -> None:
        self._events: deque[StoredEvent] = deque(maxlen=EVENTS_KEPT)
        self._count = 0
        self._known: deque[tuple[str, int]] = deque(maxlen=EVENTS_KEPT)

    async def add(self, new: Iterable[NewEvent]) -> None:
        """See EventsPort."""
        for event in new:
            if event.source is not None and event.sequence is not None:
                if (event.source, event.sequence) in self._known:
                    continue
                self._known.append((event.source, event.sequence))
            self._count += 1
            self._events.append(
                StoredEvent(self._count, event.at_wall_s, event.subject, event.what)
            )

    async def read(
        self, after: int | None = None, limit: int = 100, subject: str | None = None
    ) -> tuple[StoredEvent, ...]:
        """See EventsPort."""
        found = [e for e in self._events if subject in {None, e.subject}]
        if after is None:
            return tuple(found[-limit:])
        return tuple(e for e in found if e.id > after)[:limit]


class MemoryGateways:
    """See GatewaysPort."""

    def __init__(self) -> None:
        self._gateways: dict[str, Gateway] = {}

    async def seen(self, gateway: str, at_wall_s: float) -> None:
        """See GatewaysPort."""
        first = self._gateways.get(gateway, Gateway(gateway, at_wall_s, at_wall_s))
        self._gateways[gateway] = replace(first, seen_wall_s=at_wall_s)

    async def all(self) -> tuple[Gateway, ...]:
        """See GatewaysPort."""
        return tuple(self._gateways[id_] for id_ in sorted(self._gateways))

    async def remove(self, gateway: str) -> None:
        """See GatewaysPort."""
        if self._gateways.pop(gateway, None) is None:
            raise NotFoundError(f"there is no gateway {gateway}")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """See IdentityPort."""

    id: str

    async def store_id(self) -> str:
        """See IdentityPort."""
        return self.id

    async def secret(self) -> bytes | None:
        """Return None: without a store there is no secret."""
        return None


class MemoryLead:
    """See LeadPort; nobody else can have it."""

    def __init__(self) -> None:
        self.term = FIRST_TERM
        self.lost = asyncio.Event()

    async def keep(self) -> None:
        """See LeadPort."""
        await self.lost.wait()

    async def raise_past(self, term: int) -> int:
        """See LeadPort."""
        self.term = max(term, self.term) + 1
        return self.term


class MemoryStore:
    """See StorePort."""

    def __init__(self, file: Path, store_id: str) -> None:
        self.file = WatchedFile(file)
        self._lead = MemoryLead()
        self.catalog = FileCatalog(self.file)
        self.keys = FileKeys(self.file)
        self.nodes = FileNodes(self.file)
        self.events = MemoryEvents()
        self.gateways = MemoryGateways()
        self.placements = MemoryPlacements(self._lead, self.events)
        self.identity = FileIdentity(store_id)
        self.usage = None

    @property
    def trouble(self) -> str:
        """See StorePort."""
        return self.file.trouble

    @asynccontextmanager
    async def lead(self, holder: str) -> AsyncIterator[MemoryLead]:
        """See StorePort."""
        logger.debug("%s leads, there is nobody else", holder)
        self._lead.lost.clear()
        yield self._lead


def store_id_of(file: Path, machine: str) -> str:
    """Return an id that stays the same for this file on this machine: agents remember it."""
    digest = hashlib.sha256(f"{machine}\0{file.absolute()}".encode()).hexdigest()
    return f"none-{digest[:16]}"
