"""DeepSpeed's own reading of `ds_config.json`.

Reads from standard input a JSON list of {"config": {}, "data_ranks": n}, prints what DeepSpeed makes of each. A rule of
DeepSpeed's that is broken ends the script. No process group is started: the number of data ranks is told.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import deepspeed
import deepspeed.runtime.config as reader


class Groups:
    """What DeepSpeed asks of a model's own groups."""

    def __init__(self, data_ranks: int) -> None:
        self.data_ranks = data_ranks

    def get_data_parallel_world_size(self) -> int:
        return self.data_ranks


def read(job: dict[str, Any]) -> dict[str, Any]:
    config = reader.DeepSpeedConfig(job["config"], mpu=Groups(job["data_ranks"]))
    zero = config.zero_config
    states, weights = zero.offload_optimizer, zero.offload_param
    return {
        "version": deepspeed.__version__,
        "batch": [
            config.train_batch_size,
            config.train_micro_batch_size_per_gpu,
            config.gradient_accumulation_steps,
        ],
        "stage": int(zero.stage),
        "overlap": zero.overlap_comm,
        "secondary": zero.zero_hpz_partition_size,
        "devices": [
            None if place is None else str(getattr(place.device, "value", place.device)) for place in (states, weights)
        ],
        "ratio": None if states is None else states.ratio,
        "precision": "bf16" if config.bfloat16_config.enabled else "fp16" if config.float16_config.enabled else "fp32",
        "gradients": config.grad_accum_dtype,
        "optimizer": config.optimizer_name,
        "tensor": config.tensor_parallel_config.autotp_size,
        "experts": config.expert_parallel_config.autoep_size if config.expert_parallel_config.enabled else 1,
        "checkpoints": config.activation_checkpointing_config.number_checkpoints,
        "unknown": sorted((zero.model_extra or {}).keys()),
    }


if __name__ == "__main__":
    reader.dist.get_rank = lambda: 0
    found = [read(job) for job in json.load(sys.stdin)]
    print("\n" + json.dumps(found))
