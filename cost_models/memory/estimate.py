"""The entry point of the memory model."""

from __future__ import annotations

from dataclasses import fields
from typing import Final, TypeVar

import numpy as np

from cost_models.memory.facts import flag
from cost_models.memory.in_flight import depth_column, micro_batches
from cost_models.memory.lasting import LASTING_COLUMNS, Lasting, lasting_bytes
from cost_models.memory.loss import loss_head
from cost_models.memory.overhead import context_bytes, fragmentation_bytes, stuck_fragmentation_bytes
from cost_models.memory.peak import stage_peak
from cost_models.memory.recomputation import LAYER_COLUMNS, layer_activations
from cost_models.memory.shared import share
from cost_models.memory.stage_activations import StageActivations, stage_activations
from cost_models.memory.tokens import tokens
from cost_models.problem import Problem
from cost_models.results import MEMORY_PARTS, MemoryEstimate
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, Column, FloatColumn, IntColumn, StrategyTable

PASSING_COLUMNS: Final = (
    *LAYER_COLUMNS,
    "checkpointed_layers",
    "pipeline_parallel_size",
    "layers_per_stage",
    "pipeline_schedule",
)
"""All that `_passing_bytes` reads of a strategy, besides how many micro-batches are in flight."""

BLOCK_ROWS: Final = 8_192
"""Stage rows combined in one pass: their columns fit the cache, and freed ones are used again at once."""

_Columns = TypeVar("_Columns", Lasting, StageActivations)


def estimate_memory(problem: Problem, table: StrategyTable, stages: StageRows) -> MemoryEstimate:
    """Peak memory of every stage row of valid strategies."""
    lasting_share = share(table, stages, LASTING_COLUMNS, micro_batches(problem, table) > 1)
    passing_share = share(table, stages, PASSING_COLUMNS, depth_column(problem, table))
    distinct_lasting, needs = lasting_bytes(problem, lasting_share.table, lasting_share.stages)
    distinct_passing, per_layer = _passing_bytes(problem, passing_share.table, passing_share.stages)
    fresh = _fresh_gradients(problem, table)
    context = context_bytes(problem)
    columns: dict[str, Column] = {}
    for begin in range(0, len(stages), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        row = stages.row[block]
        answers = _stage_columns(
            _gathered(distinct_lasting, lasting_share.rows[block]),
            _gathered(distinct_passing, passing_share.rows[block]),
            fresh[row],
            table.expandable_segments[row],
            context,
        )
        for name, values in answers.items():
            columns.setdefault(name, np.empty(len(stages), dtype=values.dtype))[block] = values
    return MemoryEstimate(
        stages=stages,
        parts={name: columns[name] for name in MEMORY_PARTS},
        peak_allocated_bytes=columns["allocated"],
        peak_reserved_bytes=columns["reserved"],
        peak_bytes=columns["device"],
        required_bytes=columns["required"],
        peak_moment=columns["moment"],
        fullest=_fullest(columns["device"], stages),
        activation_bytes_per_layer=passing_share.on_strategies(per_layer),
        device_load_peak_bytes=lasting_share.on_strategies(needs.device_load) + context,
        host_bytes_per_node={name: lasting_share.on_strategies(column) for name, column in needs.host.items()},
        nvme_bytes_per_node=lasting_share.on_strategies(needs.nvme),
    )


def _stage_columns(
    lasting: Lasting, passing: StageActivations, fresh: BoolColumn, expandable: BoolColumn, context: float
) -> dict[str, Column]:
    """The answers of some stage rows: MEMORY_PARTS, four totals and the moment of the peak."""
    peak = stage_peak(lasting, passing, fresh)
    allocated = peak.total + lasting.workspace
    fragmentation = fragmentation_bytes(expandable, allocated, peak.transient, peak.step_temporaries)
    outside = lasting.outside + context
    reserved = allocated + fragmentation
    return {
        **peak.parts,
        "communication_buffers": peak.parts["communication_buffers"] + lasting.outside,
        "framework_overhead": lasting.workspace + context,
        "fragmentation": fragmentation,
        "allocated": allocated,
        "reserved": reserved,
        "device": reserved + outside,
        "required": allocated + stuck_fragmentation_bytes(expandable, allocated) + outside,
        "moment": peak.moment,
    }


def _passing_bytes(problem: Problem, table: StrategyTable, stages: StageRows) -> tuple[StageActivations, FloatColumn]:
    """What comes and goes with the micro-batches, (m,), and what one middle block saves, (n,)."""
    at = tokens(problem, table)
    layers = layer_activations(problem, table)
    middle = problem.model.layer_blocks[problem.model.layers // 2]
    passing = stage_activations(problem, table, stages, layers, loss_head(problem, table, at), at)
    return passing, layers.kept[:, middle][layers.which]


def _gathered(columns: _Columns, rows: IntColumn) -> _Columns:
    names = [field.name for field in fields(columns)]
    return type(columns)(**{name: getattr(columns, name).take(rows) for name in names})


def _fresh_gradients(problem: Problem, table: StrategyTable) -> BoolColumn:
    """Gradients that do not exist before the backward at the peak: set to None after each step, one micro-batch."""
    fresh: BoolColumn = ~flag(table, "persistent_gradients") & (micro_batches(problem, table) == 1)
    return fresh


def _fullest(peak: FloatColumn, stages: StageRows) -> IntColumn:
    """The first stage row of each strategy with the highest peak."""
    most = np.maximum.reduceat(peak, stages.start)
    at_most = np.flatnonzero(peak == most[stages.row])
    first: IntColumn = at_most[np.searchsorted(stages.row[at_most], np.arange(len(stages.start)))]
    return first
