"""A fake control plane for agents: takes all, writes down what it hears, says what a test wants."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.fleet.assignment import Assignment, ShardSpec
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.ids import LinkId, ReplicaId, ShardKey
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.tasks import OwnedTasks
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import AgentLink, AgentServer
from llmgw.wire.messages import Answer, Cancel, Hello, Question, Refusal, Welcome
from llmgw.wire.serving import ListenOptions

HEARTBEAT_S: Final = 1.0
SILENT_AFTER_S: Final = 10.0


@dataclass
class FakeControl:
    """One control plane; `running` serves it."""

    term: int = 1
    store: str = "store-1"
    refusal: str = ""
    hellos: list[Hello] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    """All that came, over all links."""
    answers: list[Answer] = field(default_factory=list)
    links: list[AgentLink] = field(default_factory=list)
    """All that ever were; the last one is used."""
    port: int = 0
    _generation: int = 0
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def endpoint(self) -> str:
        """Where agents attach."""
        return f"127.0.0.1:{self.port}"

    @property
    def report(self) -> Report:
        """The newest report."""
        return self.reports[-1]

    def shard(self, key: ShardKey) -> ShardReport | None:
        """Return a shard as the newest report shows it."""
        if not self.reports:
            return None
        return next((shard for shard in self.report.shards if shard.key == key), None)

    async def assign(
        self,
        *shards: ShardSpec,
        keys: Mapping[ReplicaId, str] | None = None,
        keep: tuple[ShardKey, ...] = (),
        term: int | None = None,
    ) -> Assignment:
        """Send a complete assignment over the newest link."""
        self._generation += 1
        assignment = Assignment(
            self.term if term is None else term, self._generation, shards, keys or {}, keep
        )
        await eventually(lambda: bool(self.links) and not self.links[-1].ended_why)
        await self.links[-1].send(assignment)
        return assignment

    async def ask(self, subject: str, **options: str) -> int:
        """Ask for a log; the answers arrive in `answers`, with the number returned."""
        number = next(self._numbers)
        await self.links[-1].send(Question(number, "logs", subject, options))
        return number

    async def cancel(self, number: int) -> None:
        """Take a question back."""
        await self.links[-1].send(Cancel(number))

    async def until(
        self,
        condition: Callable[[Report], bool],
        within_s: float = 10.0,
        saying: Callable[[], str] | None = None,
    ) -> Report:
        """Wait until a newest report fulfils a condition, and return it."""
        told = saying or (lambda: str(self.reports[-1].shards if self.reports else "no report"))
        await eventually(
            lambda: bool(self.reports) and condition(self.report), within_s=within_s, saying=told
        )
        return self.report

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeControl"]:
        """Serve while the block runs; the same port every time."""
        server = AgentServer(
            [f"127.0.0.1:{self.port}"],
            self._on_link,
            self._welcome,
            SystemClock(),
            ListenOptions(),
        )
        async with OwnedTasks("fake control", tasks_max=1) as tasks:
            serving = tasks.start(server.run(), "fake control")
            listening = server.listening.wait()
            async with asyncio.timeout(10):
                await listening
            self.port = server.ports[0]
            try:
                yield self
            finally:
                serving.cancel()
                self.links.clear()  # gRPC keeps its threads and descriptors while one is held

    def _welcome(self, hello: Hello) -> Welcome | Refusal:
        self.hellos.append(hello)
        if self.refusal:
            return Refusal(self.refusal)
        link = LinkId(f"{self.store}-{len(self.hellos)}")
        return Welcome(link, self.term, self.store, HEARTBEAT_S, SILENT_AFTER_S)

    async def _on_link(self, link: AgentLink) -> None:
        self.links.append(link)
        async for message in link:
            if isinstance(message, Report):
                self.reports.append(message)
            else:
                self.answers.append(message)
