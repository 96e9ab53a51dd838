"""One training step of each framework, wrapped as its users wrap it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.torch_steps.building import built
from benchmarks.torch_steps.checkpointing import checkpoint_layers
from benchmarks.torch_steps.dtypes import default_dtype
from benchmarks.torch_steps.hugging_face import language_model
from benchmarks.torch_steps.models import Decoder
from benchmarks.torch_steps.pipelines import run_pipeline
from benchmarks.torch_steps.step import Step
from benchmarks.torch_steps.tracking import Measured, Tracker, fake_ranks, measure


def run(step: Step) -> Measured:
    """Peak of the second step."""
    framework = step.strategy["framework"]
    if framework == "deepspeed":
        from benchmarks.torch_steps.deep_speed import run_deepspeed

        return run_deepspeed(step)
    if step.strategy.get("pipeline_parallel_size", 1) > 1:
        return run_pipeline(step)
    return {"fsdp2": _fsdp2, "ddp": _ddp}[framework](step)


def _fsdp2(step: Step) -> Measured:
    strategy = step.strategy
    replicas = strategy.get("data_parallel_replicate_size", 1)
    shape = (replicas, step.ranks // replicas) if replicas > 1 else (step.ranks,)
    with fake_ranks(shape) as mesh:
        with default_dtype(torch.bfloat16 if strategy.get("parameter_dtype") == "bf16" else torch.float32):
            model = built(step, torch.get_default_dtype())
        checkpoint_layers(model.layers, strategy.get("activation_checkpointing", "none"))
        _shard(model, mesh, strategy.get("zero_stage", 3) == 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def loss(tokens: Tensor, labels: Tensor, tracker: Tracker) -> Tensor:
            return _loss(step, model, tokens, labels, tracker)

        return measure(
            model, optimizer, partial(_train, step, model.layers[-1], optimizer, loss, contextlib.nullcontext)
        )


def _loss(step: Step, model: nn.Module, tokens: Tensor, labels: Tensor, tracker: Tracker) -> Tensor:
    if step.workload.get("fused_loss"):
        value: Tensor = model(tokens, labels)
        return value
    logits = model(tokens)
    tracker.phase = "loss"
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def _shard(model: Decoder, mesh: DeviceMesh, reshard: bool) -> None:
    """torchtitan's apply_fsdp."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (model.tok_embeddings, *model.layers):
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard,
            # Experts are cut where there are fewer of them than ranks.
            shard_placement_fn=lambda p: Shard(1) if p.dim() == 3 and mesh["shard"].size() > p.shape[0] else None,
        )
    fully_shard([model.norm, model.output], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _ddp(step: Step) -> Measured:
    strategy = step.strategy
    plain = strategy["kernels"] == "eager"
    widest = step.workload.get("fine_tuning") or strategy.get("parameter_dtype", "fp32") == "fp32"
    autocast = widest and strategy.get("precision", "bf16") != "fp32"
    with fake_ranks((step.ranks,)):
        with default_dtype(torch.bfloat16 if strategy.get("parameter_dtype") == "bf16" else torch.float32):
            # PEFT makes adapters in fp32, whatever they stand beside.
            model = language_model(step.dims) if plain else built(step, torch.float32)
        layers = model.model.layers if plain else model.layers
        checkpoint_layers(layers, strategy.get("activation_checkpointing", "none"))
        buckets: dict[int, Tensor] = {}
        wrapped: nn.Module = model
        unsynchronised: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        if step.ranks > 1:
            view = strategy.get("gradient_as_bucket_view", False)
            replicated = DistributedDataParallel(model, gradient_as_bucket_view=view, init_sync=False)
            replicated.reducer = _SteadyReducer(replicated.reducer)
            # Annotations of a hook must be types, not their names.
            replicated.register_comm_hook(None, lambda _, bucket: _reduced_at_once(bucket, buckets))
            wrapped, unsynchronised = replicated, replicated.no_sync
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        context = partial(torch.autocast, "cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext
        outputs = []

        def loss(tokens: Tensor, labels: Tensor, tracker: Tracker) -> Tensor:
            with context():
                if plain:
                    outputs[:] = [wrapped(input_ids=tokens, labels=labels, use_cache=False)]
                    tracker.phase = "loss"
                    return outputs[0].loss
                return _loss(step, wrapped, tokens, labels, tracker)

        return measure(model, optimizer, partial(_train, step, layers[-1], optimizer, loss, unsynchronised), buckets)


class _SteadyReducer:
    """Never orders its buckets anew after the first step, for which it would read data."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _reduced_at_once(bucket: GradBucket, buckets: dict[int, Tensor]) -> torch.futures.Future[Tensor]:
    """The fake process group answers nothing, which the reducer does not take; the default reduces in place too."""
    buckets[bucket.index()] = bucket.buffer()
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer


def _train(
    step: Step,
    last_layer: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor, Tracker], Tensor],
    unsynchronised: Callable[[], AbstractContextManager[None]],
    tracker: Tracker,
) -> None:
    shape = (step.micro_batch_size, step.sequence_length)
    hook = last_layer.register_forward_hook(tracker.leave_head)
    for left in reversed(range(step.micro_batches)):
        tracker.phase = "forward"
        tracker.reset_mod_stats()
        tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        with unsynchronised() if left else contextlib.nullcontext():
            value = loss(tokens, labels, tracker)
            value.backward()
        del value
    hook.remove()
    tracker.phase = "optimizer"
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
