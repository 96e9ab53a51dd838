"""What every table shares: the declarative base, constraint names, UTC timestamps and time-ordered ids."""

from __future__ import annotations

import re
import secrets
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import JSON, DateTime, Dialect, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

# Explicit names, so that a migration can drop on SQLite what PostgreSQL would have named by itself.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware timestamp in UTC on both engines; SQLite stores no zone, so it is put back when reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Refuse naive timestamps; convert the others to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a timestamp without a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Give the stored timestamp its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Root of the tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {  # noqa: RUF012 (declared so by SQLAlchemy)
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


IDENTIFIER: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""An id as `new_id` makes them."""


def new_id() -> str:
    """A UUID of version 7: milliseconds (48 bits), then random bits, so ids sort by creation. Source: RFC 9562 §5.7."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """Ids that sort in the order in which they are given out, though all are of one millisecond.

    The random bits of the first are counted up, by random steps (RFC 9562 §6.2, method 2); they leave room for it.
    """
    milliseconds = time.time_ns() // 1_000_000
    ids = []
    random_bits = secrets.randbits(73)
    for _ in range(count):
        value = milliseconds << 80 | 0x7 << 76 | (random_bits >> 62) << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
        ids.append(str(uuid.UUID(int=value)))
        random_bits += 1 + secrets.randbits(32)
    return ids


def utc_now() -> datetime:
    """The time now, aware."""
    return datetime.now(UTC)
