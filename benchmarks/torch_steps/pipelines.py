"""One training step of a rank of a pipeline: torch.distributed.pipelining over FSDP2, as torchtitan runs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional

from benchmarks.torch_steps.checkpointing import checkpoint_layers
from benchmarks.torch_steps.models import Block, Decoder, Dims
from benchmarks.torch_steps.step import Step
from benchmarks.torch_steps.tracking import Measured, Tracker, fake_ranks, measure_whole

_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}


class _Tracker(Tracker):
    """Of modules that run again before their backward has."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        if not self._mod_tracker.is_bw:
            self.memory_tracking.pop(module, None)
        super()._pre_fw_hook(module, inputs)

    def leave_chunk(self, _: nn.Module, __: Any, hidden: Tensor) -> None:
        """A forward hook: what arrives at the chunk's output is its backward."""
        if hidden.requires_grad:
            hidden.register_hook(lambda _: setattr(self, "phase", "backward"))


class Chunk(nn.Module):
    """Consecutive layers of a decoder, with the embedding on the first and the head on the last."""

    rotation: Tensor

    def __init__(self, dims: Dims, length: int, layers: int, *, first: bool, last: bool) -> None:
        super().__init__()
        whole = Decoder(dims, length)
        self.tok_embeddings = whole.tok_embeddings if first else None
        self.layers = nn.ModuleList(Block(dims) for _ in range(layers))
        self.norm, self.output = (whole.norm, whole.output) if last else (None, None)
        self.register_buffer("rotation", whole.rotation)

    def forward(self, h: Tensor) -> Tensor:
        if self.tok_embeddings is not None:
            h = self.tok_embeddings(h)
        for layer in self.layers:
            h = layer(h, self.rotation)
        return h if self.output is None else self.output(self.norm(h))


def run_pipeline(step: Step) -> Measured:
    """Peak of the second step of the rank that the step asks for."""
    strategy = step.strategy
    pipeline, rank = strategy["pipeline_parallel_size"], step.pipeline_rank
    shards = step.ranks // pipeline
    with fake_ranks((pipeline, shards), rank=rank * shards, names=("pipeline", "shard")) as mesh:
        chunks = _chunks(step, mesh)
        tracker = _Tracker()
        stages = [_stage(step, mesh, chunk, index, tracker) for index, chunk in chunks]
        optimizer = torch.optim.AdamW(nn.ModuleList(c for _, c in chunks).parameters(), lr=1e-3, fused=True)
        schedule = _schedule(step, stages)
        tracker.track_external(*(chunk for _, chunk in chunks), optimizer)
        with tracker:
            return measure_whole(tracker, lambda: _train(step, stages, schedule, optimizer, tracker))


def _chunks(step: Step, mesh: DeviceMesh) -> list[tuple[int, Chunk]]:
    """This rank's, by their place in the model."""
    pipeline, layout = mesh["pipeline"].size(), step.strategy["layers_per_stage"]
    mine = range(mesh["pipeline"].get_local_rank(), len(layout), pipeline)
    chunks = []
    for index in mine:
        ends = {"first": index == 0, "last": index == len(layout) - 1}
        chunk = Chunk(step.dims, step.sequence_length, layout[index], **ends)
        checkpoint_layers(chunk.layers, step.strategy.get("activation_checkpointing", "none"))
        _shard(chunk, mesh["shard"], reshard=step.strategy.get("zero_stage", 3) == 3)
        chunks.append((index, chunk))
    return chunks


def _shard(chunk: Chunk, mesh: DeviceMesh, *, reshard: bool) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (chunk.tok_embeddings, *chunk.layers):
        if module is not None:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if chunk.norm is not None and chunk.output is not None:
        fully_shard([chunk.norm, chunk.output], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(chunk, mesh=mesh, mp_policy=policy)


def _stage(step: Step, mesh: DeviceMesh, chunk: Chunk, index: int, tracker: _Tracker) -> PipelineStage:
    count = len(step.strategy["layers_per_stage"])
    tokens = (step.micro_batch_size, step.sequence_length)
    hidden = torch.empty(*tokens, step.dims.hidden_size, dtype=torch.bfloat16, device="meta").requires_grad_()
    logits = torch.empty(*tokens, step.dims.vocab_size, dtype=torch.bfloat16, device="meta").requires_grad_()
    stage = PipelineStage(
        chunk,
        index,
        count,
        torch.device("cpu"),
        input_args=torch.empty(tokens, dtype=torch.long, device="meta") if index == 0 else hidden,
        output_args=logits if index == count - 1 else hidden,
        group=mesh.get_group("pipeline"),
    )
    # Ranks agree on this by messages, which a fake group does not deliver.
    stage._inference_mode = InferenceMode.STATIC
    chunk.register_forward_pre_hook(lambda *_: setattr(tracker, "phase", "forward"))
    if index == count - 1:
        chunk.layers[-1].register_forward_hook(tracker.leave_head)
    else:
        chunk.register_forward_hook(tracker.leave_chunk)
    return stage


def _schedule(step: Step, stages: list[PipelineStage]) -> PipelineScheduleSingle | PipelineScheduleMulti:
    kind = step.strategy.get("pipeline_schedule", "1f1b")

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    given: Any = stages if kind == "interleaved" else stages[0]
    schedule = _SCHEDULES[kind](given, n_microbatches=step.micro_batches, loss_fn=loss)
    schedule._warmup_p2p = lambda *_: None
    return schedule


def _train(
    step: Step,
    stages: list[PipelineStage],
    schedule: PipelineScheduleSingle | PipelineScheduleMulti,
    optimizer: torch.optim.Optimizer,
    tracker: _Tracker,
) -> None:
    shape = (step.micro_batches * step.micro_batch_size, step.sequence_length)
    tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    arguments = [tokens] if any(stage.is_first for stage in stages) else []
    targets = {"target": labels} if any(stage.is_last for stage in stages) else {}
    schedule.step(*arguments, **targets, return_outputs=False)
    tracker.phase = "optimizer"
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
