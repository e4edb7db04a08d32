"""First tables: everything in ``spanlog.models`` as it stood at the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("codec", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_blobs")),
    )
    op.create_table(
        "policies",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("committed_version", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("sampling", Json, nullable=False),
        sa.Column("group_size", sa.Integer(), nullable=False),
        sa.Column("rollouts_per_step", sa.Integer(), nullable=False),
        sa.Column("max_staleness", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=True),
        sa.Column("payload", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_table(
        "engines",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("base_url", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("capabilities", Json, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_engines_policy_id_policies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engines")),
    )
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_engines_policy_id"), ["policy_id"], unique=False)

    op.create_table(
        "metrics",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_metrics_policy_id_policies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
    )
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_metrics_policy_id_name_step"), ["policy_id", "name", "step"], unique=False
        )

    op.create_table(
        "train_steps",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("checkpoint_path", sa.String(), nullable=True),
        sa.Column("void", sa.Boolean(), nullable=False),
        sa.Column("metrics", Json, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("committed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["policies.id"], name=op.f("fk_train_steps_policy_id_policies")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_train_steps")),
    )
    with op.batch_alter_table("train_steps", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_train_steps_policy_id"), ["policy_id"], unique=False)

    op.create_table(
        "engine_swaps",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("engine_id", sa.String(), nullable=False),
        sa.Column("old_version", sa.Integer(), nullable=True),
        sa.Column("new_version", sa.Integer(), nullable=False),
        sa.Column("begin_at", sa.Double(), nullable=False),
        sa.Column("end_at", sa.Double(), nullable=True),
        sa.Column("voided", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["engine_id"], ["engines.id"], name=op.f("fk_engine_swaps_engine_id_engines")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine_swaps")),
    )
    with op.batch_alter_table("engine_swaps", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_engine_swaps_engine_id_begin_at"), ["engine_id", "begin_at"], unique=False
        )

    op.create_table(
        "groups",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_fence", sa.Integer(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("step_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_groups_policy_id_policies")),
        sa.ForeignKeyConstraint(["step_id"], ["train_steps.id"], name=op.f("fk_groups_step_id_train_steps")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_groups_task_id_tasks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
    )
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_groups_policy_id_purpose_state_id"),
            ["policy_id", "purpose", "state", "id"],
            unique=False,
        )

    op.create_table(
        "policy_versions",
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("step_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("published_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["policies.id"], name=op.f("fk_policy_versions_policy_id_policies")
        ),
        sa.ForeignKeyConstraint(
            ["step_id"], ["train_steps.id"], name=op.f("fk_policy_versions_step_id_train_steps")
        ),
        sa.PrimaryKeyConstraint("policy_id", "version", name=op.f("pk_policy_versions")),
    )
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("harness", sa.String(), nullable=True),
        sa.Column("runner", sa.String(), nullable=True),
        sa.Column("reward_state", sa.String(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("info", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("heartbeat_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_rollouts_group_id_groups")),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_rollouts_policy_id_policies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rollouts_group_id"), ["group_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_rollouts_state"), ["state"], unique=False)

    op.create_table(
        "keys",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=True),
        sa.Column("label", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_keys_rollout_id_rollouts")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_keys")),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_rollout_id"), ["rollout_id"], unique=False)

    op.create_table(
        "spans",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("engine_id", sa.String(), nullable=True),
        sa.Column("dialect", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("delivery", sa.String(), nullable=False),
        sa.Column("trainable", sa.Boolean(), nullable=False),
        sa.Column("untrainable_reason", sa.String(), nullable=True),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("shared_tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.LargeBinary(), nullable=True),
        sa.Column("completion_tokens", sa.LargeBinary(), nullable=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("version_low", sa.LargeBinary(), nullable=True),
        sa.Column("version_high", sa.LargeBinary(), nullable=True),
        sa.Column("oldest_version", sa.Integer(), nullable=True),
        sa.Column("prompt_count", sa.Integer(), nullable=False),
        sa.Column("completion_count", sa.Integer(), nullable=False),
        sa.Column("request_hash", sa.String(), nullable=True),
        sa.Column("reply_hash", sa.String(), nullable=True),
        sa.Column("messages_delta", sa.String(), nullable=True),
        sa.Column("tools_hash", sa.String(), nullable=True),
        sa.Column("context_hash", sa.String(), nullable=True),
        sa.Column("sampling", Json, nullable=False),
        sa.Column("stripped", Json, nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=True),
        sa.Column("stop_reason", sa.String(), nullable=True),
        sa.Column("upstream_id", sa.String(), nullable=True),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("error", Json, nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("first_token_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["messages_delta"], ["blobs.hash"], name=op.f("fk_spans_messages_delta_blobs")
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["spans.id"], name=op.f("fk_spans_parent_id_spans")),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_spans_policy_id_policies")),
        sa.ForeignKeyConstraint(["reply_hash"], ["blobs.hash"], name=op.f("fk_spans_reply_hash_blobs")),
        sa.ForeignKeyConstraint(["request_hash"], ["blobs.hash"], name=op.f("fk_spans_request_hash_blobs")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_spans_rollout_id_rollouts")),
        sa.ForeignKeyConstraint(["tools_hash"], ["blobs.hash"], name=op.f("fk_spans_tools_hash_blobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spans")),
    )
    with op.batch_alter_table("spans", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_spans_rollout_id_context_hash"), ["rollout_id", "context_hash"], unique=False
        )

    op.create_table(
        "train_samples",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("step_id", sa.String(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("span_ids", Json, nullable=False),
        sa.Column("builder", sa.String(), nullable=False),
        sa.Column("config_hash", sa.String(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("target_count", sa.Integer(), nullable=False),
        sa.Column("advantage", sa.Double(), nullable=False),
        sa.Column("oldest_version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.id"], name=op.f("fk_train_samples_rollout_id_rollouts")
        ),
        sa.ForeignKeyConstraint(
            ["step_id"], ["train_steps.id"], name=op.f("fk_train_samples_step_id_train_steps")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_train_samples")),
    )
    with op.batch_alter_table("train_samples", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_train_samples_rollout_id"), ["rollout_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_train_samples_step_id"), ["step_id"], unique=False)

    op.create_table(
        "rewards",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("span_id", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("after_consumption", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rewards_rollout_id_rollouts")),
        sa.ForeignKeyConstraint(["span_id"], ["spans.id"], name=op.f("fk_rewards_span_id_spans")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rewards")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_rewards_idempotency_key")),
    )
    with op.batch_alter_table("rewards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rewards_rollout_id"), ["rollout_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("rewards", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_rewards_rollout_id"))

    op.drop_table("rewards")
    with op.batch_alter_table("train_samples", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_train_samples_step_id"))
        batch_op.drop_index(batch_op.f("ix_train_samples_rollout_id"))

    op.drop_table("train_samples")
    with op.batch_alter_table("spans", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_spans_rollout_id_context_hash"))

    op.drop_table("spans")
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_keys_rollout_id"))

    op.drop_table("keys")
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_rollouts_state"))
        batch_op.drop_index(batch_op.f("ix_rollouts_group_id"))

    op.drop_table("rollouts")
    op.drop_table("policy_versions")
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_groups_policy_id_purpose_state_id"))

    op.drop_table("groups")
    with op.batch_alter_table("engine_swaps", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_engine_swaps_engine_id_begin_at"))

    op.drop_table("engine_swaps")
    with op.batch_alter_table("train_steps", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_train_steps_policy_id"))

    op.drop_table("train_steps")
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_metrics_policy_id_name_step"))

    op.drop_table("metrics")
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_engines_policy_id"))

    op.drop_table("engines")
    op.drop_table("tasks")
    op.drop_table("policies")
    op.drop_table("blobs")
