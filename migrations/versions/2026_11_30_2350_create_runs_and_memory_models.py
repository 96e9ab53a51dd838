"""Create measured runs and versions of what is learned from them; jobs that train."""

from contextlib import AbstractContextManager

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("content_sha256", sa.String(length=64), nullable=False),
        sa.Column("record", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("source", sa.String(length=256), nullable=True),
        sa.Column("framework", sa.String(length=32), nullable=False),
        sa.Column("gpu", sa.String(length=256), nullable=False),
        sa.Column("cluster", sa.String(length=512), nullable=False),
        sa.Column("family", sa.String(length=256), nullable=True),
        sa.Column("out_of_memory", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("key", name=op.f("uq_runs_key")),
    )
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"])
    for column in ("source", "framework", "gpu", "cluster"):
        op.create_index(f"ix_runs_{column}_created_at_id", "runs", [column, "created_at", "id"])

    op.create_table(
        "memory_models",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("trigger", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trained_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("promoted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("runs", sa.Integer(), nullable=True),
        sa.Column("last_run_id", sa.String(length=36), nullable=True),
        sa.Column("runs_sha256", sa.String(length=64), nullable=True),
        sa.Column("schema", sa.String(length=64), nullable=True),
        sa.Column("libraries", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("decision", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("blob", sa.LargeBinary(), nullable=True),
        sa.Column("blob_sha256", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'serving', 'archived', 'kept', 'failed')",
            name=op.f("ck_memory_models_state_known"),
        ),
        sa.CheckConstraint(
            "trigger IN ('first_start', 'schedule', 'new_runs', 'request', 'command')",
            name=op.f("ck_memory_models_trigger_known"),
        ),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_memory_models")),
    )
    _unique_where("uq_memory_models_serving", "memory_models", "state", "state = 'serving'")

    op.add_column("searches", sa.Column("memory_model_version", sa.Integer(), nullable=True))
    with _jobs() as jobs:
        jobs.add_column(sa.Column("memory_model_version", sa.Integer(), nullable=True))
        jobs.create_foreign_key(
            op.f("fk_jobs_memory_model_version_memory_models"),
            "memory_models",
            ["memory_model_version"],
            ["version"],
            ondelete="CASCADE",
        )
    op.create_index("ix_jobs_memory_model_version", "jobs", ["memory_model_version"])
    for state in ("queued", "running"):
        _unique_where(f"uq_jobs_retrain_{state}", "jobs", "kind", f"kind = 'retrain' AND state = '{state}'")


def downgrade() -> None:
    for index in ("uq_jobs_retrain_queued", "uq_jobs_retrain_running", "ix_jobs_memory_model_version"):
        op.drop_index(index, "jobs")
    # A job that trains means nothing to the schema before, and its worker would not know the kind.
    op.execute("DELETE FROM jobs WHERE kind = 'retrain'")
    with _jobs() as jobs:
        jobs.drop_constraint(op.f("fk_jobs_memory_model_version_memory_models"), type_="foreignkey")
        jobs.drop_column("memory_model_version")
    op.drop_column("searches", "memory_model_version")
    op.drop_table("memory_models")
    op.drop_table("runs")


def _jobs() -> AbstractContextManager[BatchOperations]:
    # SQLite changes a foreign key by a copy of the table, and does not tell Alembic of checks.
    state_known = sa.CheckConstraint(
        "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_state_known")
    )
    return op.batch_alter_table("jobs", table_args=(state_known,))


def _unique_where(name: str, table: str, column: str, condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, [column], unique=True, sqlite_where=where, postgresql_where=where)
