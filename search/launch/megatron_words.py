"""What the contract and Megatron-LM call the same thing, read in both directions.

Source: NVIDIA/Megatron-LM `megatron/training/arguments.py` at 000c4ac24f61159c138b0975def722c65245983c and
`megatron/core/transformer/transformer_config.py` of Megatron-Core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Options = dict[str, tuple[str, ...]]
"""Option, with its dashes → its values; none: a flag."""

CONTEXT_KINDS: Final[Mapping[str, str]] = {"ring": "p2p", "all-gather": "all_gather", "all-to-all": "a2a"}
"""`--cp-comm-type`, in the words of Transformer Engine's `cp_comm_type`."""
FP8_FORMATS: Final[Mapping[str, str]] = {"tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
"""fp8_recipe, which Megatron-LM calls the same → `--fp8-format`: NVIDIA-NeMo/Megatron-Bridge
`training/mixed_precision.py`. There is no rowwise recipe."""
SHARDING: Final[Mapping[int, str]] = {2: "optim_grads", 3: "optim_grads_params"}
"""zero_stage → `--data-parallel-sharding-strategy` of Megatron-FSDP."""
STATE_DTYPES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp16": "fp16", "int8": "fp8"}
"""optimizer_state_dtype → `--exp-avg-dtype`: its moments of 8 bit are floating-point ones."""
ACTIVATIONS: Final[Mapping[tuple[str, bool], tuple[str, ...]]] = {
    ("silu", True): ("--swiglu",),
    ("quick_gelu", True): ("--quick-geglu",),
    ("gelu", False): (),
    ("gelu_tanh", False): (),
    ("gelu_new", False): (),
    ("relu2", False): ("--squared-relu",),
}
"""Activation and whether it is gated → flags. The fused GELU is the tanh form."""
PADDED_TO: Final = 128
"""`--make-vocab-size-divisible-by`."""
MUONS: Final[Mapping[int, str]] = {0: "muon", 1: "dist_muon"}
"""zero_stage → `--optimizer`: the layer-wise distributed one takes no `--use-distributed-optimizer`."""
FSDP_CHECKPOINTS: Final = "fsdp_dtensor"


def flag(name: str) -> Options:
    """An option without a value."""
    return {name: ()}


def option(name: str, *values: object) -> Options:
    """An option with values."""
    return {name: tuple(str(value) for value in values)}


def words(options: Options) -> list[str]:
    """As they are typed."""
    return [word for name, values in options.items() for word in (name, *values)]


def pattern(bits: list[int]) -> str:
    """A list of 0 and 1, one a layer, as the Python expression that `--moe-layer-freq` and its like take."""
    for period in range(1, len(bits) // 2 + 1):
        if len(bits) % period == 0 and bits == bits[:period] * (len(bits) // period):
            return f"([{','.join(map(str, bits[:period]))}]*{len(bits) // period})"
    runs: list[list[int]] = []
    for bit in bits:
        if runs and runs[-1][0] == bit:
            runs[-1][1] += 1
        else:
            runs.append([bit, 1])
    return "(" + "+".join(f"[{bit}]*{count}" for bit, count in runs) + ")"
