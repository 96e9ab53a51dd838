"""What every body, query and answer has in common."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

DEEPEST = 32
"""Levels of a free-form object: far more than any published config has, far fewer than recursion can bear."""


def _refuse_oddities(value: Any, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise PydanticCustomError("too_deep", "objects and lists are nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("finite_number", "numbers must be finite")
    if isinstance(value, str):
        refuse_odd_text(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            refuse_odd_text(key)
            _refuse_oddities(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _refuse_oddities(item, depth + 1)


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """What JSON and every database can hold: no NaN, infinity, half a surrogate pair, NUL, or endless nesting."""
    _refuse_oddities(value)
    return value


def refuse_odd_text(value: str) -> str:
    """The text, if every database can hold it."""
    if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
        raise PydanticCustomError("string_unicode", "text must be valid Unicode without NUL")
    return value


FreeJson = Annotated[dict[str, Any], AfterValidator(_checked)]
"""An object whose keys are not known here; whoever reads it checks them."""
Text = Annotated[str, Field(max_length=256), AfterValidator(refuse_odd_text)]
"""A short text: a name, a label."""

LARGEST_DEGREE = 10**6
"""GPUs, degrees and nodes: beyond any machine that exists, small enough that their products stay exact in int64."""
Degree = Annotated[int, Field(ge=1, le=LARGEST_DEGREE)]


class RequestModel(BaseModel):
    """A body: unknown fields, coerced types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class QueryModel(BaseModel):
    """Query parameters: unknown ones are refused; values arrive as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(QueryModel):
    """An endpoint without query parameters."""


class ResponseModel(BaseModel):
    """An answer."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
