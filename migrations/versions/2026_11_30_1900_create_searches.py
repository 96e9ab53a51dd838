"""Create searches with their labels, trials and jobs; and API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_table(
        "searches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_searches_status_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_searches")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_searches_idempotency_key")),
    )
    op.create_index("ix_searches_created_at_id", "searches", ["created_at", "id"])
    op.create_index("ix_searches_finished_at", "searches", ["finished_at"])
    op.create_index("ix_searches_status_created_at_id", "searches", ["status", "created_at", "id"])

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("search_id", sa.String(length=36), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("schedule", sa.String(length=64), nullable=True),
        sa.Column("slot", sa.String(length=32), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_state_known")
        ),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_jobs_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("schedule", "slot", name=op.f("uq_jobs_schedule_slot")),
    )
    op.create_index("ix_jobs_search_id", "jobs", ["search_id"])
    op.create_index("ix_jobs_state_lease_until", "jobs", ["state", "lease_until"])

    op.create_table(
        "search_labels",
        sa.Column("search_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_search_labels_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "name", name=op.f("pk_search_labels")),
    )
    op.create_index("ix_search_labels_name_value", "search_labels", ["name", "value"])

    op.create_table(
        "trials",
        sa.Column("search_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_trials_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("pk_trials")),
    )


def downgrade() -> None:
    op.drop_table("trials")
    op.drop_table("search_labels")
    op.drop_table("jobs")
    op.drop_table("searches")
    op.drop_table("api_keys")
