"""Trials of a measured search: what is asked, what is told, and what its result says of them."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from app.schemas.base import RequestModel, ResponseModel
from app.schemas.estimates import Estimate
from app.schemas.runs import MeasuredFigures
from app.schemas.strategies import Strategy

Failure = Literal["out_of_memory", "error"]
TrialState = Literal["asked", "measured", "out_of_memory", "error"]

TELL_EXAMPLES: Final[list[JsonValue]] = [
    {"measured": {"step_seconds": 12.4, "peak_allocated_gib": 61.3, "peak_reserved_gib": 66.0}},
    {"failed": "out_of_memory"},
    {"failed": "error"},
]


class TrialOutcome(RequestModel):
    """What the run of a trial gave: figures, or why there are none."""

    model_config = ConfigDict(json_schema_extra={"examples": TELL_EXAMPLES})

    measured: MeasuredFigures | None = Field(
        None, description="As in a RunRecord; `step_seconds` is needed unless it ran out of memory."
    )
    failed: Failure | None = Field(
        None, description="`out_of_memory`, or `error`: any other reason, such as a framework that does not start."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.measured is None) == (self.failed is None):
            raise PydanticCustomError("exactly_one", "exactly one of measured and failed is needed")
        if self.measured is not None and self.measured.step_seconds is None and not self.measured.out_of_memory:
            raise PydanticCustomError("step_seconds_missing", "measured.step_seconds is needed unless out_of_memory")
        return self

    @property
    def state(self) -> Failure | Literal["measured"]:
        """How the trial ended."""
        if self.measured is not None:
            return "out_of_memory" if self.measured.out_of_memory else "measured"
        return self.failed or "error"


class AskedTrial(ResponseModel):
    """A strategy to run, and what it is expected to take."""

    trial: int = Field(description="Tell its outcome under this number.")
    strategy: Strategy
    estimate: Estimate
    nodes: int
    times_asked: int = Field(description="More than 1: nobody told its outcome before the lease ended.")
    lease_until: datetime = Field(description="Later it may be given to another runner; it can still be told.")


class ToldTrial(ResponseModel):
    """A trial that was told."""

    trial: int
    state: TrialState
    run: str | None = Field(description="The logged run, as `GET /v1/runs/{id}`; null: an error measures nothing.")
    estimated_step_seconds: float
    measured_step_seconds: float | None
    ratio: float | None = Field(description="Measured over estimated.")


class MeasuredTrial(ToldTrial):
    """A trial as the result of its search lists it."""

    strategy: Strategy
    nodes: int
    asked_at: datetime
    told_at: datetime | None
    peak_gib: float | None = Field(description="Measured: of the device, else reserved, else allocated.")
    estimated_peak_gib: float | None = Field(description="Of the same statistic.")


class CorrectionSeen(ResponseModel):
    """By how much the runs so far disagree with the estimates."""

    factor: float | None = Field(description="Median of measured over estimated step seconds; null: none ran.")
    by_framework: dict[str, float] = Field(description="The same of each framework that ran.")
    memory_factor: float | None = Field(description="Median of measured over estimated peaks; null: none was told.")


class MeasuredSection(ResponseModel):
    """Where a measured search stands."""

    budget_trials: int
    candidates: int = Field(description="Strategies that it may give out.")
    asked: int = Field(description="Trials given out.")
    told: int = Field(description="Of these, how many were told.")
    best: MeasuredTrial | None = Field(
        description="The trial that ran best; noise is averaged out with what other runs say of it."
    )
    gain: float | None = Field(
        description="Share of the objective that the best saves of the first analytical plan; null unless both ran."
    )
    correction: CorrectionSeen
    trials: list[MeasuredTrial] = Field(description="In the order in which they were given out.")
