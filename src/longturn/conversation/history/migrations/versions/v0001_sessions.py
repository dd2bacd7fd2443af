"""Sessions, their entries, and the requests that were made for them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "longturn_sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("policy", sa.Text),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("updated", sa.Float(53), nullable=False),
        sa.Column("parent", sa.Text, sa.ForeignKey("longturn_sessions.id")),
        sa.Column("fork", sa.Integer),
        sa.Column("entries", sa.Integer, nullable=False),
    )
    op.create_table(
        "longturn_entries",
        sa.Column("id", number, primary_key=True),
        sa.Column("session", sa.Text, sa.ForeignKey("longturn_sessions.id"), nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("checksum", sa.Text, nullable=False),
        sa.UniqueConstraint("session", "seq", name="longturn_entries_by_seq"),
    )
    op.create_table(
        "longturn_requests",
        sa.Column("id", number, primary_key=True),
        sa.Column("session", sa.Text, sa.ForeignKey("longturn_sessions.id"), nullable=False),
        sa.Column("entries", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("checksum", sa.Text, nullable=False),
    )
    op.create_index("longturn_requests_by_session", "longturn_requests", ["session"])
