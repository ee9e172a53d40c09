"""Which nodes belong, and who may not: a copied disk, a second host of the same name."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import NotFoundError
from llmgw.core.ids import NodeId
from llmgw.store.database import Database
from llmgw.store.statements import reserve, upsert
from llmgw.store.tables import nodes


@dataclass(frozen=True, slots=True)
class Node:
    """One that belongs."""

    node: NodeId
    name: str
    machine: str
    """The machine id that it came with first."""
    first_seen_wall_s: float
    seen_wall_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a node is not let in."""

    why: str


def admit(
    known: Iterable[Node], node: NodeId, name: str, machine: str, at_wall_s: float
) -> Node | Refused:
    """Return the node as it belongs from now on, or why it does not. Pure."""
    itself = None
    for other in known:
        if other.node == node:
            itself = other
        elif other.name == name:
            return Refused(
                f"another node is called {name}: {other.node} on machine {other.machine}, this is "
                f"{node} on machine {machine}; give this one another name, or, if it replaces that "
                f"one, remove {other.node} first"
            )
    if itself is None:
        return Node(node, name, machine, at_wall_s, at_wall_s)
    if itself.machine != machine:
        return Refused(
            f"node {node} ({itself.name}) belongs to machine {itself.machine}, this is machine "
            f"{machine}: a copied disk; delete the node id in this agent's state directory, or, if "
            f"the host's machine id was made anew, remove {node} first"
        )
    return Node(node, name, machine, itself.first_seen_wall_s, at_wall_s)


class Nodes:
    """Lets nodes in and lists them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def seen(self, node: NodeId, name: str, machine: str, at_wall_s: float) -> Node | Refused:
        """Let a node in, or note that it was here, perhaps under a new name; or say why not."""
        near = select(nodes).where(or_(nodes.c.node == node, nodes.c.name == name))

        async def work(connection: AsyncConnection) -> Node | Refused:
            await reserve(connection, nodes)
            known = [_node(*row) for row in (await connection.execute(near)).all()]
            answer = admit(known, node, name, machine, at_wall_s)
            if isinstance(answer, Node):
                await connection.execute(upsert(connection, nodes), _row(answer))
            return answer

        return await self._database.write(work)

    async def all(self) -> tuple[Node, ...]:
        """Return those that belong, by name."""

        async def work(connection: AsyncConnection) -> tuple[Node, ...]:
            rows = (await connection.execute(select(nodes).order_by(nodes.c.name))).all()
            return tuple(_node(*row) for row in rows)

        return await self._database.read(work)

    async def remove(self, node: NodeId) -> None:
        """Let a node belong no more; raise NotFoundError if it did not."""

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(delete(nodes).where(nodes.c.node == node))).rowcount

        if await self._database.write(work) == 0:
            raise NotFoundError(f"there is no node {node}; `llmgw ctl nodes` lists them")


def _node(node: str, name: str, machine: str, first_seen_wall_s: float, seen_wall_s: float) -> Node:
    return Node(NodeId(node), name, machine, first_seen_wall_s, seen_wall_s)


def _row(node: Node) -> dict[str, object]:
    return {
        "node": node.node,
        "name": node.name,
        "machine": node.machine,
        "first_seen_wall_s": node.first_seen_wall_s,
        "seen_wall_s": node.seen_wall_s,
    }
