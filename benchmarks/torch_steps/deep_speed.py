"""DeepSpeed itself, without a GPU: its engine on the CPU accelerator, with fake tensors and a fake process group.

ZeRO asks tensors for values here and there (gradient norms, agreement between ranks); it is told what lets it go on.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from benchmarks.torch_steps.checkpointing import checkpoint_layers
from benchmarks.torch_steps.dtypes import default_dtype
from benchmarks.torch_steps.models import Decoder
from benchmarks.torch_steps.step import Step
from benchmarks.torch_steps.tracking import Measured, Tracker, fake_ranks, measure_whole

_RENDEZVOUS: Final = {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
_AGREEMENT: Final = ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks")


def run_deepspeed(step: Step) -> Measured:
    """Peak of the second step under DeepSpeed's defaults for the stage."""
    # The last rank's share are the last weights, whose gradients come first: it holds most.
    last = step.ranks - 1
    os.environ.update(_RENDEZVOUS, RANK=str(last), WORLD_SIZE=str(step.ranks), DS_ACCELERATOR="cpu")
    deepspeed = _deepspeed()
    with fake_ranks((step.ranks,), last):
        deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)
        tracker = Tracker()
        with tracker:
            with default_dtype(torch.bfloat16):
                model = Decoder(step.dims, step.sequence_length)
            checkpoint_layers(model.layers, step.strategy.get("activation_checkpointing", "none"))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
            engine = deepspeed.initialize(
                model=model, optimizer=optimizer, config=_config(step), dist_init_required=False
            )[0]
            del optimizer
            last_layer = model.layers[-1]

            def loss(tokens: Tensor, labels: Tensor) -> Tensor:
                logits = engine(tokens)
                tracker.phase = "loss"
                return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

            return measure_whole(tracker, lambda: _train(step, engine, last_layer, loss, tracker))


def _config(step: Step) -> dict[str, Any]:
    overlap = step.strategy.get("overlap_communication", True)
    return {
        "train_micro_batch_size_per_gpu": step.micro_batch_size,
        "gradient_accumulation_steps": step.micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": step.strategy.get("zero_stage", 0), "overlap_comm": overlap},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _train(step: Step, engine: Any, last_layer: nn.Module, loss: Any, tracker: Tracker) -> None:
    shape = (step.micro_batch_size, step.sequence_length)
    hook = last_layer.register_forward_hook(tracker.leave_head)
    for _ in range(step.micro_batches):
        tracker.phase = "forward"
        tracker.reset_mod_stats()
        tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        value = loss(tokens, labels)
        engine.backward(value)
        del value
        tracker.phase = "optimizer"
        engine.step()
    hook.remove()


def _deepspeed() -> Any:
    import deepspeed
    from deepspeed.runtime.zero import parameter_offload, partition_parameters, partitioned_param_coordinator, stage3

    deepspeed.utils.logger.setLevel(logging.ERROR)
    for module in (parameter_offload, partition_parameters, partitioned_param_coordinator, stage3):
        for name in _AGREEMENT:
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: None)
    # Fake tensors are where they belong, and cannot be swapped for others.
    nn.Module.to = lambda self, *_, **__: self  # type: ignore[method-assign]
    nn.Module.bfloat16 = lambda self: self  # type: ignore[method-assign]
    FakeTensor.item = lambda _: 0.0
    FakeTensor.__bool__ = lambda _: False  # type: ignore[assignment]
    return deepspeed
