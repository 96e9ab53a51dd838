"""torchtitan's config: the dump that a log may hold, and options of its command line.

Source: pytorch/torchtitan `torchtitan/config/job_config.py` (names, defaults) and `config/manager.py` (`--section.name
value`; with `print_config`, "Running with configs:" and the whole config as indented JSON). Without the dump only what
the command line sets is known: the file behind it is not in the log.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from app.run_logs.facts import Facts

_BEGINS: Final = re.compile(r"Running with (?:configs|args): (\{.*)")
_TAG: Final = re.compile(r"^\s{0,8}(?:\[\w{1,12}\]:)?")
_OPTION: Final = re.compile(
    r"--((?:training|parallelism|activation_checkpoint|optimizer|compile|model)\.\w{1,60})[= ]([\w.+-]{1,60})"
)
LONGEST_CHARACTERS: Final = 200_000
_CHECKPOINTING: Final = {"none": "none", "full": "full", "selective": "selective"}
_OPTIMIZERS: Final = {"AdamW": "adamw", "Adam": "adam", "Muon": "muon"}
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class ConfigReader:
    """Goes through the lines of a log; `values` by dotted name."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._text: str | None = None
        self._open_braces = 0

    def read(self, line: str) -> None:
        """Take what this line holds of a config."""
        if self._text is None:
            if "Running with" in line and (found := _BEGINS.search(line)):
                self._text = found.group(1)
                self._open_braces = 0
            elif "--" in line:
                for name, value in _OPTION.findall(line):
                    self.values[name] = _value(value)
                return
            else:
                return
        else:
            self._text += _TAG.sub("", line)
        self._open_braces += line.count("{") - line.count("}")
        if len(self._text) > LONGEST_CHARACTERS:
            self._text = None
        elif self._open_braces <= 0:
            self._close()

    def _close(self) -> None:
        try:
            config = json.loads(self._text or "")
        except (ValueError, RecursionError):
            config = None
        self._text = None
        for section, fields in config.items() if isinstance(config, dict) else ():
            if isinstance(fields, dict):
                self.values.update({f"{section}.{name}": value for name, value in fields.items()})

    def integer(self, *names: str) -> int | None:
        """The first of these that is a positive integer."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
                return value
        return None


def say_config(config: ConfigReader, facts: Facts) -> None:
    """Note what the config says and the log has not said in words: what a log says happened wins."""
    found: dict[str, Any] = {
        "strategy.tensor_parallel_size": config.integer("parallelism.tensor_parallel_degree"),
        "strategy.pipeline_parallel_size": config.integer("parallelism.pipeline_parallel_degree"),
        "strategy.context_parallel_size": config.integer("parallelism.context_parallel_degree"),
        "strategy.data_parallel_replicate_size": config.integer("parallelism.data_parallel_replicate_degree"),
        "strategy.activation_checkpointing": _named(_CHECKPOINTING, config.values.get("activation_checkpoint.mode")),
        "workload.sequence_length": config.integer("training.seq_len"),
        "workload.optimizer": _named(_OPTIMIZERS, config.values.get("optimizer.name")),
        "workload.precision": _named(_DTYPES, config.values.get("training.mixed_precision_param")),
    }
    if config.values.get("optimizer.name") and found["workload.optimizer"] is None:
        facts.ask("workload.optimizer")
    for path, value in found.items():
        if facts.said(path) is None:
            facts.say(path, value)
    if (
        config.values.get("activation_checkpoint.mode") == "selective"
        and str(config.values.get("activation_checkpoint.selective_ac_option", "op")).isdecimal()
    ):
        facts.note("selective checkpointing of every n-th layer: a Strategy has the per-operator policy only")
    policy = config.values.get("parallelism.fsdp_reshard_after_forward")
    if facts.said("strategy.zero_stage") is None and policy in ("always", "never", "default"):
        stages = facts.said("strategy.pipeline_parallel_size")
        if policy != "default" or stages is not None:
            kept = policy == "never" or (policy == "default" and stages != 1)
            facts.say("strategy.zero_stage", 2 if kept else 3)


def _named(names: dict[str, str], value: object) -> str | None:
    return names.get(value) if isinstance(value, str) else None


def _value(text: str) -> Any:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else text
