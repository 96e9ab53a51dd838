"""Versions of what was learned from runs: the peak-memory predictor and the factors on step time, trained together."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.pagination import Cursor, decode_cursor
from app.schemas.base import QueryModel, RequestModel, ResponseModel

VERSION = re.compile("[0-9]{1,10}")
ModelState = Literal["queued", "running", "serving", "archived", "kept", "failed"]
Trigger = Literal["first_start", "schedule", "new_runs", "request", "command"]


class TrainingRequest(RequestModel):
    """Nothing to choose: a training uses all runs there are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})


class GroupFigures(ResponseModel):
    """Errors on the runs of one group, by a model that has not seen the group."""

    rows: int
    median_error: float = Field(description="Of corrected peaks, relative.")
    analytical_median_error: float = Field(description="Of the formulas alone.")
    under_rate: float = Field(description="Share of the peaks above the bound at 95 %.")
    overshoot: float = Field(description="By how much that bound lies above the peaks, in the mean, relative.")


class UnseenFigures(ResponseModel):
    """Errors on groups, each by a model that has not seen it; groups weigh the same."""

    groups: int
    rows: int
    median_error: float = Field(description="Of corrected peaks, relative.")
    analytical_median_error: float = Field(description="Of the formulas alone.")
    under_rate: dict[str, float] = Field(description="By confidence: share of the peaks above the bound.")
    overshoot: float = Field(description="By how much the bound at 95 % lies above the peaks, in the mean, relative.")
    by_group: dict[str, GroupFigures] = Field(description="Groups of 20 rows and more.")


class Figures(ResponseModel):
    """By what had not been seen; null where there are fewer than two groups."""

    own_run: UnseenFigures | None = Field(
        description="The next run of each cluster and framework that has logged some."
    )
    model_shape: UnseenFigures | None
    source: UnseenFigures | None


class Decision(ResponseModel):
    """Whether a version was promoted when its training ended."""

    promote: bool
    reasons: list[str] = Field(description="What the gate looked at, in words.")
    compared_with: int | None = Field(description="The version that served then; null: none did.")


class MemoryModelSummary(ResponseModel):
    """A version, as lists have it."""

    version: int
    state: ModelState = Field(
        description="`serving`: answers use it; `archived`: it served before; `kept`: trained, but refused by the gate."
    )
    trigger: Trigger = Field(description="What asked for it.")
    created_at: datetime = Field(description="When it was asked for.")
    trained_at: datetime | None
    promoted_at: datetime | None = Field(description="When it last began to serve.")
    runs: int | None = Field(description="How many runs it was trained on, published and logged.")
    figures: Figures | None = Field(description="Errors and coverage on groups that it had not seen.")
    decision: Decision | None
    error: str | None = Field(description="Why its training failed.")


class MemoryModel(MemoryModelSummary):
    """A version with its report."""

    schema_: str | None = Field(serialization_alias="schema", description="Hash of the features' names and units.")
    libraries: dict[str, str] | None = Field(description="Versions of what it was trained with.")
    sha256: str | None = Field(description="Of the stored model.")
    report: dict[str, Any] | None = Field(
        description="All that was measured on unseen model shapes and sources; which runs were left out, and why."
    )


class TrainingSchedule(ResponseModel):
    """When versions are trained."""

    cron: str | None = Field(description="Minute hour day month weekday, in UTC; null: by no clock.")
    next_slot: datetime | None
    after_runs: int | None = Field(description="How many new runs make for a training at once; null: none do.")
    runs_since_last: int = Field(description="Logged since the last training began, or was asked for.")
    running: int | None = Field(description="The version that is being trained.")
    queued: int | None = Field(description="The version that waits for its training.")


class MemoryModelPage(ResponseModel):
    """One page of versions, newest first; which one serves, and when the next is trained."""

    items: list[MemoryModelSummary]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")
    serving: int | None = Field(description="The version that answers use; null: none, so that the formulas stand.")
    schedule: TrainingSchedule


def _of_versions(cursor: str) -> str:
    if not VERSION.fullmatch(decode_cursor(cursor)[1]):
        raise PydanticCustomError("invalid_cursor", "not a `next_cursor` of this list")
    return cursor


class MemoryModelListQuery(QueryModel):
    """Which versions to list."""

    limit: int = Field(20, ge=1, le=100, description="Items of a page.")
    cursor: Annotated[Cursor, AfterValidator(_of_versions)] | None = Field(
        None, description="`next_cursor` of the page before."
    )
