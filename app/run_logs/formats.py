"""The formats that are read, and how a file's own is recognised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from app.run_logs.facts import LoggedRun
from app.run_logs.hf_trainer import read_deepspeed, read_hf_trainer
from app.run_logs.lines import decoded, log_lines
from app.run_logs.megatron import read_megatron
from app.run_logs.nanotron import read_nanotron
from app.run_logs.torchtitan import read_torchtitan
from app.run_logs.torchtune import read_torchtune
from cost_models.errors import InvalidInput

Reader = Callable[[Iterable[str]], Iterator[LoggedRun]]

TABLES: Final = ("csv", "jsonl")
READERS: Final[Mapping[str, Reader]] = {
    "megatron-lm": read_megatron,
    "megatron-deepspeed": read_megatron,
    "deepspeed": read_deepspeed,
    "torchtitan": read_torchtitan,
    "torchtune": read_torchtune,
    "nanotron": read_nanotron,
    "hf-trainer": read_hf_trainer,
}
SNAPSHOT: Final = "pytorch-memory-snapshot"
"""Read by `app.memory_snapshots`: a pickle, not text."""
FORMATS: Final = (*TABLES, *READERS, SNAPSHOT)
PICKLE: Final = b"\x80"
"""First byte of a pickle since protocol 2; no text begins with it."""
MOST_LINES: Final = 200_000
"""Looked at to recognise a log: a job may print for a while before its framework does."""

MOST_ARGUMENT_LINES: Final = 5000
"""Behind the first line of Megatron-LM, in which its dump of arguments tells whether DeepSpeed drives it."""
_DEEPSPEED: Final = re.compile(
    r"see_memory_usage\]|DeepSpeedEngine configuration|RunningAvgSamplesPerSec=|\bMax_MA |"
    r"--deepspeed\b|\bdeepspeed \.{3,} True"
)
_SIGNS: Final = (
    ("torchtitan", re.compile(r"step: {1,12}\d{1,9}  loss: .{0,120}GiB\(|\[titan\]|torchtitan\.train")),
    ("nanotron", re.compile(r"elapsed_time_per_iteration_ms: |\|DP=\d{1,6}\|PP=\d{1,6}\|TP=\d{1,6}")),
    (
        "megatron-lm",
        re.compile(
            r"(?<!-)-{8,100} arguments -{8}|"
            r"iteration[ =]+\d{1,9}/ {0,12}\d{1,9} \|.{0,200}elapsed[ _]time[ _]per[ _]iteration|"
            r"memory \(MB\) \| allocated: |\bpretrain_\w{1,40}\.py {1,8}--"
        ),
    ),
    (
        "torchtune",
        re.compile(r"\btune run |\bStep \d{1,9} \| loss:|GPU peak memory allocation: |with resolved config:"),
    ),
    ("hf-trainer", re.compile(r"\{'(?:loss|train_runtime)': |\*{5} Running training \*{5}")),
)
"""First sign of each; `torchtitan` before `hf-trainer`, as a framework prints its own lines beside its libraries'."""


def recognise(lines: Iterable[bytes]) -> str:
    """The format of a file by its content; raises InvalidInput naming the known ones.

    A table by its first line that holds anything, a log by the first line that only one framework prints.
    """
    first = True
    deepspeed = False
    megatron: int | None = None
    for count, raw in enumerate(lines):
        if first and raw.startswith(PICKLE):
            return SNAPSHOT
        text = decoded(raw)
        if first and text.strip():
            first = False
            if text.lstrip().startswith('{"') or text.strip() == "{":
                return "jsonl"
            if re.match(r"\"?[a-z_]+(?:\.[a-z_]+)*\"?,", text) and "measured." in text:
                return "csv"
        for line in log_lines([raw]):
            deepspeed = deepspeed or _DEEPSPEED.search(line) is not None
            found = next((name for name, sign in _SIGNS if sign.search(line)), None) if megatron is None else None
            if found == "megatron-lm":
                megatron = count
            elif found:
                return found
        if count >= MOST_LINES or (megatron is not None and (deepspeed or count > megatron + MOST_ARGUMENT_LINES)):
            break
    if megatron is not None:
        return "megatron-deepspeed" if deepspeed else "megatron-lm"
    if deepspeed:
        return "deepspeed"
    raise InvalidInput(("format",), "unknown_format", f"not recognised by its content; one of {', '.join(FORMATS)}")
