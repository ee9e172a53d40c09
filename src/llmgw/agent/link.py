"""The agent's end of one link: reports up, assignments and questions down, until it ends.

Each control plane has a link of its own, all alike. The first thing said on each is the whole
truth; after that a report follows every change, and time.
"""

import asyncio
import logging
from contextlib import aclosing
from typing import Final, Protocol

from llmgw.agent.logs import Logs
from llmgw.agent.obedience import Claim, Obedience
from llmgw.agent.pulse import Pulse
from llmgw.agent.reporter import Reporter
from llmgw.core.fleet.assignment import Assignment
from llmgw.core.ids import LinkId
from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import OwnedTasks, TasksFullError
from llmgw.wire.errors import LinkLostError, UnsendableError
from llmgw.wire.messages import AgentDown, AgentUp, Answer, Cancel, Question, Welcome

logger = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 32
REPORT_GAP_S: Final = 0.05
"""Changes that come closer together go into one report."""


class Link(Protocol):
    """What is used of wire.agent_link.ControlLink."""

    @property
    def id(self) -> LinkId:
        """Which link."""
        ...

    @property
    def peer(self) -> Welcome:
        """What the control plane said first."""
        ...

    async def send(self, message: AgentUp) -> None:
        """Queue a message; raise LinkLostError when the link has ended."""
        ...

    async def receive(self) -> AgentDown:
        """Return the next message; raise LinkLostError when the link has ended."""
        ...

    def end(self, why: str) -> None:
        """End it."""
        ...


class Links:
    """Uses links; how many live is for whoever shows health."""

    def __init__(
        self,
        reporter: Reporter,
        obedience: Obedience,
        logs: Logs,
        pulse: Pulse,
        clock: Clock,
        report_s: float,
    ) -> None:
        self._reporter = reporter
        self._obedience = obedience
        self._logs = logs
        self._pulse = pulse
        self._clock = clock
        self._report_s = report_s
        self.open: set[Claim] = set()
        """The claims of the links that live."""

    async def use(self, link: Link) -> None:
        """Use a link until it ends."""
        claim = self._obedience.opened(link.peer.store)
        self.open.add(claim)
        questions: dict[int, asyncio.Task[None]] = {}
        try:
            async with OwnedTasks(f"link {link.id}", tasks_max=QUESTIONS_MAX + 1) as tasks:
                _ = tasks.start(self._report(link, claim), f"reports on link {link.id}")
                while True:
                    message = await link.receive()
                    if isinstance(message, Assignment):
                        await self._obedience.offer(claim, message)
                        self._pulse.beat()
                    else:
                        await self._hear(link, message, questions, tasks)
        except LinkLostError:
            return
        finally:
            self.open.discard(claim)
            self._obedience.closed(claim)

    async def _hear(
        self,
        link: Link,
        message: Question | Cancel,
        questions: dict[int, asyncio.Task[None]],
        tasks: OwnedTasks,
    ) -> None:
        match message:
            case Question():
                for number in [number for number, task in questions.items() if task.done()]:
                    del questions[number]
                try:
                    task = tasks.start(self._answer(link, message), f"question {message.id}")
                except TasksFullError:
                    error = f"this agent answers {QUESTIONS_MAX} questions at a time; ask again"
                    await link.send(Answer(message.id, last=True, error=error))
                else:
                    questions[message.id] = task
            case Cancel():
                if (asked := questions.pop(message.id, None)) is not None:
                    asked.cancel()

    async def _report(self, link: Link, claim: Claim) -> None:
        beats = self._pulse.listen()
        try:
            while True:
                beats.clear()
                try:
                    await link.send(self._reporter.report(claim))
                except UnsendableError as error:
                    logger.warning("the report cannot be sent: %s", error)
                await self._clock.sleep(REPORT_GAP_S)
                try:
                    async with asyncio.timeout(self._report_s):
                        await beats.wait()
                except TimeoutError:
                    continue
        except LinkLostError:
            return
        finally:
            self._pulse.leave(beats)

    async def _answer(self, link: Link, question: Question) -> None:
        try:
            async with aclosing(self._logs.answers(question)) as answers:
                async for answer in answers:
                    await link.send(answer)
        except LinkLostError:
            return
