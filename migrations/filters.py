"""Which tables are ours."""

from app.db import models  # noqa: F401  (fills the metadata)
from app.db.base import Base


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Only our own tables: the queue and Optuna may keep theirs in the same database."""
    return kind != "table" or name in Base.metadata.tables
