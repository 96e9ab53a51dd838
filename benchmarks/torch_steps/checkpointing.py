"""Activation checkpointing as torchtitan applies it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def checkpoint_layers(layers: nn.ModuleList, kind: str) -> None:
    for index, layer in enumerate(layers):
        if kind == "full":
            layers[index] = checkpoint_wrapper(layer, preserve_rng_state=False)
        elif kind == "selective":
            layers[index] = checkpoint_wrapper(layer, preserve_rng_state=False, context_fn=_every_second_product)


def _every_second_product() -> Any:
    """torchtitan's policy for operators: attention's outputs are kept, and every second matrix product."""
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        product = operator == torch.ops.aten.mm.default
        if product:
            seen[context.is_recompute] += 1
        keep = operator == torch.ops.paraplan.flash.default or (product and seen[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
