"""Transformers' own reading of TrainingArguments and of DeepSpeed's file beside them.

Reads from standard input a JSON list of {"arguments": {}, "config": {}, "ranks": n}, prints the rules of agreement that
each pair breaks. An argument that Transformers does not know ends the script.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers
from transformers import TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig


def read(job: dict[str, Any]) -> dict[str, Any]:
    arguments = {**job["arguments"], "output_dir": "out", "use_cpu": True, "learning_rate": 1e-4}
    arguments.pop("deepspeed")
    told = TrainingArguments(**arguments)
    TrainingArguments.world_size = property(lambda _: job["ranks"])
    config = HfTrainerDeepSpeedConfig(job["config"])
    config.trainer_config_process(told)
    return {
        "version": transformers.__version__,
        "mismatches": config.mismatches,
        "rate": config.config["optimizer"]["params"]["lr"] if "optimizer" in config.config else None,
        "unknown": sorted(set(job["arguments"]) - {field.name for field in dataclasses.fields(TrainingArguments)}),
        "recompute": told.activation_checkpointing_kwargs if told.activation_checkpointing else None,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(Path(place))
        found = [read(job) for job in json.load(sys.stdin)]
    print("\n" + json.dumps(found))
