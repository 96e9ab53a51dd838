"""The steps that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.torch_steps.models import Dims
from benchmarks.torch_steps.step import Step

# Published shapes with fewer layers: what comes and goes weighs the more.
LLAMA_1B = Dims(8, 2048, 32, 8, 8192, 128256)
LLAMA_7B = Dims(8, 4096, 32, 32, 11008, 32000)
LLAMA_8B = Dims(8, 4096, 32, 8, 14336, 128256)
WIDE_HEAD = Dims(2, 2048, 16, 16, 8192, 256000)
NARROW_HEAD = Dims(2, 2048, 16, 16, 8192, 50257)
LLAMA_70B = Dims(10, 8192, 64, 8, 28672, 128256)
MIXTURE = {"experts": 32, "experts_per_token": 4, "expert_ffn_hidden_size": 1024}


def cases() -> Iterator[Step]:
    """Every step, sharded and replicated."""
    yield from _sharded()
    yield from _replicated()
    yield from _partitioned()
    yield from _heads()
    yield from _pipelines()
    yield from _fused_losses()
    yield from _mixtures()
    yield from _adapted()


def _sharded() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, ranks: int, micro_batches: int = 1, **strategy: Any) -> Step:
        return Step(f"fsdp2-{name}", dims, length, ranks, {"framework": "fsdp2", **strategy}, micro_batches)

    for checkpointing in ("none", "selective", "full"):
        yield step(f"8b-{checkpointing}", LLAMA_8B, 8192, 8, activation_checkpointing=checkpointing)
        yield step(f"7b-{checkpointing}", LLAMA_7B, 2048, 8, activation_checkpointing=checkpointing)
        yield step(f"7b-2-{checkpointing}", LLAMA_7B, 2048, 8, activation_checkpointing=checkpointing, zero_stage=2)
    for ranks in (64, 256):
        yield step(f"8b-{ranks}-selective", LLAMA_8B, 8192, ranks, activation_checkpointing="selective")
        yield step(f"70b-{ranks}-full", LLAMA_70B, 8192, ranks, activation_checkpointing="full")
    yield step("70b-64-short", LLAMA_70B, 1024, 64, activation_checkpointing="full")
    yield step("8b-2-full", LLAMA_8B, 4096, 16, activation_checkpointing="full", zero_stage=2)
    yield step("8b-short", LLAMA_8B, 512, 8, micro_batch_size=1)
    yield step("8b-batch-4", LLAMA_8B, 2048, 8, micro_batch_size=4, activation_checkpointing="full")
    yield step("8b-hsdp", LLAMA_8B, 4096, 64, data_parallel_replicate_size=8, activation_checkpointing="full")
    yield step("8b-accumulated", LLAMA_8B, 4096, 8, 4, activation_checkpointing="full")
    yield step("7b-accumulated", LLAMA_7B, 512, 8, 2)
    yield step("1b-full", LLAMA_1B, 1024, 8, activation_checkpointing="full")
    yield step("1b-short", LLAMA_1B, 256, 64, activation_checkpointing="full")
    yield step("1b-none", LLAMA_1B, 4096, 8)


def _replicated() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, ranks: int, micro_batches: int = 1, **strategy: Any) -> Step:
        return Step(f"ddp-{name}", dims, length, ranks, {"framework": "ddp", **strategy}, micro_batches)

    for dtype in ("fp32", "bf16"):
        for view in (False, True):
            for kernels in ("eager", "partly-fused"):
                fields = {"parameter_dtype": dtype, "gradient_as_bucket_view": view, "kernels": kernels}
                name = f"1b-{kernels}-{dtype}{'-view' if view else ''}"
                yield step(name, LLAMA_1B, 1024, 8, **fields)
                yield step(f"{name}-short", LLAMA_1B, 128, 8, **fields)
                yield step(f"{name}-full", LLAMA_1B, 4096, 8, **fields, activation_checkpointing="full")
                yield step(f"{name}-accumulated", LLAMA_1B, 512, 8, 4, **fields)
    for kernels in ("eager", "partly-fused"):
        yield step(f"7b-{kernels}", LLAMA_7B, 1024, 8, parameter_dtype="bf16", kernels=kernels)
        yield step(f"7b-{kernels}-alone", LLAMA_7B, 4096, 1, parameter_dtype="bf16", kernels=kernels)
        yield step(f"7b-{kernels}-autocast-alone", LLAMA_7B, 2048, 1, kernels=kernels)


def _partitioned() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, ranks: int, micro_batches: int = 1, **strategy: Any) -> Step:
        fields = {"framework": "deepspeed", "kernels": "partly-fused", **strategy}
        return Step(f"deepspeed-{name}", dims, length, ranks, fields, micro_batches)

    for stage in (1, 2, 3):
        # Stage 1 does not overlap by default; with it, it keeps no more gradients than stage 2, unlike the paper's.
        overlap = stage > 1
        yield step(f"{stage}-8b", LLAMA_8B, 2048, 8, zero_stage=stage, overlap_communication=overlap)
        yield step(f"{stage}-7b-plain", LLAMA_7B, 4096, 64, zero_stage=stage, overlap_communication=False)
        fields = {"zero_stage": stage, "activation_checkpointing": "full", "overlap_communication": overlap}
        yield step(f"{stage}-7b-full", LLAMA_7B, 1024, 8, **fields)
        yield step(f"{stage}-1b-accumulated", LLAMA_1B, 1024, 16, 2, zero_stage=stage)


def _heads() -> Iterator[Step]:
    """Little but the head and its loss."""
    for vocabulary, dims in (("wide", WIDE_HEAD), ("narrow", NARROW_HEAD)):
        for kernels in ("eager", "partly-fused"):
            fields = {"framework": "ddp", "kernels": kernels, "activation_checkpointing": "full"}
            for name, dtypes in (
                ("fp32", {"precision": "fp32"}),
                ("bf16", {"parameter_dtype": "bf16"}),
                ("autocast", {}),
            ):
                yield Step(f"head-{vocabulary}-{kernels}-{name}", dims, 8192, 1, {**fields, **dtypes})


def _pipelines() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, micro_batches: int, layers: list[int], **strategy: Any) -> Step:
        """`layers` of each chunk; 8 data-parallel ranks."""
        pipeline, rank = strategy.pop("pipeline", 2), strategy.pop("rank", 0)
        fields = {"framework": "fsdp2", "pipeline_parallel_size": pipeline, "layers_per_stage": layers}
        if len(layers) > pipeline:
            fields |= {"virtual_pipeline_size": len(layers) // pipeline, "pipeline_schedule": "interleaved"}
        whole = replace(dims, layers=sum(layers))
        return Step(f"pipeline-{name}-{rank}", whole, length, 8 * pipeline, fields | strategy, micro_batches, rank)

    for rank in (0, 1):
        yield step("8b", LLAMA_8B, 4096, 8, [4, 4], zero_stage=2, rank=rank)
        yield step("7b-8-chunks", LLAMA_7B, 1024, 16, [1] * 16, zero_stage=2, rank=rank)
    yield step("7b-many", LLAMA_7B, 1024, 32, [4, 4], zero_stage=2)
    yield step("7b-resharded", LLAMA_7B, 2048, 8, [4, 4], zero_stage=3)
    yield step("7b-resharded-full", LLAMA_7B, 1024, 8, [8, 8], zero_stage=3, activation_checkpointing="full")
    yield step("8b-quarter", LLAMA_8B, 4096, 8, [2] * 4, zero_stage=2, pipeline=4, rank=1)
    yield step("7b-2-chunks", LLAMA_7B, 2048, 8, [2] * 4, zero_stage=2, rank=1)
    yield step("7b-4-chunks-resharded", LLAMA_7B, 1024, 8, [2] * 8, zero_stage=3)


def _fused_losses() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, ranks: int, **strategy: Any) -> Step:
        return Step(f"fused-{name}", dims, length, ranks, strategy, workload={"fused_loss": True})

    yield step("fsdp2-8b", LLAMA_8B, 8192, 8, framework="fsdp2")
    yield step("fsdp2-8b-long", LLAMA_8B, 65536, 64, framework="fsdp2", activation_checkpointing="full")
    fields = {"framework": "ddp", "kernels": "partly-fused", "activation_checkpointing": "full"}
    yield step("ddp-wide", WIDE_HEAD, 8192, 1, **fields)
    yield step("ddp-wide-bf16", WIDE_HEAD, 8192, 8, **fields, parameter_dtype="bf16")


def _mixtures() -> Iterator[Step]:
    def step(name: str, length: int, ranks: int, micro_batches: int = 1, **strategy: Any) -> Step:
        return Step(f"moe-{name}", LLAMA_1B, length, ranks, strategy, micro_batches, experts=MIXTURE)

    yield step("fsdp2", 4096, 8, framework="fsdp2")
    yield step("fsdp2-2", 4096, 8, framework="fsdp2", zero_stage=2)
    yield step("fsdp2-full", 4096, 64, framework="fsdp2", activation_checkpointing="full")
    yield step("fsdp2-short", 512, 8, 2, framework="fsdp2")
    yield step("ddp", 2048, 8, framework="ddp", kernels="partly-fused", parameter_dtype="bf16")


def _adapted() -> Iterator[Step]:
    def step(name: str, dims: Dims, length: int, ranks: int, micro_batches: int = 1, **strategy: Any) -> Step:
        tuning = {"method": "lora", "rank": 16}
        return Step(f"lora-{name}", dims, length, ranks, strategy, micro_batches, workload={"fine_tuning": tuning})

    sharded, narrow = {"framework": "fsdp2"}, {"parameter_dtype": "bf16"}
    yield step("fsdp2-8b", LLAMA_8B, 4096, 8, **sharded, **narrow)
    yield step("fsdp2-7b-fp32", LLAMA_7B, 2048, 8, **sharded, parameter_dtype="fp32")
    replicated = {"framework": "ddp", "kernels": "partly-fused", **narrow}
    yield step("ddp-7b", LLAMA_7B, 2048, 1, **replicated)
