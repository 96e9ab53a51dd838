"""Queries on the trials of measured searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.models import MeasuredTrial, Search


class MeasuredTrialRepository:
    """Trials in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lock(self, search_id: str) -> None:
        """Until the session ends nobody else gives out trials of this search (SQLite: writes at all)."""
        self._session.execute(select(Search.id).where(Search.id == search_id).with_for_update())

    def all(self, search_id: str) -> Sequence[MeasuredTrial]:
        """In the order of their numbers."""
        query = select(MeasuredTrial).where(MeasuredTrial.search_id == search_id)
        return self._session.scalars(query.order_by(MeasuredTrial.number)).all()

    def get(self, search_id: str, number: int) -> MeasuredTrial | None:
        """One of them."""
        return self._session.get(MeasuredTrial, (search_id, number))

    def add(self, trial: MeasuredTrial) -> None:
        """A trial that is given out."""
        self._session.add(trial)
        self._session.flush()

    def ask_again(self, trial: MeasuredTrial, *, now: datetime, lease_until: datetime) -> None:
        """Give a trial to another runner."""
        trial.asked_at, trial.lease_until, trial.times_asked = now, lease_until, trial.times_asked + 1

    def tell(
        self, search_id: str, number: int, outcome: Mapping[str, Any], *, told_at: datetime, run_id: str | None
    ) -> bool:
        """What its run gave; False where that was told before."""
        changed = self._session.execute(
            update(MeasuredTrial)
            .where(MeasuredTrial.search_id == search_id, MeasuredTrial.number == number)
            .where(MeasuredTrial.told_at.is_(None))
            .values(outcome=dict(outcome), told_at=told_at, run_id=run_id)
            .returning(MeasuredTrial.number)
        ).all()
        return len(changed) == 1
