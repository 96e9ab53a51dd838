"""RunRecord: a measured run; and what `runs` answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field, SkipValidation, model_validator
from pydantic_core import PydanticCustomError

from app.pagination import Cursor
from app.schemas import examples
from app.schemas.base import FreeJson, QueryModel, RequestModel, ResponseModel, Text, refuse_odd_text
from app.schemas.clusters import ClusterInput
from app.schemas.models import ModelInput
from app.schemas.strategies import Framework, Strategy
from app.schemas.workloads import FineTuning, Workload
from cost_models.run_records import PEAKS

MOST_RUNS: Final = 10_000
"""In one call."""
KNOWN_FIELDS: Final = tuple(
    sorted(
        {*Strategy.model_fields, *Workload.model_fields, *(f"fine_tuning.{name}" for name in FineTuning.model_fields)}
    )
)
"""What `unknown` may name: fields of the strategy or the workload."""
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
"""A moment outside is a slip of the unit or the clock."""


def _known_field(name: str) -> str:
    if name not in KNOWN_FIELDS:
        raise PydanticCustomError("unknown_field", "no field of a strategy or a workload")
    return name


def _written_out(value: Any) -> Any:
    if not isinstance(value, str | datetime):
        raise PydanticCustomError("datetime_type", "a moment is written out, as 2026-11-30T12:00:00Z")
    return value


def _in_our_time(moment: datetime) -> datetime:
    if not EARLIEST <= moment < LATEST:
        raise PydanticCustomError("out_of_range", "must be in the years 2000 to 2099")
    return moment.astimezone(UTC)


FieldName = Annotated[str, Field(json_schema_extra={"enum": list(KNOWN_FIELDS)}), AfterValidator(_known_field)]
Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_out), AfterValidator(_in_our_time)]
Key = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(refuse_odd_text)]
Address = Annotated[str, Field(max_length=2048), AfterValidator(refuse_odd_text)]
Peak = Annotated[float, Field(gt=0, le=1e5)]
FIGURES: Final = (*PEAKS, "step_seconds")


class MeasuredFigures(RequestModel):
    """What was read off a run: at least one figure, or that it ran out of memory."""

    peak_allocated_gib: Peak | None = Field(
        None, description="As torch.cuda.max_memory_allocated of the fullest rank, GiB (2^30 bytes)."
    )
    peak_reserved_gib: Peak | None = Field(
        None, description="As torch.cuda.max_memory_reserved of the fullest rank, GiB (2^30 bytes)."
    )
    peak_device_gib: Peak | None = Field(
        None, description="As the device shows it (nvidia-smi, DCGM), of the fullest card, GiB (2^30 bytes)."
    )
    pipeline_stage: Annotated[int, Field(ge=0, le=10**6)] | None = Field(
        None, description="Pipeline rank whose memory was read; left out: the fullest."
    )
    step_seconds: Annotated[float, Field(gt=0, le=1e7)] | None = Field(
        None, description="One optimizer step of steady training, seconds."
    )
    out_of_memory: bool | None = Field(
        None, description="Whether it ran out of memory; figures beside it are a lower bound. Left out: false."
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.out_of_memory and all(getattr(self, figure) is None for figure in FIGURES):
            raise PydanticCustomError(
                "nothing_measured",
                "at least one figure is needed, or out_of_memory true: {figures}",
                {"figures": ", ".join(FIGURES)},
            )
        return self


class RunRecord(RequestModel):
    """One measured run. A strategy that breaks a rule of ours is taken too: the run is a fact."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.RUN, examples.RUN_OUT_OF_MEMORY]})

    key: Key | None = Field(
        None, description="One run a key, however often it is logged; left out: a hash of the content."
    )
    model: ModelInput = Field(description="What was trained.")
    cluster: ClusterInput = Field(description="On what; the run used all its GPUs.")
    workload: Workload = Field(description="One optimizer step.")
    strategy: Strategy = Field(description="As it ran; what is left out is taken to be the framework's default.")
    measured: MeasuredFigures = Field(description="What was read off the run.")
    software: FreeJson | None = Field(None, description="Versions and settings, as the source names them.")
    source: Text | None = Field(None, description="Where the figures come from; lists filter by it.")
    source_address: Address | None = Field(None, description="Where the source can be read.")
    family: Text | None = Field(None, description="Sources that share machines or runs share a family.")
    model_name: Text | None = Field(None, description="What the source calls the model.")
    unknown: Annotated[list[FieldName], Field(max_length=len(KNOWN_FIELDS))] | None = Field(
        None, description="Fields of the strategy or the workload that the source does not tell; they have the default."
    )
    started_at: Moment | None = Field(None, description="When the run began, RFC 3339 with a zone.")


RunRecords = SkipValidation[RunRecord | Annotated[list[RunRecord], Field(min_length=1, max_length=MOST_RUNS)]]
"""One or many. The service checks them, so that every bad one is named."""


class LoggedRun(ResponseModel):
    """A run as it was logged."""

    id: str
    created_at: datetime = Field(description="When it was logged.")
    key: str = Field(description="As given, or the hash of the content.")
    model: ModelInput
    cluster: ClusterInput
    workload: Workload
    strategy: Strategy
    measured: MeasuredFigures
    software: dict[str, Any] | None
    source: str | None
    source_address: str | None
    family: str | None
    model_name: str | None
    unknown: list[str] | None
    started_at: datetime | None


class LoggedRunPage(ResponseModel):
    """One page of runs, newest first."""

    items: list[LoggedRun]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class LoggedIds(ResponseModel):
    """Where the runs are now."""

    ids: list[str] = Field(description="One a record, in order; a run that was logged before keeps its id.")


class RunListQuery(QueryModel):
    """Which runs to list."""

    limit: int = Field(20, ge=1, le=100, description="Items of a page.")
    cursor: Cursor | None = Field(None, description="`next_cursor` of the page before.")
    source: Text | None = Field(None, description="Only runs of this source.")
    framework: Framework | None = Field(None, description="Only runs of this framework.")
    gpu: Text | None = Field(None, description="Only runs on this GPU, by its name.")
    cluster: Annotated[str, Field(max_length=512), AfterValidator(refuse_odd_text)] | None = Field(
        None, description="Only runs on this cluster: its name, or GPU and links where it has none."
    )
