"""One shard as its node sees it: the actor that owns what is known of it, and reports it.

It watches the runner, asks the engine, and writes down the first ready. It never ends an engine
because a question went unanswered: it reports, and the control plane decides. Cancelling it lets
go of the shard and leaves it running.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from llmgw.agent.attachment import Attachment
from llmgw.agent.engine_http import Endpoint, EngineHttp
from llmgw.agent.launcher import Spawner
from llmgw.agent.observe import ENDED, STARTING, engine_of, is_over, phase_after
from llmgw.agent.probes import Answer, Probe, Prober
from llmgw.agent.pulse import Events, Pulse
from llmgw.agent.runner_link import RunnerAwayError, RunnerSilentError
from llmgw.agent.runs import Found, Ready, RunsFolder
from llmgw.agent.scrape import EngineLoad, scrape
from llmgw.agent.starting import Starting
from llmgw.agent.words import Circumstances, why
from llmgw.core.errors import StorageError
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.shard import (
    CouldNotStart,
    Exited,
    LoadingSeen,
    Phase,
    ProbePassed,
    StopWanted,
    next_phase,
)
from llmgw.engines.registry import ENGINES
from llmgw.runner import record
from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import keep_level
from llmgw.runtime.threads import ThreadPool

logger = logging.getLogger(__name__)

FOLLOW_PERIOD_S: Final = 0.5
STEP_S_MAX: Final = 3600.0
PROBE_STEP_S_MAX: Final = 120.0
WISH_PERIOD_S: Final = 2.0
WISH_S_MAX: Final = 60.0
PROBE_SHARE: Final = 0.1
"""A starting engine is asked again after this share of the time that it has taken so far."""
PROBE_STARTING_S_MAX: Final = 2.0
READY_WRITTEN_S: Final = 60.0
"""How often the last answer is written down."""
LAST_WORDS_S: Final = 0.25
LOG_LINES: Final = 50
LOG_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Tools:
    """What all shards of an agent share."""

    runs: RunsFolder
    starting: Starting
    spawner: Spawner
    prober: Prober
    http: EngineHttp
    events: Events
    pulse: Pulse
    pool: ThreadPool
    clock: Clock
    boot: str
    probe_starting_s: float
    probe_ready_s: float


class Shard:
    """The actor of one shard."""

    def __init__(self, spec: ShardSpec, key: str | None, tools: Tools) -> None:
        self.spec = spec
        self.name = str(spec.key)
        self.phase = Phase.WAITING
        self.sessions: frozenset[int] = frozenset()
        self.over = False
        """Nothing of it lives."""
        self.blind = False
        """Nobody can tell whether something of it lives."""
        self.confirmed = asyncio.Event()
        """What is known comes from this agent's own look, not only from files."""
        self.stop_wanted = False
        self.begun = False
        """It was started here, or shows that it was; else only its directory was made."""
        self._to_begin = False
        self._key = key
        self._tools = tools
        self._seen: record.Record | None = None
        self._ready: Ready | None = None
        self._ready_written_s = 0.0
        self._probe: Probe | None = None
        self._load = EngineLoad()
        self._last_log = ""
        self._ending = ""
        self._before_end = Phase.WAITING
        self._port_taken = False
        self._trouble = ""
        self._ended = asyncio.Event()
        self._wish_wake = asyncio.Event()
        self._follow_wake = asyncio.Event()
        self._probe_wake = asyncio.Event()
        self._hold = Attachment(self.name, self, tools.runs, tools.spawner, tools.pool, tools.clock)

    @classmethod
    def of(cls, found: Found, spec: ShardSpec, tools: Tools) -> "Shard":
        """Return the actor of a run that was found on the disk, as far as its files tell."""
        shard = cls(spec, found.key, tools)
        shard._ready = found.ready
        shard.begun = not found.untouched
        shard._take(found.seen, found.identity)
        return shard

    # What others ask of it.

    async def run(self) -> None:
        """Keep hold of the shard until nothing of it lives."""
        if self.over:
            await self._explain()
            self.confirmed.set()
            return
        loops = (
            keep_level(
                self._follow,
                self._follow_wake,
                FOLLOW_PERIOD_S,
                STEP_S_MAX,
                self._tools.clock,
                f"watch of {self.name}",
            ),
            keep_level(
                self._ask,
                self._probe_wake,
                0.0,
                PROBE_STEP_S_MAX,
                self._tools.clock,
                f"probe of {self.name}",
            ),
            keep_level(
                self._carry_out,
                self._wish_wake,
                WISH_PERIOD_S,
                WISH_S_MAX,
                self._tools.clock,
                f"start and stop of {self.name}",
            ),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            await self._ended.wait()
            for task in tasks:
                task.cancel()

    def begin(self) -> None:
        """Start it: prepare its directory, then let the watch spawn the runner."""
        self.begun = True
        self._to_begin = True
        self._wish_wake.set()

    def resume(self) -> None:
        """Start what an earlier agent has prepared, and may have started already."""
        self.begun = True
        self._hold.may_start = True
        self._follow_wake.set()

    def end(self) -> None:
        """Its assignment is over: see to it that nothing of it lives."""
        if not self.stop_wanted:
            self.stop_wanted = True
            self._wish_wake.set()
            self._follow_wake.set()
            self._tools.pulse.beat()

    def report(self) -> ShardReport:
        """Return what is known of it now."""
        seen, age_s = self._seen, self._age_s()
        # An end is said together with its reason, which its last words give a moment later.
        phase = self._before_end if self.phase in ENDED and not self._ending else self.phase
        engine = engine_of(seen, self.spec) if seen is not None else None
        alive = engine is not None and engine.ended_at_wall_s is None and not self.over
        silent_s = self._silent_s()
        return ShardReport(
            key=self.spec.key,
            phase=phase,
            why=why(
                Circumstances(
                    self.spec,
                    phase,
                    seen,
                    self._probe,
                    self._ending,
                    self._trouble,
                    age_s,
                    silent_s,
                    self.stop_wanted,
                )
            ),
            spec=self.spec,
            pid=engine.pid if engine is not None and alive else None,
            exit_status=seen.exit.status if seen is not None and seen.exit is not None else None,
            started_ago_s=age_s,
            answered_ago_s=silent_s,
            keyed=self._key is not None,
            last_log=self._last_log,
            port_taken=self._port_taken,
            running=self._load.running if self.phase is Phase.READY else None,
        )

    # What the attachment tells (see attachment.Owner).

    async def on_record(self, seen: record.Record, *, live: bool) -> None:
        """See attachment.Owner."""
        before = (self.phase, self._seen)
        found = await self._tools.pool.run(self._tools.runs.read, self.name)
        if live and self.blind:
            self.phase = Phase.WAITING  # what was doubted is seen again: from here on, once more
        if live or is_over(seen, self._tools.boot):
            self._trouble = ""
            self.blind = False
        self._take(seen, found.identity)
        if self.phase in ENDED and not self.blind:
            await self._explain()
        if live or self.over:
            self.confirmed.set()
        if (self.phase, self._seen) != before:
            self._changed()

    def on_takeover(self, pid: int) -> None:
        """See attachment.Owner."""
        self._tools.events.say(self.name, f"its runner was gone; another, process {pid}, took over")

    def on_trouble(self, why: str) -> None:
        """See attachment.Owner."""
        if why != self._trouble:
            self._trouble = why
            self._tools.events.say(self.name, why)
        self.confirmed.set()

    def on_blind(self, why: str) -> None:
        """See attachment.Owner."""
        if not self.blind:
            self.blind = True
            self._ending = (
                f"cannot tell whether it still runs: {why}. Nothing was killed or started, and its"
                " GPUs are quarantined"
            )
            self._tools.events.say(self.name, self._ending)
            self.phase = Phase.FAILED
        self.confirmed.set()

    def on_gone(self, why: str) -> None:
        """See attachment.Owner."""
        if self.stop_wanted and self.phase not in (*ENDED, Phase.WAITING):
            self.phase = next_phase(self.phase, StopWanted())
        if self.phase is Phase.WAITING:
            self.phase = next_phase(self.phase, CouldNotStart())
        elif self.phase not in ENDED:
            self.phase = next_phase(self.phase, Exited(None))
        self._ending = self._ending or f"nothing of it lives, and nobody saw it end: {why}"
        self.over = True
        self._changed()

    def on_never_started(self, why: str) -> None:
        """See attachment.Owner."""
        self.phase = Phase.FAILED
        self._ending = why
        self.over = True
        self._tools.events.say(self.name, f"could not be started: {why}")
        self._changed()

    def on_withdrawn(self) -> None:
        """It is not wanted any more, and nothing of it was ever started."""
        self.phase = Phase.STOPPED
        self._ending = "was not wanted any more before it was started"
        self.over = True
        self._changed()

    # Its own.

    def _take(self, seen: record.Record | None, identity: record.Identity | None) -> None:
        if identity is not None and identity.boot_id == self._tools.boot:
            self.sessions = frozenset(session.id for session in identity.sessions)
        if seen is None:
            return
        self.begun = True
        self._seen = seen
        self.over = is_over(seen, self._tools.boot)
        if self.phase not in ENDED:
            self._before_end = self.phase
        self.phase = phase_after(
            self.phase, seen, self.spec, self._tools.boot, was_ready=self._ready is not None
        )

    def _changed(self) -> None:
        self._tools.pulse.beat()
        self._probe_wake.set()
        if self.over:
            self.confirmed.set()
            self._ended.set()

    async def _explain(self) -> None:
        """Say why it ended, from the exit and the last lines of its log."""
        seen = self._seen
        if seen is None:
            return
        if not self.over:
            # It has ended just now: its last words are on their way into the log.
            await self._tools.clock.sleep(LAST_WORDS_S)
        said = await self._tail(LOG_LINES)
        self._last_log = said[-1] if said else ""
        if seen.boot_id != self._tools.boot and seen.exit is None:
            self._ending = "the machine restarted"
        elif seen.exit is None or seen.exit.asked:
            self._ending = seen.why or "ended"
        elif seen.exit.command != self.spec.commands[-1].name:
            self._ending = seen.exit.why or f"its {seen.exit.command} ended"
        else:
            lines = [_text_of(line) for line in said if not _is_note(line)]
            ending = ENGINES[self.spec.engine].ending(self.spec, seen.exit.status, lines)
            self._ending = ending.why
            self._port_taken = ending.port_taken

    async def _follow(self) -> None:
        await self._hold.step()
        self.confirmed.set()
        if self.over:
            self._changed()

    async def _carry_out(self) -> None:
        """Do what was asked for: begin, stop."""
        if self._to_begin:
            await self._prepare()
        if self.stop_wanted and not self.over:
            await self._stop()

    async def _prepare(self) -> None:
        refusal = await self._tools.starting.prepare(self.spec, self._key)
        self._to_begin = False
        if refusal is None:
            self._hold.may_start = True
            self._follow_wake.set()
            return
        self._port_taken = refusal.port_taken
        self.on_never_started(refusal.why)

    async def _stop(self) -> None:
        if self._seen is not None and self._seen.stop_asked:
            return
        if not self.begun:
            # Prepared and, it seems, never begun: then nothing will be, or its runner shows itself.
            if await self._tools.pool.run(self._tools.runs.give_up, self.name):
                self.on_withdrawn()
            return
        try:
            await self.on_record(await self._hold.stop(), live=True)
        except RunnerSilentError as error:
            # The watch may wait on it, too; it is asked again, and asking once is enough for it.
            self.on_trouble(f"was to be stopped, but {error}")
        except RunnerAwayError as error:
            if self._hold.watches:
                self.on_trouble(f"was to be stopped, but {error}")
            self._follow_wake.set()  # the watch brings a runner, or ends it without one

    async def _ask(self) -> None:
        await self._pause()
        spec, readiness = self.spec, self.spec.readiness
        if self.phase not in (*STARTING, Phase.READY, Phase.ALIVE):
            return
        await self._look_at_log()
        if readiness is None:
            return
        engine = Endpoint(spec.address, spec.port, self._key)
        before = self.phase
        first = self._ready is None
        self._probe = await self._tools.prober.ask(engine, readiness, self.sessions, first=first)
        match self._probe.answer:
            case Answer.READY:
                await self._answered()
                if spec.metrics_path is not None:
                    self._load = await scrape(
                        self._tools.http, engine, spec.metrics_path, spec.engine
                    )
            case Answer.LOADING if self.phase in STARTING:
                self.phase = next_phase(self.phase, LoadingSeen())
            case _:
                pass
        if self.phase is not before:
            self._tools.pulse.beat()

    async def _pause(self) -> None:
        """Wait until the engine is to be asked again, or its phase changed."""
        if self.phase in STARTING:
            wait_s = (self._age_s() or 0.0) * PROBE_SHARE
            wait_s = min(max(wait_s, self._tools.probe_starting_s), PROBE_STARTING_S_MAX)
        elif self.phase is Phase.READY and self._probe is None:
            return  # an earlier agent has seen it ready: ask how it is now
        else:
            wait_s = self._tools.probe_ready_s
        try:
            async with asyncio.timeout(wait_s):
                await self._probe_wake.wait()
        except TimeoutError:
            return
        self._probe_wake.clear()

    async def _look_at_log(self) -> None:
        said = await self._tail(1)
        line = said[-1] if said else ""
        if line == self._last_log:
            return
        self._last_log = line
        engine = ENGINES[self.spec.engine]
        if self.phase is Phase.STARTING and engine.shows_loading(line):
            self.phase = next_phase(self.phase, LoadingSeen())
            self._tools.pulse.beat()

    async def _tail(self, lines: int) -> tuple[str, ...]:
        """Return the last lines of its log, none where it cannot be read."""
        folder = self._tools.runs.folder(self.name)
        try:
            return (await self._tools.pool.run(record.tail, folder, lines, LOG_BYTES)).lines
        except OSError:
            return ()

    async def _answered(self) -> None:
        """The engine answered: it is ready, and that is written down."""
        if self.phase in STARTING:
            self.phase = next_phase(self.phase, ProbePassed())
        age_s = self._age_s()
        if age_s is None:
            return
        first = self._ready is None
        self._ready = Ready(age_s)
        if not first and age_s - self._ready_written_s < READY_WRITTEN_S:
            return
        try:
            await self._tools.pool.run(self._tools.runs.write_ready, self.name, self._ready)
            self._ready_written_s = age_s
        except StorageError as error:
            if first:
                self._tools.events.say(self.name, str(error))

    def _age_s(self) -> float | None:
        seen = self._seen
        return seen.age_s() if seen is not None and seen.boot_id == self._tools.boot else None

    def _silent_s(self) -> float | None:
        age_s = self._age_s()
        if age_s is None or self._ready is None:
            return None
        return max(age_s - self._ready.answered_age_s, 0.0)


def _is_note(line: str) -> bool:
    """Whether it is the runner's own remark, not the engine's."""
    return line.split("| ", 1)[0].endswith(" runner")


def _text_of(line: str) -> str:
    """Return a log line without its stamp and the name of its command."""
    return line.split("| ", 1)[-1]
