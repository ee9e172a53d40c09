"""The control plane's end of agents' links: admission, assignments down, reports and answers up."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.control.messages import NodeAttached, NodeLeft, NodeReported
from llmgw.control.ports import Entropy, NodeLink, Tell
from llmgw.control.registry import Registry
from llmgw.control.together import until_first
from llmgw.core.errors import NoCapacityError, NodeUnreachableError, UpstreamFailedError
from llmgw.core.fleet.assignment import TERM_BELIEVED_MAX, Assignment
from llmgw.core.fleet.report import Report
from llmgw.core.ids import ID_BYTES, LinkId, NodeId, id_from
from llmgw.wire.errors import LinkLostError, UnsendableError
from llmgw.wire.messages import (
    Answer,
    Cancel,
    GatewayHello,
    Hello,
    Question,
    QuestionKind,
    Refusal,
    Welcome,
)

logger = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 32
"""Asked of one node at once."""
ANSWERS_MAX: Final = 64
"""Parts of one answer that wait for their reader; beyond it the question is given up."""
ANSWER_S_MAX: Final = 10.0
"""To an answer's first part, and between parts where no following was asked for."""
RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class About:
    """What a Welcome says of this control plane."""

    store: str
    heartbeat_s: float = 2.0
    silent_after_s: float = 10.0
    ledger: bool = True
    """Whether usage is stored."""


@dataclass(slots=True)
class _Peer:
    """One agent's link, with what waits to be sent and who waits for answers."""

    link: NodeLink
    assignment: Assignment | None = None
    """The newest that is not sent yet; it replaces an older one."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    questions: dict[int, "asyncio.Queue[Answer]"] = field(default_factory=dict)


class AgentLinks:
    """Serves the links of all agents."""

    def __init__(
        self,
        about: About,
        registry: Registry,
        term: Callable[[], int],
        tell: Tell,
        entropy: Entropy,
    ) -> None:
        self._about = about
        self._registry = registry
        self._term = term
        self._tell = tell
        self._entropy = entropy
        self._peers: dict[LinkId, _Peer] = {}
        self._node_links: dict[NodeId, LinkId] = {}
        self._asked = 0
        self.assignments_sent = 0
        self.claims: dict[NodeId, str] = {}
        """Nodes that came from another store's leader, with that store's id."""

    def welcome(self, hello: Hello) -> Welcome | Refusal:
        """Answer an agent that attaches."""
        if why := self._registry.refusal(hello) or self._unbelievable(hello.term, "agent"):
            return Refusal(why)
        return self._welcome()

    def welcome_gateway(self, hello: GatewayHello) -> Welcome | Refusal:
        """Answer a gateway that attaches."""
        if why := self._unbelievable(hello.term, "gateway"):
            return Refusal(why)
        return self._welcome()

    def _unbelievable(self, term: int, whose: str) -> str:
        if term <= max(TERM_BELIEVED_MAX, self._term()):
            return ""
        return (
            f"this {whose} says that it has obeyed term {term}, which no control plane can have "
            "reached: its state directory is broken; stop it, restore the directory or start with "
            "an empty one"
        )

    def _welcome(self) -> Welcome:
        about = self._about
        link = LinkId(id_from(self._entropy(ID_BYTES)))
        return Welcome(
            link,
            self._term(),
            about.store,
            about.heartbeat_s,
            about.silent_after_s,
            ledger=about.ledger,
        )

    async def on_link(self, link: NodeLink) -> None:
        """Serve one agent until its link ends."""
        hello = link.peer
        if why := await self._registry.let_in(hello):
            link.end(why)
            return
        self._note_claim(hello)
        peer = _Peer(link)
        self._peers[link.id] = peer
        self._node_links[hello.node] = link.id
        self._tell(NodeAttached(link.id, hello.node, hello.name, hello.term))
        try:
            await until_first(self._receive(peer), self._send(peer))
        except* LinkLostError:
            pass  # said by the link itself
        finally:
            del self._peers[link.id]
            if self._node_links.get(hello.node) == link.id:
                del self._node_links[hello.node]
            self._give_up_questions(peer)
            self._tell(NodeLeft(link.id, link.ended_why))

    def _note_claim(self, hello: Hello) -> None:
        if hello.store and hello.store != self._about.store:
            self.claims[hello.node] = hello.store
            logger.warning(
                "node %s has obeyed the leader of another store, %s; two control planes that claim "
                "one node are an error: stop one of them, or detach the node from it",
                hello.name,
                hello.store,
            )
        else:
            self.claims.pop(hello.node, None)

    # -- assignments

    def assign(self, link: LinkId, assignment: Assignment) -> None:
        """Send an assignment as soon as the link takes it; a newer one replaces it till then."""
        peer = self._peers.get(link)
        if peer is not None:
            peer.assignment = assignment
            peer.wake.set()

    async def _send(self, peer: _Peer) -> None:
        while True:
            await peer.wake.wait()
            peer.wake.clear()
            assignment, peer.assignment = peer.assignment, None
            if assignment is None:
                continue
            try:
                await peer.link.send(assignment)
                self.assignments_sent += 1
            except UnsendableError as error:
                logger.warning("node %s cannot be assigned: %s", peer.link.peer.name, error)

    async def _receive(self, peer: _Peer) -> None:
        async for message in peer.link:
            match message:
                case Report():
                    self._report(peer.link, message)
                case Answer():
                    self._answered(peer, message)

    def _report(self, link: NodeLink, report: Report) -> None:
        if report.inventory.node != link.peer.node:
            link.end(f"it attached as {link.peer.node} and reports as {report.inventory.node}")
            return
        self._tell(NodeReported(link.id, report))

    # -- questions

    def logs(
        self, node: NodeId, shard: str, lines: int, *, follow: bool
    ) -> AsyncGenerator[Answer, None]:
        """Ask a node for a shard's last lines, and, to follow, for those to come; see `ask`."""
        options = {"lines": str(lines), "follow": "1" if follow else "0"}
        return self.ask(node, QuestionKind.LOGS, shard, options, endless=follow)

    async def ask(
        self,
        node: NodeId,
        kind: QuestionKind,
        subject: str,
        options: Mapping[str, str],
        *,
        endless: bool = False,
    ) -> AsyncGenerator[Answer, None]:
        """Ask a node a question and yield the parts of its answer; each wait is bounded.

        Whoever stops reading closes the generator, which tells the node. Raises
        NodeUnreachableError where the node is not linked, UpstreamFailedError where its answer
        does not come or is an error.
        """
        known = self._registry.nodes.get(node)
        name = known.name if known else node
        link_id = self._node_links.get(node)
        if link_id is None:
            raise NodeUnreachableError(f"node {name} is not connected; its agent may be stopped")
        peer = self._peers[link_id]
        if len(peer.questions) >= QUESTIONS_MAX:
            raise NoCapacityError(f"node {name} is asked {QUESTIONS_MAX} things already", RETRY_S)
        self._asked += 1
        number = self._asked
        answers = peer.questions[number] = asyncio.Queue(ANSWERS_MAX)
        try:
            await peer.link.send(Question(number, kind, subject, options))
            waits_s: float | None = ANSWER_S_MAX
            while True:
                answer = await _next(answers, waits_s, name)
                waits_s = None if endless else ANSWER_S_MAX
                if answer.error:
                    raise UpstreamFailedError(f"node {name} answers: {answer.error}")
                yield answer
                if answer.last:
                    return
        finally:
            unanswered = peer.questions.pop(number, None) is not None
            if unanswered and not peer.link.ended_why:
                await self._cancel(peer, number)

    async def _cancel(self, peer: _Peer, number: int) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                await peer.link.send(Cancel(number))
        except (LinkLostError, TimeoutError):
            pass  # a question ends with its link

    def _answered(self, peer: _Peer, answer: Answer) -> None:
        answers = peer.questions.get(answer.id)
        if answers is None:
            return  # given up; its Cancel is on the way
        if answers.full():
            # The reader is too slow, and reports must not wait for it.
            answers.get_nowait()
            answers.put_nowait(Answer(answer.id, last=True, error="its reader is too slow"))
            return
        answers.put_nowait(answer)
        if answer.last:
            del peer.questions[answer.id]

    def _give_up_questions(self, peer: _Peer) -> None:
        why = f"its link ended: {peer.link.ended_why}"
        for number, answers in peer.questions.items():
            if answers.full():
                answers.get_nowait()
            answers.put_nowait(Answer(number, last=True, error=why))
        peer.questions.clear()


async def _next(answers: "asyncio.Queue[Answer]", s_max: float | None, node: str) -> Answer:
    try:
        async with asyncio.timeout(s_max):
            return await answers.get()
    except TimeoutError:
        raise UpstreamFailedError(
            f"node {node} has not answered for {s_max:g} s; look at its agent's log"
        ) from None
