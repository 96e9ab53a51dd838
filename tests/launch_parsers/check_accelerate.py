"""Accelerate's own reading of its YAML, as `accelerate launch` does it.

Reads from standard input a JSON list of YAML texts, prints what the launcher and the plugins make of each. A rule of
Accelerate's that is broken ends the script.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import accelerate
import accelerate.utils.dataclasses as plugins
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def read(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "accelerate.yaml"
    path.write_text(text)
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, defaults, _ = _validate_launch_command(args)
    said: dict[str, Any] = {
        "version": accelerate.__version__,
        "type": defaults.distributed_type.value,
        "processes": args.num_processes,
        "nodes": args.num_machines,
        "mixed": args.mixed_precision,
        "compile": args.dynamo_backend,
    }
    args.main_process_ip, args.main_process_port = "localhost", 0
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)  # as launch_command does
        _, variables = prepare_deepspeed_cmd_env(args)
        said["file"] = variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"]
        said["split"] = variables["ACCELERATE_DEEPSPEED_ZERO3_INIT"]
        return said
    variables = prepare_multi_gpu_env(args)
    os.environ.update(variables)
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        said["fsdp"] = plugin.fsdp_version
        said["reshard"] = plugin.reshard_after_forward if plugin.fsdp_version == 2 else plugin.sharding_strategy.name
        said["recompute"] = plugin.activation_checkpointing
        place = plugin.cpu_offload
        said["offload"] = getattr(place, "offload_params", type(place).__name__ == "CPUOffloadPolicy")
        said["saved"] = plugin.state_dict_type.name
    if args.use_parallelism_config:
        mesh = ParallelismConfig()
        said["mesh"] = [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.cp_size, mesh.total_size]
    for name in variables:
        if name.startswith(("FSDP_", "PARALLELISM_CONFIG_", "ACCELERATE_")):
            os.environ.pop(name, None)
    return said


if __name__ == "__main__":
    # The plugin of FSDP1 asks for the device to broadcast weights to.
    plugins.is_cuda_available = lambda: True
    torch.cuda.current_device = lambda: 0
    with tempfile.TemporaryDirectory() as place:
        found = [read(text, Path(place)) for text in json.load(sys.stdin)]
    print("\n" + json.dumps(found))
