"""Tensors on their way between pipeline stages, besides those that are saved for backward."""

from __future__ import annotations

import numpy as np

from cost_models.memory.facts import flag
from cost_models.memory.in_flight import InFlight
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable


def buffered_micro_batches(problem: Problem, table: StrategyTable) -> IntColumn:
    """(n,) micro-batches that every model chunk has buffers for; 0 where buffers come and go."""
    kept = flag(table, "keeps_receive_buffers") & (table.pipeline_parallel_size > 1)
    return np.where(kept, problem.micro_batches(table), 0)


def received_bytes(
    problem: Problem, table: StrategyTable, stages: StageRows, held: InFlight, boundary: FloatColumn
) -> FloatColumn:
    """(m,) of a rank; `boundary` (n,) is what one micro-batch passes between stages."""
    # Megatron-Core's loops still name the gradient that the micro-batch before sent to the previous stage; a received
    # gradient is the one that backward works on. Interleaved stages receive both sides' next tensors ahead of use.
    row = stages.row
    one = np.where(table.pipeline_parallel_size > 1, boundary, 0.0)
    ahead = np.where(table.is_choice("pipeline_schedule", "interleaved"), 2.0 * one, 0.0)
    received: FloatColumn = np.where(stages.first, ahead[row], np.maximum(ahead, one)[row])
    count = buffered_micro_batches(problem, table)
    mine = np.flatnonzero(count[row] > 0)
    if len(mine):
        # torch.distributed.pipelining makes buffers of every micro-batch once, for what each chunk receives on either
        # side (stage.py, _setup_forward_recv_info and _create_grad_recv_info). Those of micro-batches in flight are
        # their saved inputs. The gradient of one is sent while the next is worked on (_backward.py, stage_backward).
        which = row[mine]
        chunks = table.virtual_pipeline_size[which].astype(np.float64)
        inward, outward = chunks - stages.first[mine], chunks - stages.last[mine]
        finished = np.maximum(count[which] - (held.entering[mine] + held.leaving[mine]) / 2.0, 0.0)
        sent = np.where(inward > 0, 1.0, 0.0)
        received[mine] = one[which] * (inward * finished + outward * count[which] + sent)
    return received
