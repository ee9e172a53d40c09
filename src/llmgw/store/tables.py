"""The tables: documents as they are, and columns only for what the store itself looks at.

A change here needs a revision in `migrations.versions`; a test compares the two.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the column's type is exactly INTEGER.
ROW_ID: Final = BigInteger().with_variant(Integer(), "sqlite")

catalogs: Final = Table(
    "catalogs",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("saved_wall_s", Double, nullable=False),
    Column("document", Text, nullable=False),
)

placements: Final = Table(
    "placements",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("wanted", Text, nullable=False),
    Column("document", Text, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("shown", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("models", Text),
    Column("expires_wall_s", Double),
    Column("created_wall_s", Double, nullable=False),
    Column("revoked_wall_s", Double),
    UniqueConstraint("hash"),
)

usage: Final = Table(
    "usage",
    metadata,
    Column("id", ROW_ID, primary_key=True),
    Column("request", Text, nullable=False),
    Column("gateway", Text, nullable=False),
    Column("opened_wall_s", Double, nullable=False),
    Column("day", Integer, nullable=False),
    Column("account", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("request"),
    Index(None, "opened_wall_s"),
)

events: Final = Table(
    "events",
    metadata,
    Column("id", ROW_ID, primary_key=True),
    Column("at_wall_s", Double, nullable=False),
    Column("subject", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("source", Text),
    Column("sequence", BigInteger),
    UniqueConstraint("source", "sequence"),
    Index(None, "subject", "id"),
)

nodes: Final = Table(
    "nodes",
    metadata,
    Column("node", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("first_seen_wall_s", Double, nullable=False),
    Column("seen_wall_s", Double, nullable=False),
    UniqueConstraint("name"),
)

gateways: Final = Table(
    "gateways",
    metadata,
    Column("gateway", Text, primary_key=True),
    Column("first_seen_wall_s", Double, nullable=False),
    Column("seen_wall_s", Double, nullable=False),
)

facts: Final = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

lead: Final = Table(
    "lead",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
)
