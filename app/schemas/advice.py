"""Advice from what was observed of a running job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app.schemas import examples
from app.schemas.base import RequestModel, ResponseModel
from app.schemas.clusters import ClusterInput
from app.schemas.estimates import Estimate, MemoryConfidence, ResolvedStrategy
from app.schemas.models import ModelInput
from app.schemas.strategies import Strategy
from app.schemas.workloads import Workload

MAX_SAMPLES = 10_000
Gib = Annotated[float, Field(ge=0, le=100_000)]


class MemorySample(RequestModel):
    """One reading; what was not read is null or left out."""

    seconds: Annotated[float, Field(ge=0, le=1e12)] = Field(description="Since any moment; samples in order of time.")
    allocated_gib: Gib | None = Field(None, description="As torch.cuda.max_memory_allocated.")
    reserved_gib: Gib | None = Field(None, description="As torch.cuda.max_memory_reserved.")
    device_gib: Gib | None = Field(None, description="As nvidia-smi or DCGM show it.")


class MicroBatchRequest(RequestModel):
    """A job, and the memory observed on its fullest GPU."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.MICRO_BATCH]})

    model: ModelInput = Field(description="What is trained.")
    cluster: ClusterInput = Field(description="On what; all GPUs are used.")
    workload: Workload = Field(description="One optimizer step.")
    strategy: Strategy = Field(description="As the job runs.")
    observed: Annotated[list[MemorySample], Field(max_length=MAX_SAMPLES)] = Field(
        description="Memory over time, one sample at least."
    )
    memory_confidence: MemoryConfidence | None = Field(
        None, description="What is proposed fits with this probability; left out: 0.9."
    )


class AdviceStep(ResponseModel):
    """One change, or a remark where `field` is null."""

    code: str
    message: str
    field: str | None = Field(description="Of the strategy.")
    before: Any = Field(alias="from", serialization_alias="from", description="As the job runs.")
    to: Any = Field(description="As proposed.")
    saved_gib: float | None = Field(description="Of what must fit, after the steps before; negative: takes more.")
    step_seconds_change: float | None = Field(description="After the steps before; negative: shorter.")


class ObservedMemory(ResponseModel):
    """Peaks of the curve, and over what was predicted of the job."""

    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    peak_device_gib: float | None
    required_ratio: float = Field(description="Observed over predicted, of what must fit: corrects every prediction.")
    growth_gib_per_hour: float = Field(description="Of the peak at the end of the curve; 0: steady.")


class MicroBatchAdvice(ResponseModel):
    """Where to go from the job, and in what order."""

    strategy: ResolvedStrategy
    micro_batch_size: int
    throughput_gain: float = Field(description="Tokens a second over the job's, less 1; negative: safe, but slower.")
    estimate: Estimate = Field(description="Of what is proposed, the observation included.")
    steps: list[AdviceStep] = Field(description="What to change first; then remarks.")
    current: Estimate = Field(description="Of the job as it runs, the observation included.")
    observed: ObservedMemory
    assumptions: list[str] = Field(description="Every default that was used.")
    memory_model_version: int | None = Field(description="Of what was learned from measured runs; null: formulas.")
