"""Logs of the Hugging Face Trainer, alone or with DeepSpeed, and of what logs through it (ms-swift, TRL).

Sources: huggingface/transformers `src/transformers/trainer.py` ("***** Running training *****" and the lines below it,
logs as the repr of a dict), `trainer_utils.py` (`speed_metrics`: samples and steps over the whole runtime, rounded to
three decimals; `TrainerMemoryTracker`: deltas in bytes that add up to the peak), `configuration_utils.py` ("Model
config LlamaConfig {json}"); modelscope/ms-swift `swift/trainers/patcher.py` ("memory(GiB)" is the peak of reserved
memory, "train_speed(iter/s)" the steps so far over the time so far); huggingface/accelerate: no tensor parallelism
unless asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

from app.run_logs.deepspeed_config import EngineConfig, say_engine_config
from app.run_logs.deepspeed_lines import read_memory_usage, read_throughput
from app.run_logs.facts import MOST_STEPS, Facts, LoggedRun, Reading
from app.run_logs.launch_environment import read_launch
from app.run_logs.out_of_memory import read_out_of_memory
from app.run_logs.patterns import whole
from app.run_logs.progress_bars import Mark, bar_intervals, bar_mark
from cost_models.units import GIB

_PAIR: Final = re.compile(r"'([\w()/%. -]{1,60})': ('[^']{0,200}'|-?[\d.]{1,30}(?:e[+-]?\d{1,3})?|nan|inf)(?=[,}])")
_HEADER: Final = re.compile(
    r"(Num examples|Instantaneous batch size per (?:device|GPU)|Gradient Accumulation steps|"
    r"Total train batch size \([^)]{1,80}\)|Total optimization steps) = ([\d,]{1,15})(?=[^\d,])"
)
_ARGUMENT: Final = re.compile(r"^\s{0,8}(\w{1,60})=([\w.\[\]'\"]{1,60}),$")
_CONFIG: Final = re.compile(r"Model config \w{1,60} \{")
_ADAPTERS: Final = re.compile(r"\btrainable params: [\d,]{1,20} \|\| all params: |\bLoraConfig\(|\bPeftModel")
"""huggingface/peft `src/peft/peft_model.py` (`print_trainable_parameters`), and the names of its classes."""
_TRAINING_BAR: Final = re.compile(r"^\s{0,8}(?:Train(?:ing)?: {1,8})?\d{1,3}%\|")
"""The Trainer's bar has no description (that of ms-swift: Train); bars of loading and tokenizing have others."""
_BYTES: Final = ("before_init_mem_gpu", "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta")
_PEAK_DELTA: Final = "train_mem_gpu_peaked_delta"
LONGEST_CHARACTERS: Final = 200_000


def read_hf_trainer(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The runs of a log: the summary of a training ends one."""
    return _read(lines, hf=True)


def read_deepspeed(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The same lines, around a DeepSpeed engine that may be driven by something else than the Trainer."""
    return _read(lines, hf=False)


def _read(lines: Iterable[str], *, hf: bool) -> Iterator[LoggedRun]:
    run = _Run(hf=hf)
    for line in lines:
        if run.ended and ("Running training" in line or "DeepSpeedEngine configuration" in line or "{'loss'" in line):
            yield run.logged()
            run = _Run(hf=hf)
        run.read(line)
    if run.trained or run.facts.measured_anything:
        yield run.logged()


class _Run:
    def __init__(self, *, hf: bool) -> None:
        self.facts = Facts()
        self.trained = False
        self.ended = False
        self._hf = hf
        self._engine = EngineConfig()
        self._marks: list[Mark] = []
        self._sums: dict[str, float] = {}
        self._header: dict[str, int] = {}
        self._arguments: dict[str, str] = {}
        self._speeds: list[tuple[int, float]] = []
        self._rates: list[float] = []
        self._text: str | None = None

    def read(self, line: str) -> None:
        """Take what this line says."""
        facts = self.facts
        self._engine.read(line)
        read_memory_usage(line, facts, training=self.trained)
        rate = read_throughput(line, facts)
        if rate and len(self._rates) < MOST_STEPS:
            self._rates.append(rate)
            self.trained = True
        read_launch(line, facts)
        read_out_of_memory(line, facts)
        if _ADAPTERS.search(line):
            facts.ask("workload.fine_tuning")
        if "{'" in line:
            self._log(dict(_PAIR.findall(line)))
        elif _TRAINING_BAR.match(line) and (mark := bar_mark(line)):
            self._mark(mark)
        elif " = " in line and len(self._header) < 100 and (header := _HEADER.search(line)):
            self._header[header.group(1).partition(" (")[0]] = whole(header.group(2))
            self._hf = True
        elif self._text is not None or "Model config" in line:
            self._model_config(line)
        elif len(self._arguments) < 1000 and (argument := _ARGUMENT.match(line.rstrip("\n"))):
            self._arguments.setdefault(argument.group(1), argument.group(2))

    def _mark(self, mark: Mark) -> None:
        """Evaluations have bars without a description too; their totals are not the training's."""
        total = self._header.get("Total optimization steps", self._marks[0][1] if self._marks else mark[1])
        if mark[1] == total:
            self.trained = True
            if len(self._marks) < MOST_STEPS:
                self._marks.append(mark)

    def _log(self, pairs: dict[str, str]) -> None:
        if "train_runtime" in pairs:
            self.trained = self.ended = self._hf = True
        elif "loss" not in pairs:
            return
        self.trained = True
        for name, text in pairs.items():
            value = _number(text)
            if value is not None and len(self._sums) < 1000:
                self._sums[name] = value
        memory = _number(pairs.get("memory(GiB)", ""))
        if memory:
            self.facts.peak(Reading(rank=0, reserved_gib=memory))
        position = pairs.get("global_step/max_steps", pairs.get("global_step", "")).strip("'").partition("/")[0]
        speed, inverse = _number(pairs.get("train_speed(iter/s)", "")), _number(pairs.get("train_speed(s/it)", ""))
        if inverse:
            speed = 1 / inverse
        if (
            position.isascii()
            and position.isdecimal()
            and len(position) < 10
            and speed
            and len(self._speeds) < MOST_STEPS
        ):
            self._speeds.append((int(position), int(position) / speed))

    def _model_config(self, line: str) -> None:
        if self._text is None:
            if not _CONFIG.search(line):
                return
            self._text = "{\n"
            return
        self._text += line
        if len(self._text) > LONGEST_CHARACTERS:
            self._text = None
        elif line.startswith("}"):
            try:
                config = json.loads(self._text)
            except (ValueError, RecursionError):
                config = None
            self._text = None
            if isinstance(config, dict) and "model_type" in config:
                self.facts.sections["model"] = {"hf_config": config}

    def logged(self) -> LoggedRun:
        """All that was said, together."""
        facts = self.facts
        self._settle_batches()
        self._settle_arguments()
        say_engine_config(self._engine, facts)
        self._settle_degrees()
        self._settle_memory()
        self._settle_time()
        return facts.run()

    def _settle_batches(self) -> None:
        micro = next((size for name, size in self._header.items() if name.startswith("Instantaneous")), None)
        total = self._header.get("Total train batch size")
        accumulation = self._header.get("Gradient Accumulation steps")
        self.facts.say("strategy.micro_batch_size", micro)
        self.facts.say("workload.global_batch_size", total)
        if micro and total and accumulation and total % (micro * accumulation) == 0:
            self.facts.say("strategy.data_parallel_size", total // (micro * accumulation))

    def _settle_arguments(self) -> None:
        arguments, facts = self._arguments, self.facts
        for name, precision in (("bf16", "bf16"), ("fp16", "fp16")):
            if arguments.get(name) == "True":
                facts.say("workload.precision", precision)
        checkpointing = {"True": "full", "False": "none"}.get(arguments.get("gradient_checkpointing", ""))
        facts.say("strategy.activation_checkpointing", checkpointing)
        optimizer = arguments.get("optim", "").lower()
        if "adamw" in optimizer:
            facts.say("workload.optimizer", "adamw-8bit" if "8bit" in optimizer else "adamw")
        elif "adafactor" in optimizer:
            facts.say("workload.optimizer", "adafactor")
        elif optimizer:
            facts.ask("workload.optimizer")

    def _settle_degrees(self) -> None:
        facts = self.facts
        if not self._hf:
            return
        facts.say("software.trainer", "Hugging Face Trainer")
        if self._engine.fields or self._engine.given:
            facts.say("strategy.tensor_parallel_size", 1)
            facts.say("strategy.pipeline_parallel_size", 1)
            facts.note("the Trainer's DeepSpeed integration has no tensor or pipeline parallelism")
        elif self._arguments.get("fsdp") == "[]" and self._arguments.get("deepspeed") == "None":
            facts.say("strategy.framework", "ddp")
            facts.say("strategy.zero_stage", 0)
            facts.say("strategy.pipeline_parallel_size", 1)
        replicas = facts.said("strategy.data_parallel_size")
        if replicas and facts.said("strategy.tensor_parallel_size") == 1 and facts.gpus is None:
            facts.gpus = replicas

    def _settle_memory(self) -> None:
        if _PEAK_DELTA in self._sums and all(name in self._sums for name in _BYTES):
            peak = sum(self._sums[name] for name in _BYTES) + self._sums[_PEAK_DELTA]
            if peak > 0:
                self.facts.peak(Reading(rank=0, allocated_gib=peak / GIB))

    def _settle_time(self) -> None:
        facts = self.facts
        for (before, then), (step, now) in pairwise(self._speeds):
            if step > before and now > then:
                facts.intervals.append((now - then) / (step - before))
        batch = facts.said("workload.global_batch_size")
        if not facts.intervals and batch:
            facts.intervals.extend(batch / rate for rate in self._rates)
        if not facts.intervals:
            facts.intervals.extend(bar_intervals(self._marks))
        if facts.average_step_seconds is None:
            facts.average_step_seconds = self._average(batch)

    def _average(self, batch: Any) -> float | None:
        """Of the whole training: by its steps where their rate has three digits, else by its samples."""
        runtime, samples = self._sums.get("train_runtime"), self._sums.get("train_samples_per_second")
        steps = self._header.get("Total optimization steps")
        rate = self._sums.get("train_steps_per_second")
        if runtime and steps:
            return runtime / steps
        if rate and rate >= FEWEST_STEPS_PER_SECOND:
            return 1 / rate
        return batch / samples if batch and samples else None


FEWEST_STEPS_PER_SECOND: Final = 0.1
"""Below it three decimals are fewer than three digits."""


def _number(text: str) -> float | None:
    """A finite number from 0 up, quoted or not."""
    try:
        value = float(text.strip("'"))
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None
