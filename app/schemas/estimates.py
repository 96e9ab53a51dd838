"""EstimateRequest and Estimate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from app.schemas import examples
from app.schemas.base import RequestModel, ResponseModel
from app.schemas.clusters import ClusterInput
from app.schemas.models import ModelInput
from app.schemas.strategies import Strategy
from app.schemas.workloads import Workload

MAX_STRATEGIES = 20_000
MemoryConfidence = Annotated[float, Field(ge=0.5, lt=1)]


class EstimateRequest(RequestModel):
    """Strategies to score, one answer each, in order."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.ESTIMATE, examples.EXPLICIT_ESTIMATE]})

    model: ModelInput = Field(description="What is trained.")
    cluster: ClusterInput = Field(description="On what; a strategy uses all GPUs.")
    workload: Workload = Field(description="One optimizer step.")
    strategies: Annotated[list[Strategy], Field(min_length=1, max_length=MAX_STRATEGIES)] = Field(
        description="What to score, up to 20,000."
    )
    memory_confidence: MemoryConfidence | None = Field(
        None, description="A strategy fits if it does with this probability; left out: 0.9."
    )
    detail: Literal["full", "summary"] | None = Field(None, description="Left out: full.")
    learned: bool | None = Field(
        None,
        description="Whether the memory model that serves corrects memory and step time; left out: true.",
    )


class Finding(ResponseModel):
    """A rule that is broken, or a warning."""

    code: str
    message: str


class MemoryBreakdown(ResponseModel):
    """What is live at the peak, GiB; the parts add up to `peak_gib`."""

    parameters: float
    gradients: float
    optimizer_states: float
    activations: float
    logits: float
    communication_buffers: float
    framework_overhead: float
    fragmentation: float
    learned_correction: float


class StageMemory(ResponseModel):
    """One pipeline stage."""

    stage: int
    layers: int
    peak_allocated_gib: float
    peak_reserved_gib: float
    peak_gib: float
    breakdown_gib: MemoryBreakdown


class HostMemory(ResponseModel):
    """GiB of one host."""

    steady: float
    load_peak: float
    checkpoint_peak: float


class Memory(ResponseModel):
    """Of the fullest rank of the fullest stage, at the moment of its peak."""

    peak_allocated_gib: float = Field(description="As torch.cuda.max_memory_allocated.")
    peak_reserved_gib: float = Field(description="As torch.cuda.max_memory_reserved.")
    peak_gib: float = Field(description="As the device shows it.")
    required_gib: float = Field(description="What must fit.")
    required_upper_gib: float = Field(description="Its bound at `memory_confidence`.")
    analytical_gib: float = Field(description="`peak_gib` before the learned correction.")
    capacity_gib: float
    oom_probability: float
    breakdown_gib: MemoryBreakdown
    stages: list[StageMemory]
    peak_moment: Literal["forward", "loss", "backward", "optimizer"]
    activation_bytes_per_layer: float = Field(description="Saved by one middle block for one micro-batch, bytes.")
    device_load_peak_gib: float = Field(description="While model and optimizer are set up.")
    host_gib_per_node: HostMemory
    nvme_gib_per_node: float


class TimeBreakdown(ResponseModel):
    """Exposed seconds of the slowest stage; the parts add up to `step_seconds`."""

    forward: float
    backward: float
    recompute: float
    tensor_parallel: float
    context_parallel: float
    expert_parallel: float
    pipeline_communication: float
    pipeline_bubble: float
    data_parallel: float
    optimizer: float
    offload: float


class Time(ResponseModel):
    """One optimizer step of steady training."""

    step_seconds: float
    breakdown_seconds: TimeBreakdown


class Throughput(ResponseModel):
    """What the step time means."""

    tokens_per_second: float
    tokens_per_second_per_gpu: float
    samples_per_second: float
    model_tflops_per_gpu: float
    mfu: float = Field(description="Model FLOP over the dense peak of the precision.")
    hfu: float = Field(description="The same with recomputation.")


class Cost(ResponseModel):
    """Of all `training_tokens`; null where they or the price are not given."""

    days: float | None
    gpu_hours: float | None
    usd: float | None
    energy_kwh: float | None


class Provenance(ResponseModel):
    """What stands behind the figures."""

    time: Literal["calibrated", "learned", "analytical", "extrapolated"]
    memory: Literal["calibrated", "learned", "analytical", "extrapolated"]
    notes: list[str]


class ResolvedStrategy(ResponseModel):
    """A strategy with every field filled."""

    framework: str
    data_parallel_size: int
    data_parallel_replicate_size: int
    secondary_shard_size: int
    tensor_parallel_size: int
    sequence_parallel: bool
    pipeline_parallel_size: int
    virtual_pipeline_size: int
    pipeline_schedule: str
    layers_per_stage: list[int] | None = Field(description="Null where there are more chunks than layers to give them.")
    context_parallel_size: int
    context_parallel_kind: str
    expert_parallel_size: int
    expert_tensor_parallel_size: int
    zero_stage: int
    micro_batch_size: int
    activation_checkpointing: str
    recompute_modules: list[str]
    checkpointed_layers: int
    offload: str
    offload_fraction: float
    precision: str
    fp8_recipe: str | None
    parameter_dtype: str
    gradient_dtype: str
    optimizer_state_dtype: str
    overlap_communication: bool
    compile: bool
    kernels: str
    cuda_graphs: bool
    gradient_as_bucket_view: bool
    expandable_segments: bool
    checkpoint_loading: str
    checkpoint_saving: str


class Estimate(ResponseModel):
    """One scored strategy. Where a rule is broken, `valid` is false and the figures are null."""

    strategy: ResolvedStrategy
    valid: bool
    fits: bool | None
    violations: list[Finding]
    warnings: list[Finding]
    memory: Memory | None
    time: Time | None
    throughput: Throughput | None
    cost: Cost | None
    provenance: Provenance | None


class EstimateSummary(ResponseModel):
    """One scored strategy in short."""

    valid: bool
    fits: bool | None
    step_seconds: float | None
    peak_gib: float | None
    violations: list[str] = Field(description="Codes.")


class EstimateAnswer(ResponseModel):
    """One Estimate for each strategy, in order."""

    estimates: list[Estimate] | list[EstimateSummary]
    assumptions: list[str] = Field(description="Every default that was used.")
    memory_model_version: int | None = Field(
        description="Of what was learned from measured runs, as `GET /v1/memory-models` lists it; null: formulas alone."
    )
