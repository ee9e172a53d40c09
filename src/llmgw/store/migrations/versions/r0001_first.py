"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make them."""
    _wanted()
    _consumed()
    _belongs()


def _wanted() -> None:
    op.create_table(
        "catalogs",
        sa.Column("revision", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("saved_wall_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_catalogs"),
    )
    op.create_table(
        "placements",
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("replica", name="pk_placements"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("shown", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("expires_wall_s", sa.Double),
        sa.Column("created_wall_s", sa.Double, nullable=False),
        sa.Column("revoked_wall_s", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
    )


def _consumed() -> None:
    op.create_table(
        "usage",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("gateway", sa.Text, nullable=False),
        sa.Column("opened_wall_s", sa.Double, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
        sa.UniqueConstraint("request", name="uq_usage_request"),
    )
    op.create_index("ix_usage_opened_wall_s", "usage", ["opened_wall_s"])
    op.create_table(
        "events",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("at_wall_s", sa.Double, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("sequence", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("source", "sequence", name="uq_events_source_sequence"),
    )
    op.create_index("ix_events_subject_id", "events", ["subject", "id"])


def _belongs() -> None:
    op.create_table(
        "nodes",
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("first_seen_wall_s", sa.Double, nullable=False),
        sa.Column("seen_wall_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_nodes"),
        sa.UniqueConstraint("name", name="uq_nodes_name"),
    )
    op.create_table(
        "gateways",
        sa.Column("gateway", sa.Text, nullable=False),
        sa.Column("first_seen_wall_s", sa.Double, nullable=False),
        sa.Column("seen_wall_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("gateway", name="pk_gateways"),
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_facts"),
    )
    op.create_table(
        "lead",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lead"),
    )
