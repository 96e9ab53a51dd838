"""When a schedule is due: five cron fields, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from croniter import croniter
from croniter.croniter import CroniterError

FIELDS = 5


def check_cron(cron: str) -> str:
    """The entry itself; raises ValueError for one that does not say when, or says a time that never comes."""
    if len(cron.split()) != FIELDS:
        raise ValueError("a cron entry has five fields: minute hour day month weekday")
    try:
        next_slot(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except (CroniterError, ValueError) as error:
        raise ValueError(f"not a cron entry: {error}") from error
    return cron


def last_slot(cron: str, now: datetime) -> datetime:
    """The latest time at or before `now` that an entry names."""
    after: datetime = croniter(cron, now.replace(microsecond=0) + timedelta(seconds=1)).get_prev(datetime)
    return after


def next_slot(cron: str, now: datetime) -> datetime:
    """The first time after `now` that an entry names."""
    slot: datetime = croniter(cron, now).get_next(datetime)
    return slot
