"""Delta storage of spans, what lineage records beside it, and a policy's settings for both [I5].

Columns are added and dropped in place, not by copying tables: SQLite cannot drop a table that others refer to while
foreign keys are on. Policies that are there keep to what they did: observe. ``PUT /api/policies/ID`` changes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BLOBS = ("hub_hash", "hub_messages_delta", "hub_tools_hash")
COUNTS = ("shared_messages", "hub_shared_messages")
POLICY = {"mode": "observe", "history": "append_only", "untrainable": "serve"}
"""Column -> what it is for a policy that was there before."""


def upgrade() -> None:
    for name, value in POLICY.items():
        op.add_column("policies", sa.Column(name, sa.String(), nullable=False, server_default=value))
    for name in COUNTS:
        op.add_column("spans", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    for name in ("history_key", "fork_cause", "thread"):
        op.add_column("spans", sa.Column(name, sa.String(), nullable=True))
    op.add_column("spans", sa.Column("fork_token", sa.Integer(), nullable=True))
    for name in BLOBS:  # as text: Alembic adds no foreign key to a table of SQLite's without copying it
        key = f"CONSTRAINT fk_spans_{name}_blobs REFERENCES blobs (hash)"
        op.execute(f"ALTER TABLE spans ADD COLUMN {name} VARCHAR {key}")


def downgrade() -> None:
    """Spans stored as deltas stay as they are, and an older program reads only those that are whole."""
    for name in (*BLOBS, "fork_token", "thread", "fork_cause", "history_key", *COUNTS):
        op.drop_column("spans", name)
    for name in POLICY:
        op.drop_column("policies", name)
