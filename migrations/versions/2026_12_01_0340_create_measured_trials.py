"""Create the trials of measured searches; those of the study are renamed: Optuna's storage has a table `trials`."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Of Optuna 5 (optuna.storages, RDB), each before those that it refers to.
OPTUNA_TABLES = (
    "trial_heartbeats",
    "trial_intermediate_values",
    "trial_values",
    "trial_params",
    "trial_system_attributes",
    "trial_user_attributes",
    "trials",
    "study_system_attributes",
    "study_user_attributes",
    "study_directions",
    "studies",
    "version_info",
    "alembic_version",
)


def upgrade() -> None:
    _move_trials("trials", "search_trials")
    op.create_table(
        "measured_trials",
        sa.Column("search_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("candidate", sa.Integer(), nullable=False),
        sa.Column("estimate", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("times_asked", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_measured_trials_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("pk_measured_trials")),
        sa.UniqueConstraint("search_id", "candidate", name=op.f("uq_measured_trials_search_id_candidate")),
    )


def downgrade() -> None:
    op.drop_table("measured_trials")
    # Studies of measured searches mean nothing to the schema before, and one of their tables has the name of ours.
    for table in OPTUNA_TABLES:
        op.drop_table(table, if_exists=True)
    _move_trials("search_trials", "trials")


def _move_trials(old: str, new: str) -> None:
    # Not renamed: constraints would keep their names, which SQLite cannot change.
    op.create_table(
        new,
        sa.Column("search_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f(f"fk_{new}_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f(f"pk_{new}")),
    )
    op.execute(f"INSERT INTO {new} (search_id, number, body) SELECT search_id, number, body FROM {old}")
    op.drop_table(old)
