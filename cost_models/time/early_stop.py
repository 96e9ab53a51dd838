"""Where the recomputation of a whole layer ends.

PyTorch's checkpointing without re-entrance stops once everything that was saved is there again (torch.utils.checkpoint,
set_checkpoint_early_stop, on by default since 2.1).

The last product of a block makes nothing that backward reads, only what is added to the residual stream. Re-entrant
checkpointing (Megatron-LM's and nanotron's CheckpointFunction, DeepSpeed's) runs the whole forward pass again.
"""

from __future__ import annotations

from cost_models.architecture import Block, FeedForward
from cost_models.problem import Problem
from cost_models.strategy import BoolColumn, StrategyTable
from cost_models.time.cases import framework_flags


def spares_last_product(problem: Problem, block: Block, table: StrategyTable) -> BoolColumn:
    """Of strategies that recompute whole layers, those that leave out the feed-forward part's last product, (n,)."""
    stops: BoolColumn = framework_flags("checkpoint_stops_early")[table.framework]
    return stops & _ends_in_a_product(problem, block)


def _ends_in_a_product(problem: Problem, block: Block) -> bool:
    """Nothing after it saves a tensor: neither a norm, nor dropout's mask, nor experts' outputs for their weights."""
    norm_before = block.norms <= 1 + len(block.attentions) and not block.encoder
    return isinstance(block.feed_forward, FeedForward) and norm_before and problem.workload.dropout == 0
