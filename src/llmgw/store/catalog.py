"""The catalog: every revision that was saved, up to a bound; the newest is what is wanted."""

from dataclasses import replace
from typing import Final

from sqlalchemy import Row, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core import document
from llmgw.core.errors import ConflictError, NotFoundError
from llmgw.core.fleet.catalog import Catalog
from llmgw.store.database import Database
from llmgw.store.errors import StoreDamagedError
from llmgw.store.statements import reserve
from llmgw.store.tables import catalogs

REVISIONS_KEPT: Final = 100


class Catalogs:
    """Saves and reads catalogs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def current(self) -> Catalog:
        """Return the newest; an empty one with revision 0 where none was ever saved."""

        async def work(connection: AsyncConnection) -> Row[int, str] | None:
            newest = select(catalogs.c.revision, catalogs.c.document)
            newest = newest.order_by(catalogs.c.revision.desc()).limit(1)
            return (await connection.execute(newest)).one_or_none()

        row = await self._database.read(work)
        return Catalog() if row is None else self._load(*row)

    async def history(self, revision: int) -> Catalog:
        """Return an earlier one; raise NotFoundError where it is not kept."""

        async def work(connection: AsyncConnection) -> str | None:
            one = select(catalogs.c.document).where(catalogs.c.revision == revision)
            return (await connection.execute(one)).scalar_one_or_none()

        text = await self._database.read(work)
        if text is None:
            raise NotFoundError(
                f"there is no catalog revision {revision}; the last {REVISIONS_KEPT} are kept"
            )
        return self._load(revision, text)

    async def save(self, catalog: Catalog, base_revision: int | None, at_wall_s: float) -> Catalog:
        """Make `catalog` the newest and return it with its revision.

        Raises ConflictError if `base_revision` is not the newest any more; None replaces whatever
        is there.
        """

        async def work(connection: AsyncConnection) -> Catalog:
            await reserve(connection, catalogs)
            newest = await connection.scalar(select(func.max(catalogs.c.revision))) or 0
            if base_revision is not None and base_revision != newest:
                raise ConflictError(
                    f"the catalog has changed: this edit began at revision {base_revision}, the "
                    f"newest is {newest}; read it again and repeat the edit"
                )
            saved = replace(catalog, revision=newest + 1)
            row = {
                "revision": saved.revision,
                "saved_wall_s": at_wall_s,
                "document": document.dump(saved),
            }
            await connection.execute(insert(catalogs), row)
            old = catalogs.c.revision <= saved.revision - REVISIONS_KEPT
            await connection.execute(delete(catalogs).where(old))
            return saved

        return await self._database.write(work)

    def _load(self, revision: int, text: str) -> Catalog:
        try:
            return replace(document.load(Catalog, text), revision=revision)
        except document.InvalidDocumentError as error:
            raise StoreDamagedError(
                f"catalog revision {revision} in {self._database.place} cannot be read ({error}); "
                "apply the catalog anew"
            ) from error
