"""Strategies as columns: a structure of arrays with one column per field of the contract.

Choices are stored as indices into the tuples below, layouts of layers as indices into `StrategyTable.layouts`, and
`recompute_modules` as a bit mask, so that every column is a plain numeric array and a table of a million strategies
can be scored without a Python loop. `PartialColumns` (missing values allowed) becomes a `StrategyTable` in
`cost_models.resolve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

IntColumn: TypeAlias = npt.NDArray[np.int64]
FloatColumn: TypeAlias = npt.NDArray[np.float64]
BoolColumn: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = npt.NDArray[Any]

FRAMEWORKS: Final = ("megatron-lm", "deepspeed", "fsdp2", "fsdp1", "ddp", "nanotron")
PIPELINE_SCHEDULES: Final = ("1f1b", "interleaved", "gpipe", "zero-bubble")
CONTEXT_PARALLEL_KINDS: Final = ("ring", "all-gather", "all-to-all")
ACTIVATION_CHECKPOINTING: Final = ("none", "selective", "full")
RECOMPUTE_MODULES: Final = ("core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe")
OFFLOADS: Final = ("none", "optimizer", "optimizer-and-parameters", "nvme", "activations")
PRECISIONS: Final = ("bf16", "fp16", "fp8", "nvfp4", "fp32")
FP8_RECIPES: Final = (None, "tensorwise", "rowwise", "blockwise", "mxfp8")
DTYPES: Final = ("fp32", "bf16", "fp16", "fp8", "nf4", "int8")
DTYPE_BYTES: Final = (4.0, 2.0, 2.0, 1.0, 0.5, 1.0)
"""Bytes of an element, in the order of DTYPES; scales and quantisation constants are priced where they are kept."""
KERNELS: Final = ("fused", "partly-fused", "eager")
CHECKPOINT_LOADING: Final = ("sharded", "rank0", "every-rank")
CHECKPOINT_SAVING: Final = ("sharded", "full")

CHOICES: Final[Mapping[str, tuple[str | None, ...]]] = {
    "framework": FRAMEWORKS,
    "pipeline_schedule": PIPELINE_SCHEDULES,
    "context_parallel_kind": CONTEXT_PARALLEL_KINDS,
    "activation_checkpointing": ACTIVATION_CHECKPOINTING,
    "offload": OFFLOADS,
    "precision": PRECISIONS,
    "fp8_recipe": FP8_RECIPES,
    "parameter_dtype": DTYPES,
    "gradient_dtype": DTYPES,
    "optimizer_state_dtype": DTYPES,
    "kernels": KERNELS,
    "checkpoint_loading": CHECKPOINT_LOADING,
    "checkpoint_saving": CHECKPOINT_SAVING,
}
FLAGS: Final = frozenset(
    {
        "sequence_parallel",
        "overlap_communication",
        "compile",
        "cuda_graphs",
        "gradient_as_bucket_view",
        "expandable_segments",
    }
)
FLOATS: Final = frozenset({"offload_fraction"})
MISSING: Final = -1
"""A value left out, in every integer, choice and flag column of `PartialColumns` (NaN in `offload_fraction`)."""


def code(field: str, choice: str | None) -> int:
    """Index of a choice, e.g. code("framework", "fsdp2") == 2."""
    return CHOICES[field].index(choice)


def dtype_bytes(column: IntColumn) -> FloatColumn:
    """Bytes of an element, by a dtype column."""
    result: FloatColumn = np.array(DTYPE_BYTES)[column]
    return result


@dataclass(frozen=True)
class StrategyTable:
    """n resolved strategies. Every column has shape (n,); names and meanings are the contract's."""

    framework: IntColumn
    data_parallel_size: IntColumn
    data_parallel_replicate_size: IntColumn
    secondary_shard_size: IntColumn
    tensor_parallel_size: IntColumn
    sequence_parallel: BoolColumn
    pipeline_parallel_size: IntColumn
    virtual_pipeline_size: IntColumn
    pipeline_schedule: IntColumn
    layers_per_stage: IntColumn
    """Index into `layouts`."""
    context_parallel_size: IntColumn
    context_parallel_kind: IntColumn
    expert_parallel_size: IntColumn
    expert_tensor_parallel_size: IntColumn
    zero_stage: IntColumn
    micro_batch_size: IntColumn
    activation_checkpointing: IntColumn
    recompute_modules: IntColumn
    """Bit i: RECOMPUTE_MODULES[i]."""
    checkpointed_layers: IntColumn
    """Of each stage; a stage that has fewer layers checkpoints all of its own."""
    offload: IntColumn
    offload_fraction: FloatColumn
    precision: IntColumn
    fp8_recipe: IntColumn
    parameter_dtype: IntColumn
    gradient_dtype: IntColumn
    optimizer_state_dtype: IntColumn
    overlap_communication: BoolColumn
    compile: BoolColumn
    kernels: IntColumn
    cuda_graphs: BoolColumn
    gradient_as_bucket_view: BoolColumn
    expandable_segments: BoolColumn
    checkpoint_loading: IntColumn
    checkpoint_saving: IntColumn
    layouts: tuple[tuple[int, ...], ...]
    """Layers of each model chunk in model order, length pipeline x virtual: what `layers_per_stage` points to."""

    def __len__(self) -> int:
        return len(self.framework)

    def take(self, rows: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | slice) -> StrategyTable:
        """The given rows, in the given order; layouts are shared."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    @property
    def offloads_states(self) -> BoolColumn:
        """(n,) whether optimizer states, or a share of them, live on the host."""
        return self.is_choice("offload", "optimizer", "optimizer-and-parameters", "nvme")

    def is_choice(self, field: str, *choices: str | None) -> BoolColumn:
        """Where a choice column holds one of the given choices."""
        column = getattr(self, field)
        result = np.zeros(len(column), dtype=np.bool_)
        for choice in choices:
            result |= column == code(field, choice)
        return result

    def row(self, index: int) -> dict[str, Any]:
        """One strategy in the words of the contract, every field filled."""
        return {name: self.value(name, index) for name in COLUMNS}

    def value(self, name: str, index: int) -> Any:
        """One field of one strategy in the words of the contract."""
        value = getattr(self, name)[index]
        if name in CHOICES:
            return CHOICES[name][value]
        if name in FLAGS:
            return bool(value)
        if name in FLOATS:
            return float(value)
        if name == "layers_per_stage":
            return list(self.layouts[value])
        if name == "recompute_modules":
            return [module for bit, module in enumerate(RECOMPUTE_MODULES) if value >> bit & 1]
        return int(value)


COLUMNS: Final = tuple(f.name for f in fields(StrategyTable) if f.name != "layouts")


def concatenate(tables: Sequence[StrategyTable]) -> StrategyTable:
    """All rows of all tables, in order; equal layouts are stored once."""
    index: dict[tuple[int, ...], int] = {}
    renumbered = []
    for table in tables:
        numbers = np.array([index.setdefault(layout, len(index)) for layout in table.layouts], dtype=np.int64)
        renumbered.append(numbers[table.layers_per_stage] if len(table) else table.layers_per_stage)
    columns: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS}
    columns["layers_per_stage"] = np.concatenate(renumbered)
    return StrategyTable(**columns, layouts=tuple(index))


@dataclass(frozen=True)
class PartialColumns:
    """n strategies as they were asked for: any column may be absent, any value MISSING."""

    columns: Mapping[str, Column]
    layouts: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.columns["framework"])


def partial_columns(strategies: Iterable[Mapping[str, Any]]) -> PartialColumns:
    """Strategies in the words of the contract (absent or None: left out) as columns. Values are taken to be checked."""
    rows = list(strategies)
    columns: dict[str, Column] = {}
    layouts: dict[tuple[int, ...], int] = {}
    for name in COLUMNS:
        values = [row.get(name) for row in rows]
        if all(value is None for value in values) and name != "framework":
            continue
        if name in FLOATS:
            columns[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        else:
            columns[name] = np.array([_encode(name, value, layouts) for value in values], dtype=np.int64)
    return PartialColumns(columns, tuple(layouts))


def _encode(name: str, value: Any, layouts: dict[tuple[int, ...], int]) -> int:
    if value is None:
        return MISSING
    if name in CHOICES:
        return code(name, value)
    if name == "layers_per_stage":
        return layouts.setdefault(tuple(value), len(layouts))
    if name == "recompute_modules":
        return sum(1 << RECOMPUTE_MODULES.index(module) for module in set(value))
    return int(value)
