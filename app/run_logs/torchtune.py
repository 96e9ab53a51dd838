"""Logs of torchtune.

Sources: pytorch/torchtune `torchtune/training/metric_logging.py` ("Step 3 | loss:1.9 ... peak_memory_alloc:12.3", to
the log file or the terminal), `torchtune/training/memory.py` (peaks over 2^30 and "GiB" today, over 10^9 and "GB"
before 2024-12; reset at every reading), `torchtune/training/precision.py` (weights are loaded in `dtype`, and
gradients and states follow them), the recipes (`tune run RECIPE`, "Running ... with resolved config:" and the config
as YAML) and tqdm's bar, which counts optimizer steps. Memory "after model init" is the set-up's, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from app.run_logs.facts import MOST_STEPS, Facts, LoggedRun, Reading
from app.run_logs.launch_environment import read_launch
from app.run_logs.out_of_memory import read_out_of_memory
from app.run_logs.patterns import NUMBER
from app.run_logs.progress_bars import Mark, bar_intervals, bar_mark
from cost_models.units import GB, GIB

_STEP: Final = re.compile(r"\bStep (\d{1,9}) \|")
_METRIC: Final = re.compile(r"\b(peak_memory_alloc|peak_memory_reserved|tokens_per_second_per_gpu):" + NUMBER)
_BEGINS: Final = re.compile(r"\btune run\b|with resolved config:|Setting manual seed to")
_RECIPE: Final = re.compile(r"\btune run (?:--\S+ \S+ )*(\w{1,80})")
_SETTING: Final = re.compile(r"^\s{0,8}(\w{1,60}): {0,4}(\S.{0,200})$")
_SECTION: Final = re.compile(r"^(\w{1,60}):$")
_COMPONENT: Final = "_component_"
_OPTIMIZERS: Final = {
    "torch.optim.adamw": "adamw",
    "torch.optim.adam": "adam",
    "bitsandbytes.optim.adamw8bit": "adamw-8bit",
    "bitsandbytes.optim.pagedadamw8bit": "adamw-8bit",
    "torchao.optim.adamw8bit": "adamw-8bit",
    "torchao.prototype.low_bit_optim.adamw8bit": "adamw-8bit",
}
_PRECISION: Final = re.compile(r"initialized with precision torch\.(bfloat16|float32|float16)")
_UNIT: Final = re.compile(r"peak memory allocation: [\d.]+ (GiB|GB)\b")
_DTYPES: Final = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "fp32",
    "fp32": "fp32",
    "float16": "fp16",
    "fp16": "fp16",
}
_GIB: Final = {"GiB": 1.0, "GB": GB / GIB}


def read_torchtune(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The runs of a log: another command, config or seed after steps begins another one."""
    run = _Run()
    for line in lines:
        if run.trained and _BEGINS.search(line):
            yield run.logged()
            run = _Run()
        run.read(line)
    if run.begun or run.trained or run.facts.measured_anything:
        yield run.logged()


class _Run:
    def __init__(self) -> None:
        self.facts = Facts()
        self.begun = False
        self.trained = False
        self._marks: list[Mark] = []
        self._settings: dict[str, str] = {}
        self._unit: str | None = None
        self._peaks: dict[str, float] = {}
        self._rates: list[float] = []
        self._section = ""
        self._recipe = ""
        self._in_config = False

    def read(self, line: str) -> None:
        """Take what this line says."""
        facts = self.facts
        read_launch(line, facts)
        read_out_of_memory(line, facts)
        if _STEP.search(line):
            self.trained = True
            for name, value in _METRIC.findall(line):
                if name == "tokens_per_second_per_gpu":
                    if len(self._rates) < MOST_STEPS:
                        self._rates.append(float(value))
                else:
                    self._peaks[name] = max(self._peaks.get(name, 0.0), float(value))
        elif (mark := bar_mark(line)) and len(self._marks) < MOST_STEPS:
            self.trained = True
            self._marks.append(mark)
        elif recipe := _RECIPE.search(line):
            self._recipe = recipe.group(1)
        elif "resolved config:" in line:
            self._in_config = True
        elif unit := _UNIT.search(line):
            self._unit = unit.group(1)
        elif precision := _PRECISION.search(line):
            facts.say("workload.precision", _DTYPES[precision.group(1)])
        elif "enable_activation_checkpointing is True" in line:
            facts.say("strategy.activation_checkpointing", "full")
        elif self._in_config and (section := _SECTION.search(line.rstrip())):
            self._section = section.group(1)
        elif (
            self._in_config
            and not self.trained
            and len(self._settings) < 1000
            and (setting := _SETTING.search(line.rstrip()))
        ):
            name = setting.group(1)
            if name == _COMPONENT:
                name = f"{self._section}.{name}"
            self._settings.setdefault(name, setting.group(2).lower())
        self.begun = self.begun or bool(self._recipe or self._settings)

    def logged(self) -> LoggedRun:
        """All that was said, together."""
        facts = self.facts
        self._settle_config()
        self._settle_memory()
        facts.intervals.extend(bar_intervals(self._marks))
        if not facts.intervals:
            self._intervals_by_rate()
        return facts.run()

    def _number(self, name: str) -> int | None:
        value = self._settings.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() and 0 < len(value) < 10 and int(value) else None

    def _settle_config(self) -> None:
        facts = self.facts
        micro, accumulation = self._number("batch_size"), self._number("gradient_accumulation_steps") or 1
        facts.say("strategy.micro_batch_size", micro)
        single = "single_device" in self._recipe
        if single:
            facts.gpus = 1
            facts.say("strategy.framework", "ddp")
            facts.say("strategy.zero_stage", 0)
        elif "distributed" in self._recipe:
            facts.say("strategy.framework", "fsdp2")
            reshard = self._settings.get("fsdp_reshard_after_forward", "true")
            facts.say("strategy.zero_stage", 2 if reshard == "false" else 3)
        if self._recipe:
            tensor = self._number("tensor_parallel_dim")
            facts.say("strategy.tensor_parallel_size", 1 if single else tensor or (1 if self._settings else None))
            facts.say("strategy.pipeline_parallel_size", 1)
        if micro and facts.gpus:
            tensor = facts.said("strategy.tensor_parallel_size") or 1
            facts.say("workload.global_batch_size", micro * accumulation * max(1, facts.gpus // tensor))
        dtype = self._settings.get("dtype", "")
        if facts.said("workload.precision") is None:
            facts.say("workload.precision", _DTYPES.get(dtype))
        stored = facts.said("workload.precision")
        for part in ("parameter", "gradient", "optimizer_state"):
            facts.say(f"strategy.{part}_dtype", stored)
        checkpointing = self._settings.get("enable_activation_checkpointing")
        facts.say("strategy.activation_checkpointing", {"true": "full", "false": "none"}.get(checkpointing or ""))
        self._settle_techniques()
        if "lora" in self._recipe:
            facts.ask("workload.fine_tuning")
        facts.say("software.recipe", self._recipe or None)

    def _settle_techniques(self) -> None:
        """Optimizer, offload and compilation, which a config always names; without one nothing is said."""
        if not self._settings:
            return
        facts, settings = self.facts, self._settings
        named = settings.get(f"optimizer.{_COMPONENT}")
        if named in _OPTIMIZERS:
            facts.say("workload.optimizer", _OPTIMIZERS[named])
            if _OPTIMIZERS[named] == "adamw-8bit":
                facts.sections["strategy"].pop("optimizer_state_dtype", None)  # of blocks, whatever the weights are
        elif named:
            facts.ask("workload.optimizer")
        if settings.get("fsdp_cpu_offload") == "true":
            facts.say("strategy.offload", "optimizer-and-parameters")
        elif settings.get("enable_activation_offloading") == "true":
            facts.say("strategy.offload", "activations")
        facts.say("strategy.compile", {"true": True, "false": False}.get(settings.get("compile", "")))

    def _settle_memory(self) -> None:
        unit = self._unit
        if self._peaks and unit is None:
            unit = "GiB"
            self.facts.note("memory of step lines is taken in GiB, as torchtune writes it since the end of 2024")
        for name, value in self._peaks.items():
            gib = value * _GIB[unit or "GiB"]
            allocated = gib if name == "peak_memory_alloc" else None
            self.facts.peak(Reading(rank=0, allocated_gib=allocated, reserved_gib=None if allocated else gib))

    def _intervals_by_rate(self) -> None:
        """Tokens a second of one GPU give a step time where a step's tokens are known: packed to one length."""
        length, micro = self._number("max_seq_len"), self._number("batch_size")
        accumulation = self._number("gradient_accumulation_steps") or 1
        if length and micro and self._settings.get("packed") == "true":
            self.facts.say("workload.sequence_length", length)
            tokens = length * micro * accumulation
            self.facts.intervals.extend(tokens / rate for rate in self._rates if rate > 0)
