"""Queries on API keys."""

from __future__ import annotations

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from app.db.models import ApiKey


class ApiKeyRepository:
    """API keys in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, key: ApiKey) -> None:
        """Insert a key."""
        self._session.add(key)
        self._session.flush()

    def by_prefix(self, prefix: str) -> ApiKey | None:
        """The key with a public prefix."""
        return self._session.scalar(select(ApiKey).where(ApiKey.prefix == prefix))

    def any(self) -> bool:
        """Whether there is a key at all."""
        return self._session.scalars(select(exists().where(ApiKey.id.is_not(None)))).one()
