"""Keyset cursors: where the next page begins, opaque to clients."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

Position = tuple[datetime, str]
"""(created_at, id) of the last item of a page."""


def encode_cursor(position: Position) -> str:
    """A cursor for a URL."""
    created_at, identifier = position
    return base64.urlsafe_b64encode(json.dumps([created_at.isoformat(), identifier]).encode()).decode()


def decode_cursor(cursor: str) -> Position:
    """The position that `encode_cursor` wrote; raises ValueError for anything else."""
    try:
        created_at, identifier = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        moment = datetime.fromisoformat(created_at)
        if moment.tzinfo is None or not isinstance(identifier, str) or not identifier.isprintable():
            raise ValueError("not written by encode_cursor")
        return moment.astimezone(UTC), identifier
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError("not a cursor of this service") from error


def _check(cursor: str) -> str:
    try:
        decode_cursor(cursor)
    except ValueError:
        raise PydanticCustomError("invalid_cursor", "not a `next_cursor` of this service") from None
    return cursor


Cursor = Annotated[str, Field(max_length=512), AfterValidator(_check)]
"""A query parameter that is checked to be a cursor."""
