"""Runs that nobody can describe any more: ended where they can be identified, else left alone.

Where the identity beside a directory is whole and its spec cannot be read, the processes are
killed: what holds GPUs and nothing can describe is worse than none. Where neither can be read,
nothing is killed, and what it may hold is quarantined until an operator has looked.
"""

import logging
from dataclasses import dataclass
from typing import Final

from llmgw.agent.runs import Found, shard_key
from llmgw.agent.shard import Tools
from llmgw.core.errors import StorageError
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ShardKey
from llmgw.runner import record

logger = logging.getLogger(__name__)

KILL_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class Buried:
    """One such run and what became of it."""

    name: str
    why: str
    ended: bool
    """Nothing of it lives; else nobody can tell, or something could not be killed."""
    sessions: frozenset[int] = frozenset()


class Burial:
    """Owns the runs without a readable spec."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._buried: dict[str, Buried] = {}

    async def bury(self, found: Found) -> None:
        """Deal with one run."""
        if found.identity is not None:
            await self._kill(found, found.identity)
        elif found.is_remnant:
            await self._clear(found)
        else:
            self._leave(found)

    async def again(self) -> tuple[Found, ...]:
        """Look once more at what was left: an operator may have removed it, or mended these."""
        left = [buried for buried in self._buried.values() if not buried.ended]
        mended: list[Found] = []
        if not left:
            return ()
        names = await self._tools.pool.run(self._tools.runs.names)
        for buried in left:
            if buried.name not in names:
                del self._buried[buried.name]
                self._tools.events.say(buried.name, "was removed; its GPUs are free again")
                continue
            found = await self._tools.pool.run(self._tools.runs.read, buried.name)
            if found.spec is not None:
                del self._buried[buried.name]
                mended.append(found)
            elif found.identity is not None:
                await self._kill(found, found.identity)
        return tuple(mended)

    def forget(self, name: str) -> None:
        """Its directory was removed."""
        self._buried.pop(name, None)

    @property
    def ended(self) -> dict[str, frozenset[int]]:
        """Runs of which nothing lives, with the sessions that they had."""
        return {b.name: b.sessions for b in self._buried.values() if b.ended}

    @property
    def blind(self) -> set[str]:
        """Runs of which something may live."""
        return {b.name for b in self._buried.values() if not b.ended}

    def keys(self) -> tuple[ShardKey, ...]:
        """Return the shards whose names these runs have."""
        return tuple(key for name in self._buried if (key := shard_key(name)) is not None)

    def ended_keys(self) -> tuple[ShardKey, ...]:
        """Return those of which nothing lives."""
        return tuple(key for name in self.ended if (key := shard_key(name)) is not None)

    def reports(self) -> tuple[ShardReport, ...]:
        """Return them as shards that failed."""
        return tuple(
            ShardReport(key, Phase.FAILED, buried.why)
            for name, buried in self._buried.items()
            if (key := shard_key(name)) is not None
        )

    async def _kill(self, found: Found, identity: record.Identity) -> None:
        killed = await self._tools.pool.run(record.kill_members, identity, KILL_S_MAX)
        fault = "; ".join(found.faults) or "its directory is gone"
        what = f"{len(killed.killed)} processes killed" if killed.killed else "nothing lived"
        ended = not killed.left and not killed.unsure
        if killed.left:
            what += f", but {', '.join(map(str, killed.left))} could not be"
        if killed.unsure:
            what += f", and {'; '.join(killed.unsure)}: left alone, its GPUs are quarantined"
        why = f"cannot be described any more ({fault}), so it was ended by its identity: {what}"
        before = self._buried.get(found.name)
        sessions = frozenset(session.id for session in identity.sessions)
        self._buried[found.name] = Buried(found.name, why, ended, sessions)
        if before is None or before.why != why:
            self._tools.events.say(found.name, why)

    def _leave(self, found: Found) -> None:
        why = (
            f"neither its directory nor its identity can be read ({'; '.join(found.faults)});"
            " nothing was killed, and its GPUs are quarantined: end what it left by hand, then"
            f" remove {self._tools.runs.folder(found.name)} and the identity beside it"
        )
        self._buried[found.name] = Buried(found.name, why, ended=False)
        self._tools.events.say(found.name, why)

    async def _clear(self, found: Found) -> None:
        """Remove what an agent that was killed had only begun to make."""
        try:
            await self._tools.pool.run(self._tools.runs.remove, found.name)
        except StorageError as error:
            logger.warning("%s", error)
