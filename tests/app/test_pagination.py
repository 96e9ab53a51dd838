"""Cursors: opaque, exact, and nothing else is one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pagination import decode_cursor, encode_cursor

MOMENTS = st.datetimes(timezones=st.just(UTC))
IDENTIFIERS = st.text("0123456789abcdef-", min_size=1, max_size=36)


@given(MOMENTS, IDENTIFIERS)
def test_a_cursor_says_where_it_was_made(moment: datetime, identifier: str) -> None:
    assert decode_cursor(encode_cursor((moment, identifier))) == (moment, identifier)


def test_moments_come_back_in_utc() -> None:
    moment = datetime(2026, 12, 1, 2, 0, tzinfo=timezone(timedelta(hours=2)))
    decoded, _ = decode_cursor(encode_cursor((moment, "a")))
    assert (decoded, decoded.tzinfo) == (moment, UTC)


@given(st.one_of(st.text(max_size=80), st.text("ABCDEFGHabcdefgh0123456789-_=", max_size=80)))
def test_other_text_is_refused_and_nothing_worse(text: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        decode_cursor(text)


@pytest.mark.parametrize("moment", [datetime(2026, 12, 1), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))])
def test_moments_that_no_database_has(moment: datetime) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        decode_cursor(encode_cursor((moment, "a")))
