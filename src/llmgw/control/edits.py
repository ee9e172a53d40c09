"""What an operator changes: the catalog, client keys, nodes, and replicas to be stopped."""

import asyncio
import hashlib
import logging
from base64 import b32encode
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from llmgw.admin.catalog import changes
from llmgw.admin.errors import InvalidCatalogError, NotLeadingError
from llmgw.admin.schema import Edit, KeyInfo, MadeKey, NewKey, Stopped
from llmgw.config.catalog_file import parse_catalog
from llmgw.control.messages import Condemned
from llmgw.control.plane import ControlPlane
from llmgw.control.views import intents_of
from llmgw.core.errors import ConflictError, InvalidRequestError, NotFoundError, StorageError
from llmgw.core.fleet.catalog import Catalog, Model, Problem, Profile
from llmgw.core.ids import ID_BYTES, NodeId, ReplicaId, id_from
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.engines.check import check_plans
from llmgw.store.events import NewEvent
from llmgw.store.keys import KeyRecord

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 25
"""200 random bits, which are 40 characters."""
SHOWN_CHARS: Final = 7
NAME_CHARS_MAX: Final = 128
MODELS_MAX: Final = 1_000
NAMES_SHOWN: Final = 20


class Edits:
    """Changes what is wanted, in the store; the next turn acts on it."""

    def __init__(self, plane: ControlPlane, entropy: Callable[[int], bytes]) -> None:
        self._plane = plane
        self._store = plane.store
        self._clock = plane.clock
        self._entropy = entropy

    # -- catalog

    async def put_catalog(self, text: str, base_revision: int | None, *, dry_run: bool) -> Edit:
        """Check a catalog and, unless it is a dry run, save it."""
        # In a thread: what pydantic makes of our types reads files the first time.
        written = await asyncio.to_thread(parse_catalog, text)
        problems = [
            Problem(name, "is only read with `--store none`", f"leave it out: {instead}")
            for name, there, instead in (
                ("nodes", written.nodes, "nodes belong as soon as they attach"),
                ("keys", written.keys, "make keys with `llmgw ctl keys create`"),
            )
            if there
        ]
        problems += await asyncio.to_thread(check_plans, written.catalog)
        current = await self._store.catalog.current()
        if problems and not dry_run:
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise InvalidCatalogError(f"the catalog cannot be used:\n{lines}", tuple(problems))
        new = replace(written.catalog, unknown=current.unknown)
        words = changes(current, new)
        if dry_run or (not words and base_revision in {None, current.revision}):
            return Edit(
                saved=not dry_run,
                revision=current.revision,
                changes=words,
                problems=tuple(problems),
            )
        saved = await self._save(new, base_revision, words)
        return Edit(saved=True, revision=saved.revision, changes=words)

    async def _save(
        self, catalog: Catalog, base_revision: int | None, words: tuple[str, ...]
    ) -> Catalog:
        saved = await self._store.catalog.save(catalog, base_revision, self._clock.wall_s())
        self._plane.edited()
        await self._tell("catalog", f"revision {saved.revision}: {'; '.join(words)}")
        return saved

    # -- stopping

    async def stop_replica(self, replica: str) -> Stopped:
        """Have one replica stopped, planned or not."""
        if self._plane.leader.term == 0:
            raise NotLeadingError(
                "this control plane stands by; ask the one that leads to stop a replica"
            )
        seen = self._plane.reconciler.seen
        known = set(intents_of(seen)) if seen else set()
        strays = {stray.replica for stray in seen.decision.strays} if seen else set()
        if replica not in known | strays:
            raise NotFoundError(f"there is no replica {replica}; `llmgw ctl replicas` lists them")
        self._plane.tell(Condemned(ReplicaId(replica)))
        return Stopped((replica,))

    async def stop_profile(self, name: str) -> Stopped:
        """Want no replica of a profile any more."""
        current = await self._store.catalog.current()
        if current.profile(name) is None:
            raise NotFoundError(f"there is no profile {name}; `llmgw ctl get models` lists them")
        return await self._switch_off(current, lambda _, profile: profile.name == name)

    async def stop_model(self, name: str) -> Stopped:
        """Want no replica of a model any more."""
        current = await self._store.catalog.current()
        if all(model.name != name for model in current.models):
            raise NotFoundError(f"there is no model {name}; `llmgw ctl get models` lists them")
        return await self._switch_off(current, lambda model, _: model.name == name)

    async def _switch_off(
        self, current: Catalog, chosen: Callable[[Model, Profile], bool]
    ) -> Stopped:
        off = replace(
            current,
            models=tuple(
                replace(
                    model,
                    profiles=tuple(
                        replace(p, replicas=0) if chosen(model, p) else p for p in model.profiles
                    ),
                )
                for model in current.models
            ),
        )
        seen = self._plane.reconciler.seen
        statuses = seen.decision.statuses if seen else ()
        names = {p.name for model in current.models for p in model.profiles if chosen(model, p)}
        stopped = tuple(s.replica for s in statuses if s.profile in names)
        words = changes(current, off)
        saved = await self._save(off, current.revision, words) if words else current
        return Stopped(stopped, saved.revision)

    # -- keys

    async def make_key(self, new: NewKey) -> MadeKey:
        """Make a client key; its text is returned once and kept nowhere."""
        _check_key(new)
        text = f"sk-{b32encode(self._entropy(KEY_BYTES)).decode().lower()}"
        now_s = self._clock.wall_s()
        expires_s = None if new.expires_in_s is None else now_s + new.expires_in_s
        digest = hashlib.sha256(text.encode()).hexdigest()
        key = ApiKey(id_from(self._entropy(ID_BYTES)), digest, new.account, new.models, expires_s)
        record = await self._store.keys.create(
            key, new.name or key.id, f"{text[:SHOWN_CHARS]}...", now_s
        )
        self._plane.edited()
        await self._tell(f"key {key.id}", f"was made for account {new.account}")
        return MadeKey(key_info(record), text, await self._unknown_models(new))

    async def _unknown_models(self, new: NewKey) -> tuple[str, ...]:
        """Say which models of a key nobody can ask for yet; they may come later."""
        catalog = await self._store.catalog.current()
        names = [name for model in catalog.models for name in (model.name, *model.aliases)]
        known = ", ".join(names[:NAMES_SHOWN]) or "none"
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        return tuple(
            f"no model is called {name!r}; the key is good for it as soon as the catalog has it "
            f"(models are: {known}{more})"
            for name in new.models or ()
            if name not in names
        )

    async def revoke_key(self, id_: str) -> KeyInfo:
        """End a client key for good."""
        record = await self._store.keys.revoke(id_, self._clock.wall_s())
        self._plane.edited()
        await self._tell(f"key {id_}", "was revoked")
        return key_info(record)

    # -- nodes

    async def remove_node(self, name: str) -> None:
        """Let a node, by id or name, belong no more."""
        nodes = self._plane.registry.nodes
        node = next((n for n in nodes.values() if name in {n.node, n.name}), None)
        if node is None:
            raise NotFoundError(f"there is no node {name}; `llmgw ctl nodes` lists them")
        if self._plane.fleet.link_of(node.node) is not None:
            raise ConflictError(
                f"node {node.name} is connected and would come back at once; stop its agent first"
            )
        await self._plane.registry.remove(node.node)
        self._plane.wake.set()
        await self._tell(NodeId(node.node), f"node {node.name} was removed by an operator")

    async def _tell(self, subject: str, what: str) -> None:
        logger.info("%s: %s", subject, what)
        try:
            await self._store.events.add([NewEvent(subject, what, self._clock.wall_s())])
        except StorageError as error:
            logger.warning("that could not be stored as an event: %s", error)


def key_info(record: KeyRecord) -> KeyInfo:
    """Return what may be shown of a key."""
    key = record.key
    return KeyInfo(
        key.id,
        record.name,
        key.account,
        record.shown,
        record.created_wall_s,
        key.models,
        key.expires_wall_s,
        record.revoked_wall_s,
    )


def _check_key(new: NewKey) -> None:
    for field, text in (("name", new.name), ("account", new.account)):
        if len(text) > NAME_CHARS_MAX or not text.isprintable():
            raise InvalidRequestError(
                f"{field}: is no printable text of at most {NAME_CHARS_MAX} characters; shorten it"
            )
    if not new.account.strip():
        raise InvalidRequestError("account: is empty; name who pays")
    if new.models is not None and not 0 < len(new.models) <= MODELS_MAX:
        raise InvalidRequestError(
            f"models: names {len(new.models)} models; name 1 to {MODELS_MAX}, or leave it out for "
            "all"
        )
    if new.expires_in_s is not None and not 0 < new.expires_in_s < float("inf"):
        raise InvalidRequestError(
            f"expires_in_s: is {new.expires_in_s}; write seconds above 0, or leave it out"
        )
