"""Logs of nanotron.

Sources: huggingface/nanotron `src/nanotron/logging/base.py` (`human_format`: three digits and K, M, B or T for powers
of 1000; `log_memory`: MiB of rank 0, peaks reset afterwards), `src/nanotron/trainer.py` (iteration lines, "[Start
training]", the repr of the config and the model's config before it) and `src/nanotron/config/parallelism_config.py`
(tp_mode). A message's tag names the place of the rank that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from app.run_logs.facts import GIB_MIB, MOST_STEPS, Facts, LoggedRun, Reading
from app.run_logs.launch_environment import read_launch
from app.run_logs.out_of_memory import read_out_of_memory
from app.run_logs.patterns import INTEGER, NUMBER

_FIGURE: Final = r"(\d{1,12}(?:\.\d{1,12})?)([KMBTPE]?)(?=[^\d.KMBTPE])"
_ITERATION: Final = re.compile(r"\biteration: (\d{1,9}) / \d{1,9} \|.{0,200}?elapsed_time_per_iteration_ms: " + _FIGURE)
_RATES: Final = re.compile(r"tokens_per_sec: " + _FIGURE + r" \| tokens_per_sec_per_gpu: " + _FIGURE)
_MEMORY: Final = re.compile(r"Peak allocated:? " + NUMBER + r"MiB\. Peak reserved: " + NUMBER + r"MiB")
_PLACE: Final = re.compile(r"\|DP=(\d{1,6})\|PP=(\d{1,6})\|TP=(\d{1,6})")
_START: Final = re.compile(
    r"\[Start training\].{0,120}\| mbs: " + INTEGER + r" \| grad_accum: " + INTEGER + r" \| global_batch_size: "
    + INTEGER + r" \| sequence_length: " + INTEGER
)  # fmt: skip
_FIELD: Final = re.compile(r"\b(\w{2,60})=('?[\w.]{1,60}'?|<[^>]{1,80}>)[,)]")
_SUFFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SIZES: Final = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "attention_heads",
    "num_key_value_heads": "key_value_heads",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}
MOST_GPUS_BY_RATES: Final = 64
"""Up to which the quotient of two rates of three digits is sure to a whole number: it errs by up to 1 %."""


def read_nanotron(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The runs of a log: "[Start training]" or a model's config after iterations begins another one."""
    run = _Run()
    for line in lines:
        if run.trained and ("Model Config:" in line or "[Start training]" in line or run.comes_again(line)):
            yield run.logged()
            run = _Run()
        run.read(line)
    if run.trained or run.facts.measured_anything:
        yield run.logged()


class _Run:
    def __init__(self) -> None:
        self.facts = Facts()
        self.trained = False
        self._started = False
        self._last = 0
        self._fields: dict[str, str] = {}
        self._ratios: list[float] = []

    def comes_again(self, line: str) -> bool:
        """Whether this line is of an iteration before the last one."""
        found = _ITERATION.search(line) if "iteration:" in line else None
        return found is not None and int(found.group(1)) < self._last

    def read(self, line: str) -> None:
        """Take what this line says."""
        facts = self.facts
        if "iteration:" in line and (found := _ITERATION.search(line)):
            iteration = int(found.group(1))
            if iteration > self._last:
                milliseconds = float(found.group(2)) * _SUFFIXES[found.group(3)]
                if len(facts.intervals) < MOST_STEPS:
                    facts.intervals.append(milliseconds / 1e3)
                self._last = iteration
            self.trained = True
            self._rates(line)
        elif "Peak allocated" in line and (memory := _MEMORY.search(line)):
            place = _PLACE.search(line)
            if self._started:
                facts.peak(
                    Reading(
                        rank=None if place else 0,
                        stage=int(place.group(2)) if place else None,
                        allocated_gib=float(memory.group(1)) / GIB_MIB,
                        reserved_gib=float(memory.group(2)) / GIB_MIB,
                    )
                )
        elif start := _START.search(line):
            self._started = True
            self._batches(*map(int, start.groups()))
        elif not self._started and "=" in line and len(self._fields) < 1000:
            self._fields.update(_FIELD.findall(line))
        read_out_of_memory(line, facts)
        read_launch(line, facts)

    def _batches(self, micro: int, accumulation: int, total: int, sequence: int) -> None:
        self.facts.say("strategy.micro_batch_size", micro)
        self.facts.say("workload.global_batch_size", total)
        self.facts.say("workload.sequence_length", sequence)
        if micro * accumulation and total % (micro * accumulation) == 0:
            self.facts.say("strategy.data_parallel_size", total // (micro * accumulation))

    def _rates(self, line: str) -> None:
        rates = _RATES.search(line)
        if rates and len(self._ratios) < MOST_STEPS:
            all_gpus, unit, one_gpu, one_unit = rates.groups()
            if float(one_gpu) > 0:
                self._ratios.append(float(all_gpus) * _SUFFIXES[unit] / (float(one_gpu) * _SUFFIXES[one_unit]))

    def logged(self) -> LoggedRun:
        """All that was said, together."""
        facts = self.facts
        facts.say("strategy.framework", "nanotron")
        self._model()
        self._parallelism()
        self._gpus()
        return facts.run()

    def _integer(self, name: str) -> int | None:
        value = self._fields.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None

    def _model(self) -> None:
        for theirs, ours in _SIZES.items():
            self.facts.architecture(ours, self._integer(theirs))
        if "model" in self.facts.sections:
            self.facts.architecture("gated_mlp", True)
            self.facts.architecture("position_embeddings", "rotary")
            tied = self._fields.get("tie_word_embeddings")
            self.facts.architecture("tied_embeddings", {"True": True, "False": False}.get(tied or ""))

    def _parallelism(self) -> None:
        facts = self.facts
        if self._integer("tp") is None:
            return
        facts.say("strategy.tensor_parallel_size", self._integer("tp"))
        facts.say("strategy.pipeline_parallel_size", self._integer("pp"))
        facts.say("strategy.context_parallel_size", self._integer("cp") or self._integer("context_parallel_size") or 1)
        facts.say("strategy.data_parallel_size", self._integer("dp"))
        facts.say("strategy.zero_stage", self._integer("zero_stage"))
        mode = self._fields.get("tp_mode", "")
        if "REDUCE_SCATTER" in mode or "ALL_REDUCE" in mode:
            facts.say("strategy.sequence_parallel", "REDUCE_SCATTER" in mode and self._integer("tp") != 1)
        recompute = self._fields.get("recompute_layer")
        kinds = {"True": "full", "False": "none"}
        facts.say("strategy.activation_checkpointing", kinds.get(recompute or ""))
        dtypes = {"torch.bfloat16": "bf16", "bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
        facts.say("workload.precision", dtypes.get(self._fields.get("dtype", "").strip("'")))
        accumulated = self._fields.get("accumulate_grad_in_fp32")
        facts.say("strategy.gradient_dtype", "fp32" if accumulated == "True" else None)

    def _gpus(self) -> None:
        facts = self.facts
        sizes = [facts.said(f"strategy.{axis}_parallel_size") for axis in ("tensor", "pipeline", "context", "data")]
        if None not in sizes:
            facts.gpus = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        elif facts.gpus is None and self._ratios and max(self._ratios) < MOST_GPUS_BY_RATES:
            ratio = sorted(self._ratios)[len(self._ratios) // 2]
            if round(ratio) >= 1 and abs(ratio - round(ratio)) < 0.25:
                facts.gpus = round(ratio)
                facts.note(f"{facts.gpus} GPUs in all: the tokens a second over those of one GPU")
        if facts.gpus and facts.gpus == facts.said("strategy.data_parallel_size"):
            for axis in ("tensor", "pipeline", "context"):
                facts.say(f"strategy.{axis}_parallel_size", 1)
        if facts.said("strategy.tensor_parallel_size") != 1 and facts.said("strategy.sequence_parallel") is None:
            facts.ask("strategy.sequence_parallel")
