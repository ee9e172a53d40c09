"""Which nodes belong: let in when they attach, remembered by the store, removed by an operator.

An agent is answered at once, from what is known in memory; the store is asked right after, and has
the last word. Reads and writes of the list take turns, so that no older list hides a newer node.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from llmgw.control.messages import GatewaysBelong, NodesBelong
from llmgw.control.ports import StorePort, Tell
from llmgw.core.errors import NotFoundError, StorageError
from llmgw.core.ids import NodeId
from llmgw.runtime.clock import Clock
from llmgw.store.nodes import Node, Refused, admit
from llmgw.wire.messages import Hello

logger = logging.getLogger(__name__)


Door = Callable[[NodeId, str], str]
"""Says why a node with this id and name may not attach at all; empty if it may."""


def always_open(_node: NodeId, _name: str) -> str:
    """Let every node attach."""
    return ""


class Registry:
    """The one who reads and writes the lists of nodes and gateways."""

    def __init__(
        self, store: StorePort, tell: Tell, clock: Clock, door: Door = always_open
    ) -> None:
        self._store = store
        self._tell = tell
        self._door = door
        self._clock = clock
        self._turn = asyncio.Lock()
        self._nodes: dict[NodeId, Node] = {}

    @property
    def nodes(self) -> dict[NodeId, Node]:
        """Those that belong, as last read."""
        return dict(self._nodes)

    async def refresh(self) -> None:
        """Read both lists anew."""
        async with self._turn:
            self._nodes = {node.node: node for node in await self._store.nodes.all()}
            self._tell_nodes()
            gateways = await self._store.gateways.all()
            self._tell(GatewaysBelong(frozenset(one.gateway for one in gateways)))

    def refusal(self, hello: Hello) -> str:
        """Say why this node may not attach, as far as memory tells; empty if it may."""
        if why := self._door(hello.node, hello.name):
            return why
        known = [node for node in self._nodes.values() if node.seen_wall_s > 0.0]
        answer = admit(known, hello.node, hello.name, hello.machine, self._clock.wall_s())
        return answer.why if isinstance(answer, Refused) else ""

    async def let_in(self, hello: Hello) -> str:
        """Note in the store that a node is here; return why it may not be, or nothing."""
        async with self._turn:
            try:
                answer = await self._store.nodes.seen(
                    hello.node, hello.name, hello.machine, self._clock.wall_s()
                )
            except StorageError as error:
                if hello.node not in self._nodes:
                    return f"this control plane cannot note a new node now: {error}"
                logger.warning("node %s could not be noted: %s", hello.name, error)
                return ""
            if isinstance(answer, Refused):
                return answer.why
            listed_as = {id_ for id_ in (answer.name,) if id_ != answer.node}
            self._nodes = {id_: n for id_, n in self._nodes.items() if id_ not in listed_as}
            self._nodes[answer.node] = answer
            self._tell_nodes()
            return ""

    async def remove(self, node: NodeId) -> Node | None:
        """Let a node belong no more and return what it was; raise NotFoundError if it did not."""
        async with self._turn:
            await self._store.nodes.remove(node)
            gone = self._nodes.pop(node, None)
            self._tell_nodes()
            return gone

    async def forget_gateways(self, gateways: Iterable[str]) -> None:
        """Let gateways belong no more that were away for too long: drains wait for those there."""
        async with self._turn:
            for gateway in gateways:
                with contextlib.suppress(NotFoundError):
                    await self._store.gateways.remove(gateway)
            left = await self._store.gateways.all()
            self._tell(GatewaysBelong(frozenset(one.gateway for one in left)))

    def _tell_nodes(self) -> None:
        self._tell(NodesBelong({id_: node.name for id_, node in self._nodes.items()}))
