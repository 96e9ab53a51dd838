"""Logs of Megatron-LM, and of Megatron-DeepSpeed, which prints the same lines.

Sources: NVIDIA/Megatron-LM `megatron/training/training.py` (`training_log`: one line an interval, "elapsed time per
iteration (ms)" averaged over it) and `megatron/training/utils.py` (`report_memory`: `torch.cuda` figures over 2^20,
printed once, after the first interval, by the ranks of data-parallel rank 0, without a newline of their own, so that
two records may share a line; with `--log-device-memory-used` also what NVML says is used).
bigscience-workshop/Megatron-DeepSpeed prints "(s)". Version 1 printed the memory without a rank, from rank 0.
DeepSpeed's `see_memory_usage` (rank 0, GiB, resets the peaks) counts after the first iteration only: what it says
before is the set-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from app.run_logs.deepspeed_config import EngineConfig
from app.run_logs.deepspeed_lines import read_memory_usage, read_throughput
from app.run_logs.facts import GIB_MIB, MOST_RANKS, MOST_STEPS, Facts, LoggedRun, Reading
from app.run_logs.launch_environment import read_launch
from app.run_logs.megatron_arguments import ArgumentReader, Arguments
from app.run_logs.megatron_sizes import SizeReport
from app.run_logs.megatron_stages import MOST_STAGES
from app.run_logs.megatron_words import say_arguments
from app.run_logs.out_of_memory import read_out_of_memory
from app.run_logs.patterns import INTEGER, NUMBER

_ITERATION: Final = re.compile(
    r"iteration[ =]+(\d{1,9})/ {0,12}\d{1,9} \|.{0,200}?"
    r"elapsed[ _]time[ _]per[ _]iteration[ _](?:\((ms|s)\):|ms=) {0,8}" + NUMBER
)
_BATCH: Final = re.compile(r"global[ _]batch[ _]size[:=] {0,12}" + INTEGER)
_MEMORY: Final = re.compile(
    r"(?:\[Rank (\d{1,7})\] |\[stage (\d{1,5}), virtual \d{1,5}, rank (\d{1,7})\] )?"
    r"(?:\(?after (\d{1,9}) iterations\)? )?memory \(MB\) \| allocated: " + NUMBER + r" \| max allocated: " + NUMBER
    # The last figures of a line that was cut off are not read; those before them are whole.
    + r"(?: \| reserved: " + NUMBER + r")?(?: \| max reserved: " + NUMBER + r")?"
    r"(?: \| total device memory used: " + NUMBER + r")?"
)  # fmt: skip
_PADDED: Final = re.compile(r"padded vocab \(size: " + INTEGER)
_OVERRULED: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "virtual_pipeline_size",
    "pipeline_schedule",
    "activation_checkpointing",
    "recompute_modules",
    "sequence_parallel",
)
_OWN_DEGREES: Final = frozenset({"model_parallel_size_of_each_op", "data_parallel_size_of_each_op"})


def read_megatron(lines: Iterable[str]) -> Iterator[LoggedRun]:
    """The runs of a log: a new dump of arguments, an iteration or a memory record that comes again begin a new one."""
    reader = _MegatronLog()
    for line in lines:
        yield from reader.read(line)
    yield from reader.finish()


class _MegatronLog:
    def __init__(self) -> None:
        self._arguments = ArgumentReader()
        self._begin()

    def _begin(self) -> None:
        self._facts = Facts()
        self._sizes = SizeReport()
        self._engine = EngineConfig()
        self._last_iteration = 0
        self._read: dict[int, tuple[int, tuple[str, str]]] = {}
        """By rank: after how many iterations its memory was read last, and the figures."""
        self._read_after: int | None = None
        self._vocab_size: int | None = None
        self._steps: list[tuple[int, float, int | None]] = []

    def read(self, line: str) -> Iterator[LoggedRun]:
        if self._arguments.begins(line):
            yield from self.finish()
        self._arguments.read(line)
        if "iteration" in line and (found := _ITERATION.search(line)):
            yield from self._iteration(found, line)
        if "memory (MB)" in line:
            for memory in _MEMORY.finditer(line):
                yield from self._memory(memory)
        if "padded vocab" in line and (padded := _PADDED.search(line)):
            self._vocab_size = int(padded.group(1))
        self._sizes.read(line)
        self._engine.read(line)
        read_memory_usage(line, self._facts, training=bool(self._steps))
        read_throughput(line, self._facts)
        read_out_of_memory(line, self._facts)
        read_launch(line, self._facts)

    def finish(self) -> Iterator[LoggedRun]:
        """The run that has ended, if it has left a trace."""
        facts, vocab_size, steps = self._facts, self._vocab_size, self._steps
        arguments = self._arguments.arguments
        if not (steps or facts.measured_anything):
            return
        say_arguments(arguments, facts, dumped=self._arguments.dumped)
        if arguments and not self._arguments.dumped:
            self._sizes.correct(arguments, facts)
        self._say_engine(facts)
        if _OWN_DEGREES & arguments.keys():
            self._forget_degrees(arguments)
        if vocab_size and "model" in facts.sections:
            facts.architecture("vocab_size", vocab_size)
        self._times(steps)
        if self._read_after:
            facts.note(f"memory was last read after {self._read_after} iteration(s); a later peak would not be seen")
        if not facts.said("strategy.framework"):
            facts.say("strategy.framework", "megatron-lm")
        yield facts.run()
        self._begin()

    def _say_engine(self, facts: Facts) -> None:
        """ZeRO's stage and the batch are DeepSpeed's own: its config decides, not Megatron's arguments."""
        facts.say("strategy.zero_stage", self._engine.zero_stage())
        if facts.said("workload.global_batch_size") is None:
            facts.say("workload.global_batch_size", self._engine.integer("train_batch_size"))

    def _forget_degrees(self, arguments: Arguments) -> None:
        """What a plan by operator says elsewhere, and the dump's own degrees do not say."""
        strategy = self._facts.sections["strategy"]
        for name in _OVERRULED:
            strategy.pop(name, None)
        stages = arguments.get("num_stages")
        if isinstance(stages, int) and 0 < stages <= MOST_STAGES:
            self._facts.say("strategy.pipeline_parallel_size", stages)
        self._facts.ask("strategy.data_parallel_size")
        self._facts.note("operators have degrees and recomputation of their own (Aceso); a Strategy has one of each")

    def _iteration(self, found: re.Match[str], line: str) -> Iterator[LoggedRun]:
        iteration, unit, time = int(found.group(1)), found.group(2), float(found.group(3))
        if iteration < self._last_iteration:
            yield from self.finish()
            self._facts.note("iterations begin again without a dump of arguments: another run with the same ones")
        elif iteration == self._last_iteration:
            return
        batch = _BATCH.search(line)
        if len(self._steps) < MOST_STEPS:
            self._steps.append((iteration, time if unit == "s" else time / 1e3, int(batch.group(1)) if batch else None))
        self._last_iteration = iteration

    def _memory(self, found: re.Match[str]) -> Iterator[LoggedRun]:
        printed, stage, staged_rank, after, _, allocated, _, reserved, device = found.groups()
        rank = printed or staged_rank
        if not after and not self._steps:
            return
        owner, iterations = int(rank or 0), int(after) if after else self._last_iteration
        last, figures = self._read.get(owner, (iterations, (allocated, reserved or "")))
        if after and (iterations < last or (iterations == last and figures != (allocated, reserved or ""))):
            yield from self.finish()
        if len(self._read) < MOST_RANKS:
            self._read[owner] = (iterations, (allocated, reserved or ""))
        self._read_after = max(self._read_after or 0, iterations)
        self._facts.peak(
            Reading(
                rank=owner,
                stage=int(stage) if stage else None,
                allocated_gib=float(allocated) / GIB_MIB,
                reserved_gib=float(reserved) / GIB_MIB if reserved else None,
                device_gib=float(device) / GIB_MIB if device else None,
            )
        )

    def _times(self, steps: list[tuple[int, float, int | None]]) -> None:
        """Intervals at the final global batch: it may have been ramped up to it."""
        facts = self._facts
        batch = next((size for _, _, size in reversed(steps) if size), None)
        stated = facts.said("workload.global_batch_size")
        if batch and stated != batch:
            if stated:
                facts.note(f"global_batch_size: the last iterations have {batch}, the arguments {stated}")
            facts.say("workload.global_batch_size", batch)
        facts.intervals.extend(seconds for _, seconds, size in steps if size in (None, batch))
