"""The term: which leader's writes count. Every write of a leader asks for it in its transaction."""

from typing import Final

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.store.errors import StaleTermError
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import lead

ROW: Final = 1
NOBODY: Final = ""


async def current(connection: AsyncConnection) -> int:
    """Return the store's term; 0 before the first leader."""
    return await connection.scalar(select(lead.c.term).where(lead.c.id == ROW)) or 0


async def require(connection: AsyncConnection, term: int) -> None:
    """Raise StaleTermError unless `term` is the store's, and keep it so until the commit."""
    held = select(lead.c.term).where(lead.c.id == ROW).with_for_update(read=True)
    found = await connection.scalar(held) or 0
    if found != term:
        raise StaleTermError(term, found)


async def make_row(connection: AsyncConnection) -> None:
    """Insert the one row if it is absent."""
    row = {"id": ROW, "term": 0, "beat": 0, "holder": NOBODY}
    await connection.execute(insert_if_absent(connection, lead), row)


async def move(connection: AsyncConnection, old: int, new: int, holder: str) -> bool:
    """Raise the term from `old` to `new` for `holder`; False if it is not `old` any more."""
    mine = (lead.c.id == ROW) & (lead.c.term == old)
    moved = update(lead).where(mine).values(term=new, beat=0, holder=holder)
    return (await connection.execute(moved)).rowcount == 1
