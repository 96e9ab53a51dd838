"""What the fit of the time model may move, and how far: ranges that physics or published measurements set.

The middle of a range is where the fit starts and where it leaves a value that no run speaks about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Range:
    """Bounds of one coefficient."""

    low: float
    high: float

    def at(self, position: float) -> float:
        """Value at a position between 0 and 1: on a log scale, or linear where the range begins at 0."""
        if self.low == 0:
            return self.high * position
        return float(self.low * (self.high / self.low) ** position)


# Large matrix products reach at most what ml-engineering's maximum achievable matmul FLOPS table lists: A100 0.869,
# H100 0.803 (fp8 0.709), B200 0.776 (fp8 0.763). In training, at the power limit with operands that are not in cache,
# they reach less; a fifth less at the middle. V100: cuBLAS reaches 0.83 (arXiv 1804.06826 table 4.3).
GEMM: Final = {
    "generation.volta.gemm": Range(0.45, 0.83),
    "generation.ampere.gemm": Range(0.60, 0.87),
    "generation.hopper.gemm": Range(0.50, 0.80),
    "generation.hopper.gemm_fp8": Range(0.45, 0.71),
    "generation.blackwell.gemm": Range(0.45, 0.78),
    "generation.blackwell.gemm_fp8": Range(0.45, 0.76),
    # What those shares are at 500 W of the same silicon (torchtitan's H100 with HBM2e), and less than half of it.
    "generation.hopper.gemm_flops_per_joule": Range(0.7e12, 1.6e12),
    # The same at 1,000 W (B200).
    "generation.blackwell.gemm_flops_per_joule": Range(0.8e12, 1.8e12),
    "generation.blackwell.fp8_flops_per_joule": Range(1.6e12, 3.6e12),
}
# FlashAttention-2 up to 73 % of an A100 forward, 64 % under a causal mask (arXiv 2307.08691 section 4.1, figure 5),
# 0.9 of that in training; FlashAttention-3 and cuDNN up to 75 % of an H100 for half a second (arXiv 2407.08608 section
# 4.1), half of it in steps at the power limit. FlashAttention-2 reaches 0.62 of cuDNN there (figure 5); 0.9 of its own
# 335 TFLOP/s are 0.7 to 0.8 of what cuDNN reaches in steps.
ATTENTION: Final = {
    "generation.ampere.flash_forward": Range(0.50, 0.73),
    "generation.hopper.flash_forward": Range(0.36, 0.75),
    "generation.hopper.plain_flash": Range(0.70, 0.80),
    "generation.blackwell.flash_forward": Range(0.35, 0.75),
}
KERNELS: Final = {
    # From a launch (4 us) to an operator with its module's Python, views and allocations.
    "kernels.operator_seconds": Range(4e-6, 6e-5),
    # Between two kernels that wait in a stream already.
    "kernels.kernel_gap_seconds": Range(1e-6, 4e-6),
    # Copies reach about 0.9 of the datasheet, reductions and transposes less.
    "kernels.memory_efficiency": Range(0.65, 0.92),
    # The pipeline of loads is 4 stages of 32 deep; about as much again for the epilogue.
    "kernels.gemm_depth": Range(32, 512),
    "kernels.head_dim_depth": Range(16, 128),
    # One to four tiles of 128 keys.
    "kernels.attention_depth": Range(64, 512),
    # FlashAttention-2 is 1.3 to 1.5 times as fast as Triton's kernel forward, twice backward (arXiv 2307.08691 4.1).
    "kernels.biased_flash": Range(0.5, 0.77),
}
LINKS: Final = {
    # nccl-tests all_reduce over InfiniBand and EFA reaches half of its bus bandwidth between 1 and 64 MB on 8 NICs.
    "links.half_bytes": Range(1e5, 4e6),
    # From a hop's latency to what all-reduces of 1 GiB on 8 to 64 hosts leave for each of their steps beside the bytes
    # (Ultra-Scale Playbook's bandwidths): 50 to 100 us.
    "links.efa_step_seconds": Range(1.8e-5, 1e-4),
    # Headers and flow control leave at most about 0.95; NVSwitch rings reach 0.75 to 0.9 in nccl-tests.
    "links.intra_efficiency": Range(0.65, 0.90),
    "links.inter_efficiency": Range(0.70, 0.95),
}
FRAMEWORKS: Final = {
    "framework.megatron-lm.hidden_tensor_traffic": Range(0.0, 1.0),
    "framework.megatron-lm.step_seconds": Range(1e-3, 5e-2),
    "framework.deepspeed.sharded_overlap": Range(0.0, 1.0),
    "framework.deepspeed.gather_bandwidth": Range(0.1, 1.0),
    "framework.deepspeed.operator_overhead": Range(0.5, 4.0),
    "framework.nanotron.operator_overhead": Range(0.5, 4.0),
    # DistributedDataParallel overlaps, but its launch script leaves the GPU one queue (CUDA_DEVICE_MAX_CONNECTIONS=1).
    "framework.nanotron.data_parallel_overlap": Range(0.0, 1.0),
    # A message from each rank and one back, one by one, and twice round a ring with the fingerprint: four small ones
    # over TCP a rank, of 25 to 125 us with the threads that they wake.
    "framework.nanotron.barrier_seconds": Range(1e-4, 5e-4),
    "framework.nanotron.step_seconds": Range(1e-3, 5e-2),
}
RANGES: Final[dict[str, Range]] = KERNELS | LINKS | GEMM | ATTENTION | FRAMEWORKS
