"""Which GPUs may be handed out: what the driver shows, and what was granted and is not proven free.

Every grant is written down, with what each GPU held before, before its shard starts (gpus.json in
the state directory). It is dropped when the shard has ended and the driver shows the memory free;
until then the GPU is quarantined. So a restarted agent knows what is still owed.
"""

import asyncio
import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from llmgw.agent.discovery.nvml import GpuReading, SeenGpu
from llmgw.agent.discovery.processes import sessions_above, title_of
from llmgw.agent.files import Disk, read_text
from llmgw.agent.memory_proof import Baseline, Holder, baseline, why_not_free
from llmgw.core.document import InvalidDocumentError, Json, dump, load
from llmgw.core.errors import StorageError
from llmgw.core.fleet.hardware import Gpu
from llmgw.runtime.threads import ThreadPool

GRANTS_FILE: Final = "gpus.json"
READ_S_MAX: Final = 10.0
"""A driver that does not answer within this is reported, and asked again when it has answered."""


class Driver(Protocol):
    """Reads all GPUs; blocking."""

    def read(self) -> GpuReading:
        """Return what the driver shows."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """GPUs that were given to a run, and what they held before."""

    run: str
    gpus: tuple[Baseline, ...]


@dataclass(frozen=True, slots=True)
class Grants:
    """The document gpus.json."""

    grants: tuple[Grant, ...] = ()
    version: int = 1
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Runs:
    """What the supervisor knows of its runs: by name, the sessions of their processes."""

    live: Mapping[str, frozenset[int]] = field(default_factory=dict)
    ended: Mapping[str, frozenset[int]] = field(default_factory=dict)
    blind: frozenset[str] = frozenset()
    """Runs whose directory and identity cannot be read: whatever they hold, they may hold still."""

    def holder(self, sessions: frozenset[int], run: str) -> Holder:
        """Say whose a process under these sessions is, as seen from an ended run."""
        if not sessions:
            return Holder.DEAD
        if sessions & self.ended.get(run, frozenset()):
            return Holder.ENDED
        if any(sessions & ours for ours in self.live.values()):
            return Holder.OURS
        return Holder.STRANGER


@dataclass(frozen=True, slots=True)
class Listed:
    """A process that the driver lists, as /proc shows it."""

    sessions: frozenset[int]
    """Its own and its ancestors'; empty where no such process is to be seen."""
    title: str


@dataclass(frozen=True, slots=True)
class GpuState:
    """All GPUs with the reasons why some must not be used."""

    gpus: tuple[Gpu, ...] = ()
    warnings: tuple[str, ...] = ()
    any_lost: bool = False
    proof_pending: bool = False


class Gpus:
    """Owns the grants; everybody else reads `state`."""

    def __init__(
        self, driver: Driver, state: Path, proc: Path, disk: Disk, pool: ThreadPool
    ) -> None:
        self._driver = driver
        self._path = state / GRANTS_FILE
        self._proc = proc
        self._disk = disk
        self._pool = pool
        self._grants: dict[str, Grant] = {}
        self._written: Grants | None = None
        self._fault = ""
        self._reading = GpuReading()
        self._last = GpuReading()
        self._asking = threading.Lock()
        self._saving = asyncio.Lock()
        self.state = GpuState()

    def load(self) -> None:
        """Read the grants of the agent's earlier life; blocking, once, before anything else."""
        try:
            text = read_text(self._path)
            kept = Grants() if text is None else load(Grants, text)
        except (StorageError, InvalidDocumentError) as error:
            # What was granted is then not known; live runs' specs say it again, see `remember`.
            self._fault = (
                f"{self._path} is broken ({error}): what GPUs held before their shards started is"
                " not known, so a general bound is used. It is kept as *.broken and written anew"
            )
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_suffix(".broken"))
            return
        self._grants = {grant.run: grant for grant in kept.grants}
        self._written = kept

    def remember(self, run: str, uuids: Sequence[str]) -> None:
        """Make sure that a run which was found has a grant, if only without figures."""
        if uuids and run not in self._grants:
            self._grants[run] = Grant(run, tuple(Baseline(uuid) for uuid in uuids))

    async def grant(self, run: str, uuids: Sequence[str]) -> None:
        """Write down what these GPUs hold, before the run starts; raise StorageError if not."""
        if not uuids:
            return
        reading = await self._read()
        seen = {one.gpu.uuid: one for one in reading.gpus}
        before = tuple(baseline(seen[u]) if u in seen else Baseline(u) for u in uuids)
        self._grants[run] = Grant(run, before)
        await self._save()

    def cancel(self, run: str) -> None:
        """Drop the grant of a run that never started anything."""
        self._grants.pop(run, None)

    def owes(self, run: str) -> bool:
        """Whether the memory of this run's GPUs is not proven free yet."""
        return run in self._grants

    def why_not(self, uuids: Sequence[str], live: Collection[str]) -> str:
        """Return why GPUs must not be used by a start, empty if they may.

        `live` are the runs that live and may share them; what another run was granted is owed
        until its memory is proven free.
        """
        unusable = {gpu.uuid: gpu.unusable for gpu in self.state.gpus}
        for uuid in uuids:
            if why := unusable.get(uuid):
                return f"GPU {uuid} {why}"
            for grant in self._grants.values():
                if grant.run not in live and any(b.uuid == uuid for b in grant.gpus):
                    return f"waits until the memory of {uuid} is proven free after {grant.run}"
        return ""

    async def refresh(self, runs: Runs) -> None:
        """Read the driver, drop grants that are proven free, and say what must not be used."""
        self._reading = await self._read()
        listed = await self._pool.run(self._listed, self._reading)
        owed = self._settle(runs, listed)
        self.state = self._judge(runs, listed, owed)
        if self._written is None or self._written.grants != tuple(self._grants.values()):
            try:
                await self._save()
            except StorageError as error:
                self._fault = str(error)

    def _listed(self, reading: GpuReading) -> dict[int, Listed]:
        pids = {p.pid for seen in reading.gpus for p in seen.processes or ()}
        return {
            pid: Listed(sessions_above(self._proc, pid), title_of(self._proc, pid)) for pid in pids
        }

    def _settle(self, runs: Runs, listed: Mapping[int, Listed]) -> dict[str, str]:
        """Drop what is proven; return why each GPU of the rest is not free, by UUID."""
        seen = {one.gpu.uuid: one for one in self._reading.gpus}
        owed: dict[str, str] = {}
        for run, grant in tuple(self._grants.items()):
            if run in runs.live or run in runs.blind:
                continue
            holders = {pid: runs.holder(one.sessions, run) for pid, one in listed.items()}
            reasons = {
                before.uuid: why_not_free(seen[before.uuid], before, holders)
                for before in grant.gpus
                if before.uuid in seen
            }
            reasons = {uuid: why for uuid, why in reasons.items() if why}
            if not reasons:
                del self._grants[run]
            owed |= {uuid: f"quarantined after {run}: {why}" for uuid, why in reasons.items()}
        return owed

    def _judge(self, runs: Runs, listed: Mapping[int, Listed], owed: Mapping[str, str]) -> GpuState:
        blind = self._blind(runs)
        gpus: list[Gpu] = []
        for one in self._reading.gpus:
            uuid = one.gpu.uuid
            why = (
                one.gpu.unusable
                or blind.get(uuid, "")
                or owed.get(uuid, "")
                or _stranger(one, runs, listed)
            )
            gpus.append(replace(one.gpu, unusable=why))
        warnings = (*self._reading.warnings, *((self._fault,) if self._fault else ()))
        return GpuState(tuple(gpus), warnings, self._reading.any_lost, bool(owed))

    def _blind(self, runs: Runs) -> dict[str, str]:
        """Return the GPUs that a run which nobody can describe may hold.

        Its own where the grant is known; else every GPU that no other run holds.
        """
        found: dict[str, str] = {}
        for run in sorted(runs.blind):
            why = (
                f"quarantined: {run} and its identity cannot be read, so what it runs is not known;"
                f" end its processes by hand, then remove its directory"
            )
            grant = self._grants.get(run)
            if grant is not None:
                uuids = {before.uuid for before in grant.gpus}
            else:
                held = {b.uuid for g in self._grants.values() for b in g.gpus}
                uuids = {one.gpu.uuid for one in self._reading.gpus} - held
            found |= dict.fromkeys(uuids, why)
        return found

    async def _read(self) -> GpuReading:
        try:
            async with asyncio.timeout(READ_S_MAX):
                return await self._pool.run(self._read_alone)
        except TimeoutError:
            return self._stale()

    def _read_alone(self) -> GpuReading:
        """Ask the driver; in a thread, and never twice at a time: a stuck call keeps one thread."""
        if not self._asking.acquire(blocking=False):
            return self._stale()
        try:
            self._last = self._driver.read()
            return self._last
        finally:
            self._asking.release()

    def _stale(self) -> GpuReading:
        """Return what was seen last, without the lists: an old one proves nothing."""
        gpus = tuple(replace(seen, processes=None) for seen in self._last.gpus)
        return GpuReading(gpus, (f"the GPU driver does not answer within {READ_S_MAX:g} s",))

    async def _save(self) -> None:
        async with self._saving:  # a file has one writer at a time
            document = Grants(tuple(self._grants.values()))
            if document != self._written:
                await self._pool.run(self._disk.write, self._path, dump(document))
            self._written, self._fault = document, ""


def _stranger(one: SeenGpu, runs: Runs, listed: Mapping[int, Listed]) -> str:
    """Return who else holds a GPU, empty if nobody does."""
    known = (*runs.live.values(), *runs.ended.values())
    for process in one.processes or ():
        who = listed.get(process.pid)
        if who is None or not who.sessions:
            return f"is held by process {process.pid}, which cannot be seen from here"
        if not any(who.sessions & ours for ours in known):
            return f"is held by a stranger, process {process.pid} ({who.title})"
    return ""
