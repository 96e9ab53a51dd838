"""What every activation formula needs of a strategy: tokens of a rank, shares of it, bytes of an element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import flag
from cost_models.plain_code import PlainCode, plain_code
from cost_models.problem import Problem
from cost_models.quantisation import NVFP4_BYTES
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable


@dataclass(frozen=True)
class Tokens:
    """u strategies."""

    problem: Problem
    table: StrategyTable
    count: FloatColumn
    """Tokens of one micro-batch on one context rank."""
    keys: float
    """Keys that a query may see under eager attention."""
    tensor: FloatColumn
    """1 / tensor-parallel size: share of what lies between a column- and a row-parallel matrix."""
    residual: FloatColumn
    """Share of norms, dropouts and the residual stream: all of it without sequence parallelism (arXiv 2205.05198)."""
    gathered: FloatColumn
    """Share of a norm's output that is kept for the matrix after it."""
    element: FloatColumn
    """Bytes of an activation: 2, or 4 with precision fp32."""
    stream: FloatColumn
    """Bytes of an element of the residual stream and of a norm's output: fp32 under autocast, as fp32 embeddings and
    norm weights make them."""
    autocast: BoolColumn
    """Matrices cast their inputs to 16 bit, each for itself (torch.autocast over fp32 weights)."""
    casts_adapted: BoolColumn
    """Adapters in fp32 cast what they read for themselves, and autocast casts that again (peft/tuners/lora)."""
    linear_input: FloatColumn
    """Bytes of an element of a linear layer's input that nothing else keeps: less where narrow copies are saved."""
    eager: BoolColumn
    """Plain kernels: un-fused norms in fp32, activations and products kept one by one."""
    written_out: BoolColumn
    """The same where nothing compiles them: torch.compile works norms and activations out again from what matrices
    wrote, as if they were fused."""
    fused: BoolColumn
    fused_gate: BoolColumn
    """The product of a gated activation is part of its kernel."""
    plain: PlainCode
    """How transformers writes the model's blocks out."""


def sequence_length(problem: Problem) -> int:
    """Tokens of a sequence: a ViT has only one length, else the workload's."""
    return problem.model.sequence_length or problem.workload.sequence_length


def compute_bytes(table: StrategyTable) -> FloatColumn:
    """Bytes of an element in the compute dtype, (n,)."""
    return np.where(table.is_choice("precision", "fp32"), 4.0, 2.0)


def tokens(problem: Problem, table: StrategyTable) -> Tokens:
    """Shapes of one micro-batch on one rank."""
    length = sequence_length(problem)
    tensor = 1.0 / table.tensor_parallel_size
    residual = np.where(table.sequence_parallel, tensor, 1.0)
    element = compute_bytes(table)
    casting = flag(table, "casts_weights") & (element < 4.0)
    autocast = casting & table.is_choice("parameter_dtype", "fp32")
    narrow = np.where(table.is_choice("precision", "fp8"), 1.0, element)
    narrow = np.where(table.is_choice("precision", "nvfp4"), NVFP4_BYTES, narrow)
    return Tokens(
        problem=problem,
        table=table,
        count=table.micro_batch_size * length / table.context_parallel_size,
        keys=float(length),
        tensor=tensor,
        residual=residual,
        gathered=np.where(flag(table, "regathers_sequence_parallel_inputs"), residual, 1.0),
        element=element,
        stream=np.where(autocast, 4.0, element),
        autocast=autocast,
        casts_adapted=casting & (problem.workload.fine_tuning is not None),
        linear_input=np.where(flag(table, "fp8_saved_inputs"), narrow, element),
        eager=table.is_choice("kernels", "eager"),
        written_out=table.is_choice("kernels", "eager") & ~table.compile,
        fused=table.is_choice("kernels", "fused"),
        # torch.compile recomputes products and activations from the saved outputs of the matrices (min-cut partitioner)
        fused_gate=(table.is_choice("kernels", "fused") & flag(table, "gated_product_fused")) | table.compile,
        plain=plain_code(problem.model.model_type, problem.model.norm),
    )
