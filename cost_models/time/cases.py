"""Layer cases: the distinct combinations of the columns that decide what one layer costs for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.frameworks import FRAMEWORKS
from cost_models.problem import Problem
from cost_models.strategy import (
    RECOMPUTE_MODULES,
    BoolColumn,
    FloatColumn,
    IntColumn,
    StrategyTable,
    dtype_bytes,
)
from cost_models.time.coefficients import Coefficients

CASE_COLUMNS: Final = (
    "framework",
    "micro_batch_size",
    "tensor_parallel_size",
    "sequence_parallel",
    "context_parallel_size",
    "context_parallel_kind",
    "expert_parallel_size",
    "expert_tensor_parallel_size",
    "activation_checkpointing",
    "recompute_modules",
    "precision",
    "fp8_recipe",
    "parameter_dtype",
    "gradient_dtype",
    "overlap_communication",
    "compile",
    "kernels",
    "cuda_graphs",
)


@dataclass(frozen=True)
class LayerCases:
    """u distinct cases with the sizes that every operator needs; columns (u,)."""

    table: StrategyTable
    piped: BoolColumn
    """Whether stages lie on several hosts."""
    coefficients: Coefficients
    tokens: FloatColumn
    """Of one micro-batch on one rank, before sequence parallelism splits them."""
    shard_tokens: FloatColumn
    """Tokens of norms and residuals: split over tensor ranks under sequence parallelism."""
    sequence: float
    tensor: FloatColumn
    context: FloatColumn
    expert: FloatColumn
    expert_tensor: FloatColumn
    gradient_bytes: FloatColumn
    """Of an element of the accumulated gradient."""
    fused: BoolColumn
    """Transformer Engine kernels."""
    compiled: BoolColumn
    eager: BoolColumn
    """Plain Hugging Face blocks, not compiled."""

    def __len__(self) -> int:
        return len(self.tokens)

    def fact(self, name: str) -> BoolColumn:
        """A yes-no field of each case's framework."""
        flags: BoolColumn = framework_flags(name)[self.table.framework]
        return flags

    def coefficient(self, name: str) -> FloatColumn:
        """A coefficient of each case's framework."""
        column: FloatColumn = self.coefficients.by_framework(name)[self.table.framework]
        return column

    def recomputes(self, module: str) -> BoolColumn:
        """Where `module` is recomputed selectively."""
        chosen: BoolColumn = self.selective & (
            (self.table.recompute_modules >> RECOMPUTE_MODULES.index(module)) & 1 > 0
        )
        return chosen

    def barrier_seconds(self, collectives: FloatColumn | float) -> FloatColumn:
        """What tensor ranks wait for each other on the CPU before each of their collectives.

        `barrier_seconds` of a framework: torch's ProcessGroupWrapper meets all ranks one by one before a collective
        (monitoredBarrier over Gloo), but not before a send, under TORCH_DISTRIBUTED_DEBUG=DETAIL.
        """
        waits = self.piped & (self.tensor > 1)
        seconds: FloatColumn = np.where(waits, collectives * self.tensor * self.coefficient("barrier_seconds"), 0.0)
        return seconds

    @property
    def autocast(self) -> BoolColumn:
        """Where torch.autocast casts fp32 weights, and the fp32 stream of activations, for every product."""
        wide = self.table.is_choice("parameter_dtype", "fp32") & ~self.table.is_choice("precision", "fp32")
        return self.fact("casts_weights") & wide

    @property
    def selective(self) -> BoolColumn:
        """Where activation checkpointing is selective."""
        return self.table.is_choice("activation_checkpointing", "selective")

    @property
    def full(self) -> BoolColumn:
        """Where whole layers are recomputed."""
        return self.table.is_choice("activation_checkpointing", "full")


def framework_flags(name: str) -> BoolColumn:
    """A yes-no field of every framework, in the order of the framework column."""
    return np.array([bool(getattr(framework, name)) for framework in FRAMEWORKS])


def layer_cases(problem: Problem, table: StrategyTable, coefficients: Coefficients) -> tuple[LayerCases, IntColumn]:
    """The distinct cases of a table and the number of each row's case."""
    piped = (table.pipeline_parallel_size > 1) & (problem.cluster.nodes > 1)
    representatives, number = distinct_rows([*(getattr(table, name) for name in CASE_COLUMNS), piped])
    cases = table.take(representatives)
    sequence = float(problem.workload.sequence_length)
    tensor = cases.tensor_parallel_size.astype(np.float64)
    tokens = cases.micro_batch_size * sequence / cases.context_parallel_size
    compiled = cases.compile
    return (
        LayerCases(
            table=cases,
            piped=piped[representatives],
            coefficients=coefficients,
            tokens=tokens,
            shard_tokens=np.where(cases.sequence_parallel, tokens / tensor, tokens),
            sequence=sequence,
            tensor=tensor,
            context=cases.context_parallel_size.astype(np.float64),
            expert=cases.expert_parallel_size.astype(np.float64),
            expert_tensor=cases.expert_tensor_parallel_size.astype(np.float64),
            gradient_bytes=dtype_bytes(cases.gradient_dtype),
            fused=cases.is_choice("kernels", "fused"),
            compiled=compiled,
            eager=cases.is_choice("kernels", "eager") & ~compiled,
        ),
        number,
    )
