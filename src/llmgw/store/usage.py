"""The ledger: one row per request, however often its record arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Row, Select, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core import document
from llmgw.core.traffic.usage import Usage
from llmgw.store.database import Database
from llmgw.store.errors import StoreDamagedError
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import usage

PAGE_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 200
TOKENS_MAX: Final = 2**53
DAY_S: Final = 86_400
WALL_S_MAX: Final = 2.0**40
"""Some 35,000 years on: what lies beyond is not a time."""


class By(StrEnum):
    """What totals may be split by."""

    ACCOUNT = "account"
    KEY = "key"
    MODEL = "model"
    DAY = "day"


_COLUMNS: Final = {
    By.ACCOUNT: usage.c.account,
    By.KEY: usage.c.key_id,
    By.MODEL: usage.c.model,
    By.DAY: usage.c.day,
}


@dataclass(frozen=True, slots=True)
class Total:
    """A sum; what it is not split by is None."""

    account: str | None
    key: str | None
    model: str | None
    day: int | None
    """Days since 1970-01-01, UTC."""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: int
    """How many of the requests were counted from what passed, since the engine did not say."""


@dataclass(frozen=True, slots=True)
class Booked:
    """One record with its place in the ledger."""

    id: int
    gateway: str
    usage: Usage


class Ledger:
    """Books usage and sums it up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, records: Sequence[Usage], gateway: str) -> int:
        """Book all records in one transaction and return how many were new."""
        rows = [_row(record, gateway) for record in records]

        async def work(connection: AsyncConnection) -> int:
            statement = insert_if_absent(connection, usage).returning(usage.c.request)
            return len((await connection.execute(statement, rows)).all())

        return await self._database.write(work) if rows else 0

    async def totals(
        self, since_wall_s: float, until_wall_s: float, by: Sequence[By] = ()
    ) -> tuple[Total, ...]:
        """Sum up what was opened from `since` on and before `until`, split and sorted by `by`."""
        query = _sums(by).where(usage.c.opened_wall_s >= since_wall_s)
        query = query.where(usage.c.opened_wall_s < until_wall_s)

        async def work(connection: AsyncConnection) -> tuple[Total, ...]:
            return tuple(_total(row, by) for row in (await connection.execute(query)).all())

        # Without GROUP BY there is always one row, of zeros where nothing was used.
        return await self._database.read(work)

    async def read(self, after: int = 0, limit: int = 100) -> tuple[Booked, ...]:
        """Return up to `limit` records, in the order of their booking, after the one with an id."""
        query = select(usage.c.id, usage.c.gateway, usage.c.document).where(usage.c.id > after)
        query = query.order_by(usage.c.id).limit(min(limit, PAGE_MAX))

        async def work(connection: AsyncConnection) -> Sequence[Row[int, str, str]]:
            return (await connection.execute(query)).all()

        rows = await self._database.read(work)
        return tuple(Booked(id_, gateway, self._load(id_, text)) for id_, gateway, text in rows)

    def _load(self, id_: int, text: str) -> Usage:
        try:
            return document.load(Usage, text)
        except document.InvalidDocumentError as error:
            raise StoreDamagedError(
                f"usage record {id_} in {self._database.place} cannot be read ({error}); its sums "
                "still count, read on after it"
            ) from error


def _sums(by: Sequence[By]) -> Select[Any]:
    columns = [_COLUMNS[one].label(one.value) for one in by]
    sums = [
        func.count().label("requests"),
        *(
            func.coalesce(func.sum(column), 0).label(column.name)
            for column in (usage.c.prompt_tokens, usage.c.completion_tokens, usage.c.cached_tokens)
        ),
        func.coalesce(func.sum(case((usage.c.estimated, 1), else_=0)), 0).label("estimated"),
    ]
    return select(*columns, *sums).group_by(*columns).order_by(*columns)


def _total(row: Row[*tuple[Any, ...]], by: Sequence[By]) -> Total:
    values = row._mapping  # SQLAlchemy's public way to a row as a mapping
    return Total(
        account=values[By.ACCOUNT.value] if By.ACCOUNT in by else None,
        key=values[By.KEY.value] if By.KEY in by else None,
        model=values[By.MODEL.value] if By.MODEL in by else None,
        day=values[By.DAY.value] if By.DAY in by else None,
        requests=values["requests"],
        prompt_tokens=int(values["prompt_tokens"]),
        completion_tokens=int(values["completion_tokens"]),
        cached_tokens=int(values["cached_tokens"]),
        estimated=int(values["estimated"]),
    )


def _row(record: Usage, gateway: str) -> dict[str, object]:
    opened_wall_s = max(0.0, min(record.opened_wall_s, WALL_S_MAX))
    return {
        "request": record.request,
        "gateway": gateway,
        "opened_wall_s": opened_wall_s,
        "day": int(opened_wall_s // DAY_S),
        "account": _name(record.account),
        "key_id": _name(record.key),
        "model": _name(record.model),
        "prompt_tokens": _tokens(record.prompt_tokens),
        "completion_tokens": _tokens(record.completion_tokens),
        "cached_tokens": _tokens(record.cached_tokens),
        "estimated": record.estimated,
        "document": document.dump(record),
    }


# Clients name models, engines count tokens and clocks jump: whatever they say has to fit, or one
# record would hold up all that are booked with it. The document keeps what was really said.
def _name(text: str) -> str:
    return text.replace("\0", "\ufffd")[:NAME_CHARS_MAX]


def _tokens(count: int) -> int:
    return max(0, min(count, TOKENS_MAX))
