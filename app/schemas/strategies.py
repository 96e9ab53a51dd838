"""Strategy as it is asked for, and `space`, which narrows its fields to lists of values."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.schemas.base import Degree, RequestModel

Framework = Literal["megatron-lm", "deepspeed", "fsdp2", "fsdp1", "ddp", "nanotron"]
PipelineSchedule = Literal["1f1b", "interleaved", "gpipe", "zero-bubble"]
ContextParallelKind = Literal["ring", "all-gather", "all-to-all"]
Checkpointing = Literal["none", "selective", "full"]
RecomputeModule = Literal["core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe"]
Offload = Literal["none", "optimizer", "optimizer-and-parameters", "nvme", "activations"]
Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "fp32"]
Fp8Recipe = Literal["tensorwise", "rowwise", "blockwise", "mxfp8"]
ParameterDtype = Literal["fp32", "bf16", "fp16", "fp8", "nf4"]
StateDtype = Literal["fp32", "bf16", "fp16", "int8"]
Kernels = Literal["fused", "partly-fused", "eager"]
CheckpointLoading = Literal["sharded", "rank0", "every-rank"]
CheckpointSaving = Literal["sharded", "full"]

ZeroStage = Annotated[int, Field(ge=0, le=3)]
LayerCount = Annotated[int, Field(ge=0, le=10_000)]
Layout = Annotated[list[LayerCount], Field(min_length=1, max_length=10_000)]
RecomputeModules = Annotated[list[RecomputeModule], Field(max_length=6)]
Fraction = Annotated[float, Field(ge=0, le=1)]

_Value = TypeVar("_Value")


def _distinct(values: list[Any]) -> list[Any]:
    if any(value in values[:index] for index, value in enumerate(values)):
        raise PydanticCustomError("not_distinct", "values must differ from one another")
    return values


Options = Annotated[
    list[_Value],
    Field(min_length=1, max_length=64, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_distinct),
]
"""The values that a search may try: at least one, all different."""


class Strategy(RequestModel):
    """Only `framework` is required; what is left out is resolved as the framework would, and shown in the answer."""

    framework: Framework = Field(description="Its rules, defaults and memory behaviour: `catalog/frameworks`.")
    data_parallel_size: Degree | None = Field(None, description="Left out: what the other degrees leave of the GPUs.")
    data_parallel_replicate_size: Degree | None = Field(None, description="HSDP, MiCS, several optimizer instances.")
    secondary_shard_size: Degree | None = Field(None, description="hpZ (deepspeed, zero_stage 3).")
    tensor_parallel_size: Degree | None = Field(None, description="Left out: 1.")
    sequence_parallel: bool | None = Field(
        None, description="Left out: with tensor parallelism on megatron-lm, fsdp2 and nanotron."
    )
    pipeline_parallel_size: Degree | None = Field(None, description="Left out: 1.")
    virtual_pipeline_size: Degree | None = Field(None, description="Model chunks a rank; left out: 1.")
    pipeline_schedule: PipelineSchedule | None = Field(
        None, description="Left out: interleaved with chunks, else 1f1b."
    )
    layers_per_stage: Layout | None = Field(
        None, description="Layers of each model chunk in model order, pipeline × virtual numbers."
    )
    context_parallel_size: Degree | None = Field(None, description="Left out: 1.")
    context_parallel_kind: ContextParallelKind | None = Field(
        None, description="How keys and values travel; left out: the framework's usual."
    )
    expert_parallel_size: Degree | None = Field(None, description="Left out: 1.")
    expert_tensor_parallel_size: Degree | None = Field(
        None, description="Left out: the tensor size on megatron-lm, else 1."
    )
    zero_stage: ZeroStage | None = Field(None, description="0 replicated, 1 states, 2 + gradients, 3 + parameters.")
    micro_batch_size: Annotated[int, Field(ge=1, le=10**6)] | None = Field(None, description="Sequences; left out: 1.")
    activation_checkpointing: Checkpointing | None = Field(None, description="Left out: none.")
    recompute_modules: RecomputeModules | None = Field(None, description="What selective recomputes on megatron-lm.")
    checkpointed_layers: LayerCount | None = Field(None, description="Of a stage; left out: all.")
    offload: Offload | None = Field(None, description="Left out: none.")
    offload_fraction: Fraction | None = Field(None, description="Share of the optimizer's bytes; left out: 1.")
    precision: Precision | None = Field(None, description="Left out: the workload's.")
    fp8_recipe: Fp8Recipe | None = Field(None, description="Scaling of fp8; left out: the framework's usual.")
    parameter_dtype: ParameterDtype | None = Field(None, description="Stored weights; left out: the framework's usual.")
    gradient_dtype: StateDtype | None = Field(None, description="Accumulated gradients; left out: the usual.")
    optimizer_state_dtype: StateDtype | None = Field(None, description="Moments; left out: the framework's usual.")
    overlap_communication: bool | None = Field(
        None, description="Data-parallel traffic under compute; left out: the framework's usual."
    )
    compile: bool | None = Field(None, description="torch.compile of the blocks; left out: false.")
    kernels: Kernels | None = Field(None, description="Left out: the framework's usual.")
    cuda_graphs: bool | None = Field(None, description="Replayed kernel launches; left out: false.")
    gradient_as_bucket_view: bool | None = Field(
        None, description="DDP gradients live in the buckets; left out: the framework's usual."
    )
    expandable_segments: bool | None = Field(None, description="Of the CUDA allocator; less fragmentation.")
    checkpoint_loading: CheckpointLoading | None = Field(
        None, description="Who reads the weights; decides the load peaks. Left out: sharded."
    )
    checkpoint_saving: CheckpointSaving | None = Field(
        None, description="Who writes the weights; decides the save peaks. Left out: sharded."
    )


def _describe_fields(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        field["description"] = f"The values of `{name}` to try: at least one, all different."


class StrategySpace(RequestModel):
    """Strategy fields, each narrowed to the values that a search may try."""

    model_config = ConfigDict(json_schema_extra=_describe_fields)

    framework: Options[Framework] | None = None
    data_parallel_size: Options[Degree] | None = None
    data_parallel_replicate_size: Options[Degree] | None = None
    secondary_shard_size: Options[Degree] | None = None
    tensor_parallel_size: Options[Degree] | None = None
    sequence_parallel: Options[bool] | None = None
    pipeline_parallel_size: Options[Degree] | None = None
    virtual_pipeline_size: Options[Degree] | None = None
    pipeline_schedule: Options[PipelineSchedule] | None = None
    layers_per_stage: Options[Layout] | None = None
    context_parallel_size: Options[Degree] | None = None
    context_parallel_kind: Options[ContextParallelKind] | None = None
    expert_parallel_size: Options[Degree] | None = None
    expert_tensor_parallel_size: Options[Degree] | None = None
    zero_stage: Options[ZeroStage] | None = None
    micro_batch_size: Options[Annotated[int, Field(ge=1, le=10**6)]] | None = None
    activation_checkpointing: Options[Checkpointing] | None = None
    recompute_modules: Options[RecomputeModules] | None = None
    checkpointed_layers: Options[LayerCount] | None = None
    offload: Options[Offload] | None = None
    offload_fraction: Options[Fraction] | None = None
    precision: Options[Precision] | None = None
    fp8_recipe: Options[Fp8Recipe] | None = None
    parameter_dtype: Options[ParameterDtype] | None = None
    gradient_dtype: Options[StateDtype] | None = None
    optimizer_state_dtype: Options[StateDtype] | None = None
    overlap_communication: Options[bool] | None = None
    compile: Options[bool] | None = None
    kernels: Options[Kernels] | None = None
    cuda_graphs: Options[bool] | None = None
    gradient_as_bucket_view: Options[bool] | None = None
    expandable_segments: Options[bool] | None = None
    checkpoint_loading: Options[CheckpointLoading] | None = None
    checkpoint_saving: Options[CheckpointSaving] | None = None
