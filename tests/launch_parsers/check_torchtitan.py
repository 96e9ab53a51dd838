"""torchtitan's own reading of a configuration function.

Reads from standard input a JSON list of {"text": module, "gpus": n}, prints what torchtitan's configuration says of
each. A rule of torchtitan's that is broken ends the script. What asks for a GPU is told that it is there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torchtitan  # noqa: E402
from torch.distributed.pipelining.schedules import get_schedule_class  # noqa: E402
from torchtitan.components.quantization import float8, mx, nvfp4  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402

for module in (float8, mx, nvfp4):
    if hasattr(module, "has_cuda_capability"):
        module.has_cuda_capability = lambda *_: True


LINEARS = ("Float8Linear", "MXFP8Linear", "NVFP4Linear")


def read(job: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    name = f"planned_config_{number}"
    (folder / f"{name}.py").write_text(job["text"])
    importlib.invalidate_caches()
    config = ConfigManager().parse_args(["--module", name, "--config", "planned"])
    sizes = ParallelDims.from_config(config.parallelism, job["gpus"])
    checkpointing = config.activation_checkpoint
    text = repr(config.model_spec.model)
    return {
        "version": torchtitan.__version__,
        "sizes": [sizes.dp_replicate, sizes.dp_shard, sizes.cp, sizes.tp, sizes.pp, sizes.ep],
        "batch": [config.training.local_batch_size, config.training.global_batch_size],
        "layers": len(config.model_spec.model.layers),
        "schedule": get_schedule_class(config.parallelism.pipeline_parallel_schedule).__name__,
        "checkpointing": None if checkpointing is None else type(checkpointing).__qualname__,
        "dtype": config.training.dtype,
        "converted": {name: text.count(f"{name}.Config(") for name in LINEARS if f"{name}.Config(" in text},
    }


if __name__ == "__main__":
    os.environ.update(HF_ASSETS="/", LEARNING_RATE="1e-4", STEPS="10")
    with tempfile.TemporaryDirectory() as place:
        sys.path.insert(0, place)
        found = [read(job, Path(place), number) for number, job in enumerate(json.load(sys.stdin))]
    print("\n" + json.dumps(found))
