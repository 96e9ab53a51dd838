"""How a job was launched, as far as its log shows: nodes, GPUs a node, the allocator's setting, and the GPU's name.

Sources: Slurm's `sbatch` manual (SLURM_JOB_NUM_NODES, SLURM_NNODES, SLURM_GPUS_PER_NODE), `torch/distributed/run.py` of
pytorch/pytorch (`--nnodes`, one by default, and `--nproc-per-node`), and the scripts around them (NNODES, NGPU,
NPROC_PER_NODE, GPUS_PER_NODE, NUM_GPUS, WORLD_SIZE). Device names are those of `torch.cuda.get_device_name`.
"""

from __future__ import annotations

import re
from typing import Final

from app.run_logs.facts import Facts
from app.run_logs.patterns import INTEGER
from cost_models.catalog.hardware import load_gpu
from cost_models.units import GIB

_VARIABLE: Final = re.compile(
    r"\b(SLURM_JOB_NUM_NODES|SLURM_NNODES|NNODES|NUM_NODES"
    r"|SLURM_GPUS_PER_NODE|SLURM_GPUS_ON_NODE|GPUS_PER_NODE|NPROC_PER_NODE"
    r"|NUM_GPUS|NGPU|WORLD_SIZE)\s{0,4}[:=]\s{0,4}" + INTEGER
)
_NODES: Final = frozenset({"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "NNODES", "NUM_NODES"})
_ALL: Final = frozenset({"NUM_GPUS", "NGPU", "WORLD_SIZE"})
_PER_NODE: Final = re.compile(r"--nproc[-_]per[-_]node[= ]" + INTEGER)
_NNODES: Final = re.compile(r"--nnodes[= ]" + INTEGER)
_SEGMENTS: Final = re.compile(r"\bPYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\b.{0,80}?\bexpandable_segments:(True|False)\b")
_ADVICE: Final = "try setting"
"""PyTorch recommends expandable segments where an allocation failed: that says that they were off, if anything."""
MEMORY_TOLERANCE: Final = 0.02
"""Between what torch reports of two boards of one kind (ECC, reserved pages): sources of the catalog differ by less."""
_DEVICES: Final = (
    (r"V100-SXM\d-16GB", "v100-sxm2-16gb"),
    (r"V100-SXM\d-32GB", "v100-sxm2-32gb"),
    (r"Tesla T4", "t4-16gb"),
    (r"NVIDIA A10", "a10-24gb"),
    (r"NVIDIA A10G", "a10g-24gb"),
    (r"NVIDIA L4", "l4-24gb"),
    (r"GeForce RTX 3090", "rtx-3090-24gb"),
    (r"GeForce RTX 4090", "rtx-4090-24gb"),
    (r"RTX A6000", "rtx-a6000-48gb"),
    (r"NVIDIA A40", "a40-48gb"),
    (r"NVIDIA L40S", "l40s-48gb"),
    (r"A100-SXM4-40GB", "a100-sxm4-40gb"),
    (r"A100-SXM4-80GB", "a100-sxm4-80gb"),
    (r"A100 80GB PCIe", "a100-pcie-80gb"),
    (r"A800-SXM4-80GB", "a800-sxm4-80gb"),
    (r"H100 80GB HBM3", "h100-sxm5-80gb"),
    (r"H100 PCIe", "h100-pcie-80gb"),
    (r"NVIDIA H800", "h800-sxm5-80gb"),
    (r"NVIDIA H20", "h20-96gb"),
    (r"NVIDIA H200", "h200-sxm5-141gb"),
    (r"NVIDIA H200 NVL", "h200-nvl-141gb"),
    (r"NVIDIA B200", "b200-sxm-180gb"),
    (r"NVIDIA B300.*", "b300-sxm-270gb"),
    (r"NVIDIA GB200", "gb200-186gb"),
    (r"NVIDIA GB300", "gb300-279gb"),
    (r"Instinct MI250X.*", "mi250x-64gb"),
    (r"Instinct MI300X.*", "mi300x-192gb"),
    (r"Instinct MI325X.*", "mi325x-256gb"),
    (r"Instinct MI350X.*", "mi350x-288gb"),
    (r"Instinct MI355X.*", "mi355x-288gb"),
)
"""The end of a device's name, and the catalog's."""
_COMPILED: Final = tuple((re.compile(pattern + "$"), name) for pattern, name in _DEVICES)


def read_launch(line: str, facts: Facts) -> None:
    """Note nodes, GPUs a node and all GPUs where a script or a launcher names them, and the allocator's setting."""
    if "expandable_segments" in line and _ADVICE not in line and (segments := _SEGMENTS.search(line)):
        facts.say("strategy.expandable_segments", segments.group(1) == "True")
    if "NODE" not in line and "GPU" not in line and "WORLD_SIZE" not in line and "nproc" not in line:
        return
    for name, value in _VARIABLE.findall(line):
        if name in _NODES:
            facts.say("cluster.nodes", int(value))
        elif name in _ALL:
            facts.gpus = int(value)
        else:
            facts.say("cluster.gpus_per_node", int(value))
    per_node = _PER_NODE.search(line)
    if per_node and "torchrun" in line:
        nodes = _NNODES.search(line)
        facts.say("cluster.gpus_per_node", int(per_node.group(1)))
        if nodes or "--nnodes" not in line:
            facts.say("cluster.nodes", int(nodes.group(1)) if nodes else 1)


def catalog_gpu(device: str, memory_gib: float) -> str | None:
    """The catalog's name of what torch calls `device`, if its memory agrees; None: it is not in the catalog."""
    for pattern, name in _COMPILED:
        if pattern.search(device.strip()):
            usual = load_gpu(name).memory_bytes / GIB
            return name if abs(memory_gib / usual - 1) <= MEMORY_TOLERANCE else None
    return None
