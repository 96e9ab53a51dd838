"""The config that a DeepSpeed engine prints when it is made.

Source: microsoft/DeepSpeed `deepspeed/runtime/config.py` (`print`: every field, dots up to column 30, a longer name is
followed by two spaces; `json = {...}` is the file as given; `world_size` is the number of replicas) and
`deepspeed/runtime/zero/config.py` (offload_optimizer, offload_param, zero_hpz_partition_size).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from app.run_logs.facts import Facts

_FIELD: Final = re.compile(r"\[config\.py:\d{1,5}:print\]\s{1,8}(\w{1,60}) (?:\.{2,} | )?(\S.{0,400})")
_JSON: Final = re.compile(r"\[config\.py:\d{1,5}:print(?:_user_config)?\]\s{1,8}json = (\{.*)")
LONGEST_CHARACTERS: Final = 200_000
_OPTIMIZERS: Final = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "adafactor": "adafactor", "muon": "muon"}


class EngineConfig:
    """Goes through the lines of a log."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.given: dict[str, Any] = {}
        """The JSON file."""
        self._text: str | None = None

    def read(self, line: str) -> None:
        """Take what this line holds of the config."""
        if self._text is not None:
            self._text += line
            if len(self._text) > LONGEST_CHARACTERS:
                self._text = None
            elif line.startswith("}"):
                self._close()
        elif "config.py:" in line:
            if found := _JSON.search(line):
                self._text = found.group(1)
            elif (field := _FIELD.search(line)) and line.endswith("\n") and len(self.fields) < 1000:
                self.fields[field.group(1)] = field.group(2).strip()

    def _close(self) -> None:
        try:
            given = json.loads(self._text or "")
        except (ValueError, RecursionError):
            given = None
        self._text = None
        if isinstance(given, dict):
            self.given = given

    def integer(self, name: str) -> int | None:
        """A field that is a positive integer."""
        value = self.fields.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 and int(value) else None

    def zero_stage(self) -> int | None:
        """ZeRO's stage."""
        stage = self.fields.get("zero_optimization_stage", str(self.section("zero_optimization").get("stage", "")))
        return int(stage) if stage in ("0", "1", "2", "3") else None

    def section(self, *names: str) -> dict[str, Any]:
        """A nested object of the file; empty where there is none."""
        found: Any = self.given
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def say_engine_config(config: EngineConfig, facts: Facts) -> None:
    """Note what the engine's config says."""
    if not config.fields and not config.given:
        return
    facts.say("strategy.framework", "deepspeed")
    facts.say("strategy.micro_batch_size", config.integer("train_micro_batch_size_per_gpu"))
    facts.say("workload.global_batch_size", config.integer("train_batch_size"))
    facts.say("strategy.data_parallel_size", config.integer("world_size"))
    zero = config.section("zero_optimization")
    stage = config.zero_stage()
    facts.say("strategy.zero_stage", stage)
    if stage in (2, 3):
        facts.say("strategy.pipeline_parallel_size", 1)
    enabled = {"fp16": _is_on(config, "fp16"), "bf16": _is_on(config, "bf16")}
    precision = next((name for name, on in enabled.items() if on), None)
    facts.say("workload.precision", precision)
    name = config.fields.get("optimizer_name", str(config.section("optimizer").get("type", ""))).lower()
    if name in _OPTIMIZERS:
        facts.say("workload.optimizer", _OPTIMIZERS[name])
    elif name not in ("", "none"):
        facts.ask("workload.optimizer")
    _offload(config, facts)
    partition = zero.get("zero_hpz_partition_size")
    if isinstance(partition, int) and partition > 1:
        facts.say("strategy.secondary_shard_size", partition)


def _is_on(config: EngineConfig, name: str) -> bool:
    fields = (f"{name}_enabled", "bfloat16_enabled" if name == "bf16" else name)
    return any(config.fields.get(field) == "True" for field in fields) or config.section(name).get("enabled") is True


def _offload(config: EngineConfig, facts: Facts) -> None:
    optimizer = config.section("zero_optimization", "offload_optimizer").get("device", "none")
    parameters = config.section("zero_optimization", "offload_param").get("device", "none")
    if not config.given:
        return
    if "nvme" in (optimizer, parameters):
        facts.say("strategy.offload", "nvme")
    elif parameters == "cpu" and optimizer == "cpu":
        facts.say("strategy.offload", "optimizer-and-parameters")
    elif optimizer == "cpu":
        facts.say("strategy.offload", "optimizer")
    elif parameters == "cpu":
        facts.ask("strategy.offload")
    else:
        facts.say("strategy.offload", "none")
