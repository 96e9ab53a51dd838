"""Lists as links and filters: what a form leaves empty is no filter, and pages keep the filters."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from pydantic import model_validator

from app.schemas.base import QueryModel


class FilterForm(QueryModel):
    """Query parameters as a form sends them: with every filter, also the empty ones."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value != ""} if isinstance(data, dict) else data


def next_page(request: Request, cursor: str | None) -> str | None:
    """The address of the next page of a list, with the filters of this one; None: this is the last."""
    if cursor is None:
        return None
    kept = {name: value for name, value in request.query_params.items() if name != "cursor" and value != ""}
    return f"{request.url.path}?{urlencode(kept | {'cursor': cursor})}"
