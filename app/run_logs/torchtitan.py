"""Logs of torchtitan.

Sources: pytorch/torchtitan `torchtitan/components/metrics.py` (a step line: "memory" is the peak of reserved memory
since the last such line, over 2^30; "tps" are tokens a second of one device; step 1 and every log_freq-th are logged),
`torchtitan/train.py` ("Trainer is initialized with ...", in earlier versions "Training starts at step 1, with ..."),
`torchtitan/distributed/parallel_dims.py` (the mesh names only degrees above one) and
`torchtitan/distributed/pipeline_parallel.py` (the local batch is cut into the schedule's micro-batches). What was
applied to the model is printed after "Model ... size", so that from there on silence means that it was not. Step times
are the differences of time stamps: what is timed by a rank between two logged steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Final

from app.run_logs.facts import MOST_STEPS, Facts, LoggedRun, Reading
from app.run_logs.launch_environment import catalog_gpu, read_launch
from app.run_logs.out_of_memory import read_out_of_memory
from app.run_logs.patterns import CLOCK, INTEGER, NUMBER, whole
from app.run_logs.torchtitan_config import ConfigReader, say_config

_RANK: Final = re.compile(r"\[rank(\d{1,7})\]")
_STEP: Final = re.compile(r"(?<!validate )\bstep: {1,12}(\d{1,9})  loss: .{0,120}?memory: {1,6}" + NUMBER + r"GiB")
_BATCH: Final = re.compile(
    r"with local batch size " + INTEGER + r", global batch size " + INTEGER
    + r"(?:, gradient[_ ]accumulation[_ ]steps:? " + INTEGER + r")?, sequence length " + INTEGER
)  # fmt: skip
_MESH: Final = re.compile(r"Building \d-D device mesh with \[([^\]]{1,200})\], \[([\d, ]{1,200})\]")
_DEGREES: Final = re.compile(r"Building device mesh with parallelism: ([\w=, ]{1,200})")
_MODEL: Final = re.compile(r"Model (\S{1,60}) (\S{1,60}) size: ([\d,]{1,20}) total parameters")
_DEVICE: Final = re.compile(r"\b\w{1,12} capacity: (.{1,80}) with " + NUMBER + r"GiB memory")
_CHECKPOINTING: Final = re.compile(r"Applied (full|selective|FullAC|SelectiveAC|memory_budget)\b.{0,20}checkpointing")
_SCHEDULE: Final = re.compile(r"Using pipeline schedule (\w{1,40}) with " + INTEGER + r" microbatches and " + INTEGER)
_CHUNK: Final = re.compile(r"is building stage_idx (\d{1,6}) with modules \[([^\]]{0,4000})\]")
_ARGUMENTS: Final = re.compile(
    r"\b(dim|n_layers|n_heads|n_kv_heads|vocab_size|multiple_of|ffn_dim_multiplier)=([\d.]+)"
)
_TELLING: Final = re.compile(
    r"local batch|device mesh|ModelArgs|total parameters|capacity: |schedule|stage_idx|Applied |training active|"
    r"Mixed precision|Compiling each|CPU Offloading"
)
_HEADER: Final = re.compile(
    r"Starting job:|Float8 (?:\w+ )?training active|Building .{0,60}device mesh|Model \S+ \S+ size:|"
    r"Training starts at step|Trainer is initialized|\b\w{1,12} capacity: |"
    r"Applied (?:FSDP|HSDP|fully_shard|DDP|\w+ activation)"
)
_AXES: Final = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "cp": "context_parallel_size"}
_SCHEDULES: Final = {
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "GPipe": "gpipe",
    "ZBVZeroBubble": "zero-bubble",
    "InterleavedZeroBubble": "zero-bubble",
}
PRESETS: Final = {
    ("llama3", "8B", 8_030_261_248): "llama-3-8b",
    ("llama3", "70B", 70_553_706_496): "llama-3-70b",
    ("llama3", "405B", 405_853_388_800): "llama-3.1-405b",
}
"""Model, flavour and parameters as torchtitan prints them, and the catalog's model of the same parameters."""


def read_torchtitan(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The runs of a log: what is printed before training, printed after steps, begins another one."""
    run = _Run()
    for line in lines:
        step = _STEP.search(line) if "step:" in line else None
        if run.steps and ((step and run.comes_again(line, step)) or _HEADER.search(line)):
            yield run.logged()
            run = _Run()
        run.read(line, step)
    if run.steps or run.facts.measured_anything:
        yield run.logged()


class _Run:
    def __init__(self) -> None:
        self.facts = Facts()
        self.steps: dict[int, list[tuple[int, datetime | None]]] = {}
        """By rank: step and when."""
        self._steps_seen = 0
        self._config = ConfigReader()
        self._degrees: dict[str, int] | None = None
        self._batch: tuple[int, int, int] | None = None
        self._header = False
        self._applied: set[str] = set()
        self._schedule: tuple[str, int, int] | None = None
        self._chunks: dict[int, int] = {}

    def comes_again(self, line: str, step: re.Match[str]) -> bool:
        """Whether this rank has been at this step."""
        steps = self.steps.get(_rank(line))
        return bool(steps) and int(step.group(1)) <= steps[-1][0] if steps else False

    def read(self, line: str, step: re.Match[str] | None) -> None:
        """Take what this line says."""
        if step:
            rank = _rank(line)
            self._steps_seen += 1
            if self._steps_seen <= MOST_STEPS:
                self.steps.setdefault(rank, []).append((int(step.group(1)), _when(line)))
            self.facts.peak(Reading(rank=rank, reserved_gib=float(step.group(2))))
            return
        self._config.read(line)
        read_launch(line, self.facts)
        read_out_of_memory(line, self.facts)
        if not _TELLING.search(line):
            return
        if batch := _BATCH.search(line):
            local, total, accumulation, sequence = batch.groups()
            self._batch = (int(local), int(total), int(accumulation or 1))
            self.facts.say("workload.sequence_length", int(sequence))
            self.facts.say("workload.global_batch_size", int(total))
        elif mesh := _MESH.search(line):
            names = re.findall(r"\w+", mesh.group(1))
            self._degrees = dict(zip(names, map(int, re.findall(r"\d{1,7}", mesh.group(2))), strict=False))
        elif degrees := _DEGREES.search(line):
            self._degrees = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", degrees.group(1))}
        elif model := _MODEL.search(line):
            self._model(model)
        elif device := _DEVICE.search(line):
            self._device(device.group(1), float(device.group(2)))
        elif schedule := _SCHEDULE.search(line):
            self._schedule = (schedule.group(1), int(schedule.group(2)), int(schedule.group(3)))
        elif chunk := _CHUNK.search(line):
            self._chunks[int(chunk.group(1))] = chunk.group(2).count("layers.")
        else:
            self._technique(line)

    def _technique(self, line: str) -> None:
        facts = self.facts
        if checkpointing := _CHECKPOINTING.search(line):
            kind = "full" if checkpointing.group(1).startswith(("full", "Full")) else "selective"
            facts.say("strategy.activation_checkpointing", kind)
        elif "Float8" in line and "training active" in line:
            facts.say("workload.precision", "fp8")
            facts.say("strategy.fp8_recipe", "rowwise" if "rowwise" in line else None)
        elif "Mixed precision training is handled by" in line and not facts.said("workload.precision"):
            facts.say("workload.precision", "bf16")
            facts.note(
                "precision: mixed precision of torchtitan, whose parameters are bf16 unless its config says else"
            )
        elif "Compiling each" in line:
            facts.say("strategy.compile", True)
        elif "CPU Offloading" in line:
            facts.say("strategy.offload", "optimizer-and-parameters")
        for name in ("FSDP", "HSDP", "fully_shard", "DDP", "Tensor Parallel", "Context Parallel"):
            if f"Applied {name}" in line:
                self._applied.add(name)
        if "Building " in line and "ModelArgs(" in line and "model" not in facts.sections:
            self._dimensions(line)

    def _model(self, found: re.Match[str]) -> None:
        self._header = True
        name, flavour, parameters = found.group(1), found.group(2), whole(found.group(3) or "0")
        self.facts.say("software.model", f"{name} {flavour}")
        preset = PRESETS.get((name, flavour, parameters))
        if preset:
            self.facts.sections["model"] = {"preset": preset}
            self.facts.note(f"model: {name} {flavour} of {parameters} parameters is the preset {preset}")

    def _device(self, device: str, memory_gib: float) -> None:
        gpu = catalog_gpu(device, memory_gib)
        self.facts.say("software.device", device)
        self.facts.say("cluster.gpu", gpu)
        if gpu is None:
            self.facts.note(f"the device {device!r} with {memory_gib} GiB is not in the catalog")

    def _dimensions(self, line: str) -> None:
        """Llama's feed-forward, as `torchtitan/models/llama3/model/model.py` sizes it."""
        if "moe_args" in line or "kv_lora_rank" in line:
            return
        told = {name: float(value) for name, value in _ARGUMENTS.findall(line) if value.count(".") < 2}
        if not {"dim", "n_layers", "n_heads", "vocab_size", "multiple_of"} <= told.keys() or told["multiple_of"] < 1:
            return
        width = int(2 * 4 * told["dim"] / 3)
        width = int(told.get("ffn_dim_multiplier", 1) * width)
        multiple = int(told["multiple_of"])
        sizes = {
            "layers": told["n_layers"],
            "hidden_size": told["dim"],
            "attention_heads": told["n_heads"],
            "key_value_heads": told.get("n_kv_heads", told["n_heads"]),
            "ffn_hidden_size": multiple * -(-width // multiple),
            "vocab_size": told["vocab_size"],
        }
        for name, value in sizes.items():
            self.facts.architecture(name, int(value))
        self.facts.architecture("gated_mlp", True)
        self.facts.architecture("tied_embeddings", False)
        self.facts.architecture("position_embeddings", "rotary")

    def logged(self) -> LoggedRun:
        """All that was said, together."""
        facts = self.facts
        self._settle_degrees()
        if "DDP" in self._applied:
            facts.say("strategy.framework", "ddp")
            facts.say("strategy.zero_stage", 0)
        elif self._applied & {"FSDP", "HSDP", "fully_shard"}:
            facts.say("strategy.framework", "fsdp2")
        if self._header:
            if not facts.said("strategy.activation_checkpointing"):
                facts.say("strategy.activation_checkpointing", "none")
            if not facts.said("strategy.compile"):
                facts.say("strategy.compile", False)
        say_config(self._config, facts)
        self._settle_micro_batches()
        self._settle_gpus()
        steps = max(self.steps.values(), key=len, default=[])
        for (before, then), (step, now) in pairwise(steps):
            if then and now and step > before and now > then:
                facts.intervals.append((now - then).total_seconds() / (step - before))
        return facts.run()

    def _settle_degrees(self) -> None:
        degrees = self._degrees
        if degrees is not None:
            for axis, name in _AXES.items():
                self.facts.say(f"strategy.{name}", degrees.get(axis, 1))
            self.facts.say("strategy.expert_parallel_size", degrees.get("ep") if degrees.get("ep", 1) > 1 else None)
            replicas = degrees.get("dp_replicate", 1)
            self.facts.say("strategy.data_parallel_replicate_size", replicas if replicas > 1 else None)
        elif self._header:
            if "Tensor Parallel" not in self._applied:
                self.facts.say("strategy.tensor_parallel_size", 1)
            if "Context Parallel" not in self._applied:
                self.facts.say("strategy.context_parallel_size", 1)
            if self._schedule is None and not self._chunks:
                self.facts.say("strategy.pipeline_parallel_size", 1)

    def _settle_micro_batches(self) -> None:
        facts = self.facts
        stages = facts.said("strategy.pipeline_parallel_size")
        if self._batch is None:
            return
        local, _, _ = self._batch
        if stages == 1:
            facts.say("strategy.micro_batch_size", local)
        elif stages and self._schedule:
            kind, micro_batches, chunks = self._schedule
            facts.say("strategy.micro_batch_size", local // micro_batches if micro_batches else None)
            facts.say("strategy.pipeline_schedule", _SCHEDULES.get(kind))
            facts.say("strategy.virtual_pipeline_size", max(1, chunks // stages))
            if chunks == len(self._chunks) == max(self._chunks, default=0) + 1:
                facts.say("strategy.layers_per_stage", [self._chunks[index] for index in range(chunks)])
            else:
                facts.ask("strategy.layers_per_stage")

    def _settle_gpus(self) -> None:
        facts = self.facts
        sizes = [facts.said(f"strategy.{name}") for name in _AXES.values()]
        if self._batch is None or None in sizes:
            return
        local, total, accumulation = self._batch
        if local * accumulation == 0 or total % (local * accumulation):
            return
        replicas = total // (local * accumulation)
        facts.say("strategy.data_parallel_size", replicas)
        tensor, pipeline, context = sizes
        gpus = replicas * tensor * pipeline * context
        if facts.gpus is None:
            facts.gpus = gpus
            facts.note(f"{gpus} GPUs in all: {replicas} replicas by the batch sizes, times the other degrees")


def _rank(line: str) -> int:
    found = _RANK.search(line)
    return int(found.group(1)) if found else 0


def _when(line: str) -> datetime | None:
    found = CLOCK.search(line)
    if not found:
        return None
    try:
        return datetime.fromisoformat(found.group(0).replace(",", "."))
    except ValueError:
        return None
