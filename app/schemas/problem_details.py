"""RFC 9457 problem details."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from app.schemas import examples
from app.schemas.base import ResponseModel


class FieldError(ResponseModel):
    """One field that breaks a rule."""

    loc: list[str | int] = Field(description="Path of the field: body, query, path or header first.")
    code: str = Field(description="A stable name of the rule.")
    message: str = Field(description="The rule in words.")


class ProblemDetails(ResponseModel):
    """An error, as `application/problem+json`."""

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=False, json_schema_extra={"examples": [examples.PROBLEM]}
    )

    type: str = Field(description="A stable name of the kind of error.")
    title: str
    status: int
    detail: str
    instance: str = Field(description="The request's path.")
    errors: list[FieldError] = Field([], description="For bad input: each field and its rule.")
