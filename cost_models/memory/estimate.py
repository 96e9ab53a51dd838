"""The entry point of the memory model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from cost_models.memory.breakdown import peak_parts
from cost_models.memory.buffers import Buffers
from cost_models.memory.facts import number
from cost_models.memory.in_flight import depth_column
from cost_models.memory.lasting import LASTING_COLUMNS, Lasting, LastingNeeds, kept_casts, lasting_bytes
from cost_models.memory.loss import loss_head
from cost_models.memory.overhead import CONTEXT_BYTES, fragmentation_bytes, stuck_fragmentation_bytes
from cost_models.memory.peak import Peak, stage_peak
from cost_models.memory.received import buffered_micro_batches
from cost_models.memory.recomputation import LAYER_COLUMNS, layer_activations
from cost_models.memory.shared import Shared, share
from cost_models.memory.stage_activations import StageActivations, offloaded_share, stage_activations
from cost_models.memory.sums import ActivationSums, MomentSums, activation_sums, moment_sums
from cost_models.memory.tokens import tokens
from cost_models.problem import Problem
from cost_models.results import MEMORY_PARTS, MemoryEstimate, MemoryNeeds
from cost_models.stages import StageRows
from cost_models.strategy import Column, FloatColumn, IntColumn, StrategyTable

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
BLOCK_STRATEGIES: Final = 4_096
"""The same of strategies, which have three or four stage rows in a sweep."""

NO_STEP: Final = np.zeros(1)
"""Temporaries of the optimizer's step, before it."""

_Columns = TypeVar("_Columns", Lasting, StageActivations, Buffers, MomentSums, ActivationSums)


def estimate_memory(problem: Problem, table: StrategyTable, stages: StageRows) -> MemoryEstimate:
    """Peak memory of every stage row of valid strategies."""
    priced = _price(problem, table, stages)
    columns: dict[str, Column] = {}
    for begin in range(0, len(stages), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        peak, totals = priced.peak(block)
        moment, parts = priced.parts(block, peak)
        answers = {**parts, "moment": moment, **totals.__dict__}
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
        fullest=stages.first_with_most(columns["device"]),
        activation_bytes_per_layer=priced.passing.on_strategies(priced.per_layer),
        device_load_peak_bytes=priced.load_bytes(),
        host_bytes_per_node=priced.host_bytes(),
        nvme_bytes_per_node=priced.lasting.on_strategies(priced.needs.nvme),
        relative_error=number(table, "memory_error"),
    )


def memory_needs(problem: Problem, table: StrategyTable, stages: StageRows) -> MemoryNeeds:
    """The figures of `estimate_memory` that decide what fits, without the stages and the parts: for sweeps."""
    priced = _price(problem, table, stages)
    device, required = np.empty(len(table)), np.empty(len(table))
    bounds = np.append(stages.start[::BLOCK_STRATEGIES], len(stages))
    for block, (begin, end) in enumerate(pairwise(bounds.tolist())):
        _, totals = priced.peak(slice(begin, end))
        strategies = slice(block * BLOCK_STRATEGIES, (block + 1) * BLOCK_STRATEGIES)
        start = stages.start[strategies] - begin
        np.maximum.reduceat(totals.device, start, out=device[strategies])
        np.maximum.reduceat(totals.required, start, out=required[strategies])
    return MemoryNeeds(
        peak_bytes=device,
        most_required_bytes=required,
        device_load_peak_bytes=priced.load_bytes(),
        host_bytes_per_node=priced.host_bytes(),
        nvme_bytes_per_node=priced.lasting.on_strategies(priced.needs.nvme),
        relative_error=number(table, "memory_error"),
    )


@dataclass(frozen=True)
class _Totals:
    """m stage rows, bytes."""

    allocated: FloatColumn
    fragmentation: FloatColumn
    reserved: FloatColumn
    device: FloatColumn
    required: FloatColumn


@dataclass(frozen=True)
class _Priced:
    """Distinct strategies, priced, and how to find them for each stage row."""

    context: float
    gpus_per_node: float
    lasting: Shared
    of_lasting: Lasting
    sums: MomentSums
    needs: LastingNeeds
    passing: Shared
    of_passing: StageActivations
    activations: ActivationSums
    per_layer: FloatColumn
    on_host: FloatColumn
    """Activations of the stage that has most of them there."""

    def peak(self, rows: slice) -> tuple[Peak, _Totals]:
        """Of some stage rows."""
        sums = _gathered(self.sums, self.lasting.rows[rows])
        passing = _gathered(self.activations, self.passing.rows[rows])
        peak = stage_peak(sums, passing)
        # What has been reserved stays so: the most that the moments before the step or the step itself leave.
        fragmentation = fragmentation_bytes(sums.expandable, peak.within, peak.transient, NO_STEP)
        pooled = np.maximum(sums.pooled_gradients - peak.kept, 0.0) + sums.pooled_buffers
        reserved = np.maximum(peak.within + fragmentation + pooled, sums.step_reserved + passing.logits)
        allocated = peak.allocated
        stuck = stuck_fragmentation_bytes(sums.expandable, allocated)
        outside = sums.outside + self.context
        return peak, _Totals(allocated, reserved - allocated, reserved, reserved + outside, allocated + stuck + outside)

    def parts(self, rows: slice, peak: Peak) -> tuple[IntColumn, dict[str, FloatColumn]]:
        """Moments of some stage rows, and bytes by MEMORY_PARTS without fragmentation."""
        lasting = _gathered(self.of_lasting, self.lasting.rows[rows])
        moment, parts = peak_parts(lasting, _gathered(self.of_passing, self.passing.rows[rows]), peak)
        return moment, {
            **parts,
            "communication_buffers": parts["communication_buffers"] + lasting.outside,
            "framework_overhead": lasting.workspace + self.context,
        }

    def load_bytes(self) -> FloatColumn:
        """(n,) of the device while the model and the optimizer are set up."""
        return self.lasting.on_strategies(self.needs.device_load) + self.context

    def host_bytes(self) -> dict[str, FloatColumn]:
        """By HOST_PARTS, (n,)."""
        host = {name: self.lasting.on_strategies(column) for name, column in self.needs.host.items()}
        if self.on_host.any():
            # Pinned memory stays with the process between steps; while weights are loaded there is none yet.
            activations = self.gpus_per_node * self.passing.on_strategies(self.on_host)
            host |= {name: host[name] + activations for name in ("steady", "checkpoint_peak")}
        return host


def _price(problem: Problem, table: StrategyTable, stages: StageRows) -> _Priced:
    lasting = share(table, stages, LASTING_COLUMNS, problem.micro_batches(table) > 1, kept_casts(problem, table))
    depths = (depth_column(problem, table), buffered_micro_batches(problem, table))
    passing = share(table, stages, PASSING_COLUMNS, *depths, offloaded_share(table))
    of_lasting, needs = lasting_bytes(problem, lasting.table, lasting.stages)
    of_passing, per_layer, on_host = _passing_bytes(problem, passing.table, passing.stages)
    return _Priced(
        context=CONTEXT_BYTES,
        gpus_per_node=float(problem.cluster.gpus_per_node),
        lasting=lasting,
        of_lasting=of_lasting,
        sums=moment_sums(of_lasting),
        needs=needs,
        passing=passing,
        of_passing=of_passing,
        activations=activation_sums(of_passing),
        per_layer=per_layer,
        on_host=on_host,
    )


def _passing_bytes(
    problem: Problem, table: StrategyTable, stages: StageRows
) -> tuple[StageActivations, FloatColumn, FloatColumn]:
    """What comes and goes with the micro-batches, (m,); what one middle block saves and what is on the host, (n,)."""
    at = tokens(problem, table)
    layers = layer_activations(problem, table)
    middle = problem.model.layer_blocks[problem.model.layers // 2]
    passing, on_host = stage_activations(problem, table, stages, layers, loss_head(problem, table, at), at)
    return passing, layers.kept[:, middle][layers.which], np.maximum.reduceat(on_host, stages.start)


def _gathered(columns: _Columns, rows: IntColumn) -> _Columns:
    return type(columns)(**{name: _taken(value, rows) for name, value in vars(columns).items()})


def _taken(value: Any, rows: IntColumn) -> Any:
    """Rows of a column, or of the columns of `Buffers`."""
    return _gathered(value, rows) if isinstance(value, Buffers) else value.take(rows)
