"""Slots of cron entries, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.cron import check_cron, last_slot, next_slot


def at(day: int, hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2026, 12, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "last", "following"),
    [
        (at(2, 2, 22, 59), at(1, 2, 23), at(2, 2, 23)),
        (at(2, 2, 23), at(2, 2, 23), at(3, 2, 23)),
        (at(2, 2, 23, 30), at(2, 2, 23), at(3, 2, 23)),
    ],
)
def test_slots_around_a_moment(now: datetime, last: datetime, following: datetime) -> None:
    assert (last_slot("23 2 * * *", now), next_slot("23 2 * * *", now)) == (last, following)


@pytest.mark.parametrize("cron", ["23 2 * * *", "*/5 * * * *", "0 0 * * mon", "0 0 29 2 *"])
def test_good_entries(cron: str) -> None:
    assert check_cron(cron) == cron


@pytest.mark.parametrize("cron", ["", "daily", "@daily", "* * * * * *", "61 * * * *", "a b c d e", "0 0 31 2 *"])
def test_entries_that_do_not_say_when(cron: str) -> None:
    with pytest.raises(ValueError, match="cron entry"):
        check_cron(cron)
