"""What `nvidia-smi topo -m` printed on real hosts, each with where it was published."""

from __future__ import annotations

from typing import Final

H100_OF_FOUR: Final = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV6     NV6     NV6     PIX     SYS     SYS     SYS     6,14,22,30      3               N/A
GPU1    NV6      X      NV6     NV6     SYS     PIX     SYS     SYS     4,12,20,28      1               N/A
GPU2    NV6     NV6      X      NV6     SYS     SYS     PIX     SYS     7,15,23,31      7               N/A
GPU3    NV6     NV6     NV6      X      SYS     SYS     SYS     PIX     5,13,21,29      5               N/A
NIC0    PIX     SYS     SYS     SYS      X      SYS     SYS     SYS
NIC1    SYS     PIX     SYS     SYS     SYS      X      SYS     SYS
NIC2    SYS     SYS     PIX     SYS     SYS     SYS      X      SYS
NIC3    SYS     SYS     SYS     PIX     SYS     SYS     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
"""NVIDIA/nccl issue 1617: four H100 without a switch."""

SWITCHED_OF_EIGHT: Final = """\
                GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7
        GPU0     X      NV18    NV18    NV18    NV18    NV18    NV18    NV18
        GPU1    NV18     X      NV18    NV18    NV18    NV18    NV18    NV18
        GPU2    NV18    NV18     X      NV18    NV18    NV18    NV18    NV18
        GPU3    NV18    NV18    NV18     X      NV18    NV18    NV18    NV18
        GPU4    NV18    NV18    NV18    NV18     X      NV18    NV18    NV18
        GPU5    NV18    NV18    NV18    NV18    NV18     X      NV18    NV18
        GPU6    NV18    NV18    NV18    NV18    NV18    NV18     X      NV18
        GPU7    NV18    NV18    NV18    NV18    NV18    NV18    NV18     X
"""
"""NVIDIA/cutlass, example of distributed GEMM for Blackwell; eight H100 and H200 print the same."""

V100_CUBE_MESH: Final = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS     0-19,40-59      0               N/A
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS     0-19,40-59      0               N/A
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS     0-19,40-59      0               N/A
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1     0-19,40-59      0               N/A
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2     20-39,60-79     1               N/A
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1     20-39,60-79     1               N/A
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2     20-39,60-79     1               N/A
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X      20-39,60-79     1               N/A
"""
"""InternLM/lmdeploy issue 4423: eight V100 SXM2."""

BRIDGED_PAIRS: Final = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     SYS     SYS     SYS     0-23,48-71      0               N/A
GPU1    NV4      X      SYS     SYS     SYS     0-23,48-71      0               N/A
GPU2    SYS     SYS      X      NV4     PXB     24-47,72-95     1               N/A
GPU3    SYS     SYS     NV4      X      PIX     24-47,72-95     1               N/A
NIC0    SYS     SYS     PXB     PIX      X
"""
"""A report of vLLM 0.11.1 on four A30, bridged in pairs; four A40 print the same words."""

FOUR_BEHIND_A_SWITCH: Final = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity
GPU0     X      PXB     PXB     PXB     SYS     SYS     SYS     SYS     NODE    NODE    0-15    0
GPU1    PXB      X      PXB     PXB     SYS     SYS     SYS     SYS     NODE    NODE    0-15    0
GPU2    PXB     PXB      X      PIX     SYS     SYS     SYS     SYS     NODE    NODE    0-15    0
GPU3    PXB     PXB     PIX      X      SYS     SYS     SYS     SYS     NODE    NODE    0-15    0
GPU4    SYS     SYS     SYS     SYS      X      PXB     PXB     PXB     SYS     SYS     16-31   1
GPU5    SYS     SYS     SYS     SYS     PXB      X      PXB     PXB     SYS     SYS     16-31   1
GPU6    SYS     SYS     SYS     SYS     PXB     PXB      X      PIX     SYS     SYS     16-31   1
GPU7    SYS     SYS     SYS     SYS     PXB     PXB     PIX      X      SYS     SYS     16-31   1
mlx5_0  NODE    NODE    NODE    NODE    SYS     SYS     SYS     SYS      X      PIX
mlx5_1  NODE    NODE    NODE    NODE    SYS     SYS     SYS     SYS     PIX      X
"""
"""Notes on HPL-AI at the Savio cluster of UC Berkeley, a host of eight PCIe cards."""

OWN_PATHS: Final = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      SYS     SYS     SYS     SYS     8-15,24-31      1               N/A
GPU1    SYS      X      PHB     NODE    NODE    0-7,16-23       0               N/A
GPU2    SYS     PHB      X      NODE    NODE    0-7,16-23       0               N/A
GPU3    SYS     NODE    NODE     X      PHB     0-7,16-23       0               N/A
GPU4    SYS     NODE    NODE    PHB      X      0-7,16-23       0               N/A
"""
"""noonghunna/club-3090 issue 46: five PCIe cards in one host, RTX 4090 among them."""


def matrix(rows: list[list[str]]) -> str:
    """A matrix as nvidia-smi prints it, tabs and the terminal's underline of the head included."""
    head = "\x1b[4m\t" + "\t".join(f"GPU{index}" for index in range(len(rows))) + "\tCPU Affinity\x1b[0m"
    return "\n".join([head, *(f"GPU{index}\t" + "\t".join(row) + "\t0-63" for index, row in enumerate(rows))])


def mesh(gpus: int, word: str) -> str:
    """Any two of `gpus` joined alike."""
    return matrix([["X" if one == other else word for other in range(gpus)] for one in range(gpus)])
