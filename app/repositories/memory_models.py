"""Queries on versions of what was learned. Reports come with a version, the model itself only as `artifact`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, aliased

from app.db.models import MemoryModel, ModelState

TRAINED = (ModelState.SERVING, ModelState.ARCHIVED, ModelState.KEPT)
"""Where a version stands whose training has ended with a model."""
KEPT_FOR_ROLLBACK = 10
"""Versions that served last, whatever their age."""


@dataclass(frozen=True)
class Artifact:
    """A stored model: bytes that are not to be trusted before their hash and their content are checked."""

    blob: bytes
    sha256: str


class MemoryModelRepository:
    """Versions in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, model: MemoryModel) -> None:
        """Insert a version."""
        self._session.add(model)
        self._session.flush()

    def get(self, version: int) -> MemoryModel | None:
        """A version with its report."""
        return self._session.get(MemoryModel, version)

    def page(self, *, limit: int, before: int | None) -> Sequence[MemoryModel]:
        """Newest first, older than the given version."""
        query = select(MemoryModel)
        if before is not None:
            query = query.where(MemoryModel.version < before)
        return self._session.scalars(query.order_by(MemoryModel.version.desc()).limit(limit)).all()

    def newest(self) -> MemoryModel | None:
        """The version that was asked for last."""
        return self._session.scalar(select(MemoryModel).order_by(MemoryModel.version.desc()).limit(1))

    def newest_trained(self) -> MemoryModel | None:
        """The newest version whose training ended with a model."""
        return self._session.scalar(
            select(MemoryModel).where(MemoryModel.state.in_(TRAINED)).order_by(MemoryModel.version.desc()).limit(1)
        )

    def queued_version(self) -> int | None:
        """The version whose training nobody has begun."""
        return self._session.scalar(select(MemoryModel.version).where(MemoryModel.state == ModelState.QUEUED))

    def running_version(self) -> int | None:
        """The version that is being trained."""
        return self._session.scalar(select(MemoryModel.version).where(MemoryModel.state == ModelState.RUNNING))

    def serving_version(self) -> int | None:
        """The number of the version that serves: a look into an index, cheap enough for each request."""
        return self._session.scalar(select(MemoryModel.version).where(MemoryModel.state == ModelState.SERVING))

    def archived_versions(self) -> Sequence[int]:
        """Versions that served before, the last one first."""
        return self._session.scalars(
            select(MemoryModel.version)
            .where(MemoryModel.state == ModelState.ARCHIVED)
            .order_by(MemoryModel.promoted_at.desc(), MemoryModel.version.desc())
        ).all()

    def artifact(self, version: int) -> Artifact | None:
        """The stored model of a version; None if there is none."""
        row = self._session.execute(
            select(MemoryModel.blob, MemoryModel.blob_sha256).where(MemoryModel.version == version)
        ).one_or_none()
        return None if row is None or row.blob is None else Artifact(row.blob, row.blob_sha256)

    def count_by_state(self) -> Mapping[ModelState, int]:
        """How many versions stand where."""
        rows = self._session.execute(select(MemoryModel.state, func.count()).group_by(MemoryModel.state)).all()
        return {ModelState(state): count for state, count in rows}

    def change(self, version: int, **values: Any) -> None:
        """Set columns of a version."""
        self._session.execute(update(MemoryModel).where(MemoryModel.version == version).values(**values))

    def lock(self) -> Sequence[int]:
        """Until the transaction ends nobody else changes which version serves; SQLite has one writer anyway. Answers
        the versions that could."""
        query = select(MemoryModel.version).where(MemoryModel.state.in_(TRAINED)).order_by(MemoryModel.version)
        return self._session.scalars(query.with_for_update()).all()

    def promote(self, version: int, *, at: datetime) -> None:
        """Let a version that exists serve instead of the one that does; `lock` must have been called."""
        self._session.execute(
            update(MemoryModel).where(MemoryModel.state == ModelState.SERVING).values(state=ModelState.ARCHIVED)
        )
        self.change(version, state=ModelState.SERVING, promoted_at=at)

    def purge(self, created_before: datetime) -> None:
        """Delete old versions that do not serve, nor are among those that served last; never the newest, whose number
        must not come again."""
        rollback = self.archived_versions()[:KEPT_FOR_ROLLBACK]
        self._session.execute(
            delete(MemoryModel).where(
                MemoryModel.created_at < created_before,
                MemoryModel.state.in_((ModelState.ARCHIVED, ModelState.KEPT, ModelState.FAILED)),
                MemoryModel.version.not_in(rollback),
                MemoryModel.version < select(func.max(aliased(MemoryModel).version)).scalar_subquery(),
            )
        )
