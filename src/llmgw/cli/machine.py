"""`llmgw up` and `llmgw down` as their operator sees them: everything on one machine."""

import asyncio
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.admin.client import AdminClient, connect
from llmgw.admin.errors import AdminUnreachableError, InvalidCatalogError
from llmgw.apps import spelling
from llmgw.apps.processes import Child, ProcessId, how
from llmgw.apps.up import (
    AlreadyUpError,
    DaemonFailedError,
    Up,
    down,
    identify_self,
    is_started,
    running,
)
from llmgw.cli.ctl.asking import read_key
from llmgw.cli.ctl.catalog import say, until_wanted
from llmgw.cli.exits import DeadlinePassedError, Exit
from llmgw.cli.output import at, note, printable
from llmgw.config.catalog_file import CatalogFile, read_catalog
from llmgw.config.loader import Surroundings
from llmgw.config.settings import ADMIN_KEY_FILE, LOOPBACK, UpSettings
from llmgw.core.errors import LlmgwError
from llmgw.engines.check import check_plans
from llmgw.runtime.clock import Clock, SystemClock
from llmgw.runtime.daemon import run_daemon
from llmgw.runtime.threads import ThreadPool

LOOK_S: Final = 0.2
ANSWER_S_MAX: Final = 120.0
"""For the control plane to answer first, on a machine that does much else."""
AGAIN_S: Final = 1.0
AGENT_S_MAX: Final = 15.0
ENDING_S_MAX: Final = 5.0
"""For a supervisor to end after its control plane did."""
FOR_EVER_S: Final = 1e12

Then = Callable[[AdminClient, asyncio.Event], Awaitable[None]]
"""What is done once everything runs as it is wanted; it may set the event, to stop it all."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that is brought up."""

    settings: UpSettings
    around: Surroundings
    wait_s: float
    """How long models may take to be ready."""
    late_is_failure: bool = True

    @property
    def admin_url(self) -> str:
        """Where its admin API is."""
        return f"http://{LOOPBACK}:{self.settings.admin_port}"

    @property
    def gateway_url(self) -> str:
        """What clients use."""
        return f"http://{LOOPBACK}:{self.settings.gateway_port}/v1"

    @property
    def admin_key_file(self) -> Path:
        """Where its admin key is."""
        return self.settings.serve_dir / ADMIN_KEY_FILE

    @property
    def ctl(self) -> str:
        """What to type to operate it."""
        return spelling.ctl(self.settings, self.around)

    @property
    def down(self) -> str:
        """What to type to stop it."""
        return spelling.down(self.settings, self.around)

    def check_free(self) -> None:
        """Raise AlreadyUpError, with what to do instead, where another `up` runs here."""
        state = self.settings.state_dir
        if (pid := running(state)) is None:
            return
        change = ""
        if self.settings.catalog is not None:
            file = shlex.quote(str(self.settings.catalog))
            change = f"; `{self.ctl} apply {file}` changes what it runs"
        raise AlreadyUpError(
            f"llmgw up runs already on {state} (pid {pid}){change}; `{self.down}` stops it"
        )

    def catalog(self) -> CatalogFile | None:
        """Return the catalog to apply; raise with all that is wrong with it."""
        if self.settings.catalog is None:
            return None
        content = read_catalog(self.settings.catalog)
        if problems := tuple(check_plans(content.catalog)):
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise InvalidCatalogError(f"{self.settings.catalog} cannot be used:\n{lines}", problems)
        return content


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Who keeps the daemons running: this process, or a child of it in the background."""

    id: ProcessId
    child: Child | None = None

    def check(self) -> None:
        """Raise what a child that has ended would have raised here: its own last sentence."""
        if self.child is None or (code := self.child.poll()) is None:
            return
        words = self.child.last_words() or f"llmgw up ended ({how(code)})"
        raise (AlreadyUpError if code == Exit.RUNNING else DaemonFailedError)(words)

    async def watch(self, clock: Clock, within_s: float = FOR_EVER_S) -> None:
        """Raise as soon as it has ended; return if it has not within that time."""
        until_s = clock.monotonic_s() + within_s
        while clock.monotonic_s() < until_s:
            await asyncio.to_thread(self.check)
            await clock.sleep(LOOK_S)


def up(machine: Machine, then: Then) -> None:
    """Run everything until Ctrl-C, which stops everything."""
    content = machine.catalog()
    machine.check_free()
    run_daemon(lambda stop: _up(machine, content, then, stop))


def supervise(settings: UpSettings, around: Surroundings) -> None:
    """Run everything in the background of an `up --detach`."""
    run_daemon(lambda stop: _supervised(settings, around, stop))


def up_detached(machine: Machine, argv: Sequence[str], then: Then) -> None:
    """Start everything in the background, and return when it runs as it is wanted.

    `argv` is the command that supervises.
    """
    content = machine.catalog()
    settings = machine.settings
    machine.check_free()
    log = settings.state_dir / "up.log"
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    child = Child([sys.executable, "-P", "-m", "llmgw.cli", *argv], machine.around.environment, log)

    try:
        asyncio.run(_detached(machine, content, then, Supervisor(child.id, child)))
    except KeyboardInterrupt:
        note(f"llmgw goes on in the background; `{machine.down}` stops it")
        raise
    finally:
        child.leave()


async def _detached(
    machine: Machine, content: CatalogFile | None, then: Then, supervisor: Supervisor
) -> None:
    """See it through, or to the end of the supervisor, which is then the news."""
    clock = SystemClock()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(supervisor.watch(clock), name="supervisor's end")
        try:
            await _front(machine, content, then, supervisor, asyncio.Event())
        except AdminUnreachableError:
            await supervisor.watch(clock, ENDING_S_MAX)
            raise
        watching.cancel()


def down_all(settings: UpSettings) -> None:
    """Stop what runs on the state directory; Ctrl-C makes it quick, by force."""
    run_daemon(lambda hurry: _down(settings, hurry))


async def _down(settings: UpSettings, hurry: asyncio.Event) -> None:
    pool = ThreadPool("down")
    try:
        if await down(settings, hurry, note, pool, SystemClock()):
            note("everything is stopped")
        else:
            note(f"nothing runs on {settings.state_dir}")
    finally:
        await pool.close()


async def _up(
    machine: Machine, content: CatalogFile | None, then: Then, stop: asyncio.Event
) -> None:
    failures: list[LlmgwError] = []
    ours = Supervisor(await asyncio.to_thread(identify_self))

    async def front() -> None:
        # Its failure must not cancel the supervisor, which has to stop what it started.
        try:
            await _front(machine, content, then, ours, stop)
        except LlmgwError as error:
            failures.append(error)
        finally:
            stop.set()

    async def until_stop() -> None:
        await stop.wait()
        shown.cancel()

    async with asyncio.TaskGroup() as group:
        shown = group.create_task(front(), name="front")
        group.create_task(until_stop(), name="front's end")
        await _supervised(machine.settings, machine.around, stop)
    if failures:
        raise failures[0]


async def _supervised(settings: UpSettings, around: Surroundings, stop: asyncio.Event) -> None:
    clock, hurry = SystemClock(), asyncio.Event()
    loop = asyncio.get_running_loop()
    hears_hang_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # as nohup has it
    if hears_hang_up:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    pool = ThreadPool("up")
    try:
        async with asyncio.TaskGroup() as group:
            second = group.create_task(_hurry_on_second_signal(stop, hurry), name="second signal")
            await Up(settings, around, note, pool, clock).run(stop, hurry)
            second.cancel()
        note("everything is stopped")
    finally:
        if hears_hang_up:
            loop.remove_signal_handler(signal.SIGHUP)
        await pool.close()


async def _hurry_on_second_signal(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    await stop.wait()
    note("stopping everything; Ctrl-C once more kills what does not stop by itself")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hurry.set)
    await asyncio.Event().wait()


async def _front(
    machine: Machine,
    content: CatalogFile | None,
    then: Then,
    supervisor: Supervisor,
    stop: asyncio.Event,
) -> None:
    """Wait for the control plane, apply the catalog, show how far it is, and go on with `then`."""
    async with _answering(machine, supervisor) as client:
        await _until_heard(client)
        if content is not None:
            edit = await client.put_catalog(content.catalog)
            say(edit, dry_run=False)
        catalog = await client.catalog()
        if not catalog.models:
            note(f"the catalog is empty; fill it with `{machine.ctl} apply FILE`")
        else:
            try:
                await until_wanted(client, catalog.revision, machine.wait_s, machine.ctl)
            except DeadlinePassedError as late:
                if machine.late_is_failure:
                    raise
                note(str(late))
        await then(client, stop)


@asynccontextmanager
async def _answering(machine: Machine, supervisor: Supervisor) -> AsyncIterator[AdminClient]:
    """Wait until our own control plane answers, not another one on the same port."""
    clock, state = SystemClock(), machine.settings.state_dir
    deadline_s = clock.monotonic_s() + ANSWER_S_MAX
    while not await asyncio.to_thread(is_started, state, supervisor.id):
        supervisor.check()
        if clock.monotonic_s() > deadline_s:
            raise DeadlinePassedError(
                f"the control plane has not started after {ANSWER_S_MAX:g} s; see the logs in"
                f" {state}"
            )
        await clock.sleep(LOOK_S)
    key = await asyncio.to_thread(read_key, machine.admin_key_file)
    async with connect(machine.admin_url, key) as client:
        yield client


async def _until_heard(client: AdminClient) -> None:
    """Wait a moment for this machine's agent: before it has reported nothing has a place."""
    clock = SystemClock()
    from_s = clock.monotonic_s()
    said = False
    while (waited_s := clock.monotonic_s() - from_s) < AGENT_S_MAX:
        if (await client.status()).nodes_heard:
            return
        if waited_s > AGAIN_S and not said:
            said = True
            note("waiting for this machine's agent to report")
        await clock.sleep(LOOK_S)


def say_ready(machine: Machine) -> None:
    """Say how to go on."""
    note(
        f"ready: {machine.gateway_url}\n"
        f"  a key for clients:  {machine.ctl} keys create NAME\n"
        f"  how things are:     {machine.ctl} status\n"
        f"  logs of daemons:    {machine.settings.state_dir}"
    )


async def stay(client: AdminClient) -> None:
    """Print what happens, until cancelled."""
    clock = SystemClock()
    last = await client.events(limit=1)
    after = last[-1].id if last else 0
    while True:
        try:
            async for event in client.follow_events(after):
                after = event.id
                note(f"{at(event.at_wall_s)}  {event.subject}: {printable(event.what)}")
        except AdminUnreachableError:
            await clock.sleep(AGAIN_S)
