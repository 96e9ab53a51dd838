"""What to change, with the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.memory_snapshots.free_memory import FreeBlocks
from cost_models.units import GIB

NOTABLE_SHARE: Final = 0.1
"""Of the peak: what is less is not worth a change of its own."""
LARGE_SHARE: Final = 0.25
"""Of the peak: a part that decides it."""
MOST_OCCUPIED: Final = 0.5
"""Where the largest free block holds more than this of all that is free, free memory is contiguous enough."""


@dataclass(frozen=True)
class Shortage:
    """The last time that an allocation failed."""

    request_bytes: int
    device_free_bytes: int
    """What the device still had."""
    free: FreeBlocks
    """What the allocator held and did not use, in the request's pool and stream."""

    @property
    def missing_bytes(self) -> int:
        """What the request lacks of the device's and the allocator's free memory together; 0: fragmentation alone."""
        return max(self.request_bytes - self.device_free_bytes - self.free.total_bytes, 0)


@dataclass(frozen=True)
class Peak:
    """The moment of a device's peak."""

    allocated_bytes: int
    reserved_bytes: int
    free: FreeBlocks
    by_kind: Mapping[str, int]
    """Bytes by `sites.KINDS`."""


@dataclass(frozen=True)
class Advice:
    """One change."""

    code: str
    message: str
    bytes: int
    """What it is about: that lie idle, or that the named allocations hold at the peak."""


def advise(peak: Peak, shortage: Shortage | None, *, expandable: bool | None) -> list[Advice]:
    """Changes in the order of what they cost: settings first, then what takes time. `expandable` None: not recorded."""
    found = [
        *_expandable_segments(peak, shortage, expandable),
        *_smaller_buckets(peak),
        *_chunked_logits(peak),
        *_optimizer_states(peak),
        *_activations(peak, shortage),
    ]
    if not found:
        found.append(
            Advice(
                "nothing_stands_out",
                f"{_gib(peak.reserved_bytes - peak.allocated_bytes)} of {_gib(peak.reserved_bytes)} reserved are idle "
                "at the peak, and no kind of allocation stands out",
                peak.reserved_bytes - peak.allocated_bytes,
            )
        )
    return found


def _expandable_segments(peak: Peak, shortage: Shortage | None, expandable: bool | None) -> list[Advice]:
    if expandable:
        return []
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since PyTorch 2.9)"
    unsure = " if it is not set already (the snapshot does not say)" if expandable is None else ""
    if shortage is not None:
        free = shortage.free
        within = free.total_bytes + shortage.device_free_bytes
        if shortage.request_bytes <= within and free.largest_bytes < shortage.request_bytes:
            return [
                Advice(
                    "expandable_segments",
                    f"a request of {_gib(shortage.request_bytes)} failed while {_gib(free.total_bytes)} were free in "
                    f"{free.count} blocks, the largest of {_gib(free.largest_bytes)}, and "
                    f"{_gib(shortage.device_free_bytes)} on the device: set {setting}{unsure}, so that free "
                    "pages become one block",
                    free.total_bytes,
                )
            ]
    idle = peak.reserved_bytes - peak.allocated_bytes
    if idle <= NOTABLE_SHARE * peak.reserved_bytes or peak.free.largest_bytes > MOST_OCCUPIED * peak.free.total_bytes:
        return []
    return [
        Advice(
            "expandable_segments",
            f"{_gib(idle)} of {_gib(peak.reserved_bytes)} reserved ({idle / peak.reserved_bytes:.0%}) are idle at the "
            f"peak, in {peak.free.count} blocks of which the largest has {_gib(peak.free.largest_bytes)}: set "
            f"{setting}{unsure}",
            idle,
        )
    ]


def _smaller_buckets(peak: Peak) -> list[Advice]:
    held = peak.by_kind.get("buckets", 0)
    if held <= LARGE_SHARE * peak.allocated_bytes:
        return []
    return [
        Advice(
            "smaller_buckets",
            f"buckets and gathered groups hold {_share(held, peak)}: wrap smaller groups (FSDP: each block on its own, "
            "limit_all_gathers), lower bucket_cap_mb (DDP), reduce_bucket_size and stage3_prefetch_bucket_size "
            "(DeepSpeed) or --ddp-bucket-size (Megatron-LM), or let gradients be views of the buckets",
            held,
        )
    ]


def _chunked_logits(peak: Peak) -> list[Advice]:
    held = peak.by_kind.get("logits", 0)
    if held <= NOTABLE_SHARE * peak.allocated_bytes:
        return []
    return [
        Advice(
            "chunked_loss",
            f"logits and the loss hold {_share(held, peak)}: use a fused or chunked cross-entropy",
            held,
        )
    ]


def _optimizer_states(peak: Peak) -> list[Advice]:
    held = peak.by_kind.get("optimizer", 0)
    if held <= LARGE_SHARE * peak.allocated_bytes:
        return []
    return [
        Advice(
            "shard_optimizer_states",
            f"the optimizer holds {_share(held, peak)}: shard its states over data ranks (ZeRO 1), or keep 8-bit ones",
            held,
        )
    ]


def _activations(peak: Peak, shortage: Shortage | None) -> list[Advice]:
    held = peak.by_kind.get("activations", 0) + peak.by_kind.get("logits", 0)
    missing = 0 if shortage is None else shortage.missing_bytes
    if held <= LARGE_SHARE * peak.allocated_bytes or (shortage is not None and missing == 0):
        return []
    lacking = f"; {_gib(missing)} were missing" if missing else ""
    return [
        Advice(
            "activation_checkpointing",
            f"activations and logits hold {_share(held, peak)}{lacking}: recompute more of them in the backward pass",
            held,
        ),
        Advice(
            "micro_batch",
            f"activations and logits grow with the micro-batch: half of it takes about {_gib(held // 2)} less"
            + (
                f", {'enough for' if held // 2 >= missing else 'less than'} the {_gib(missing)} missing"
                if missing
                else ""
            ),
            held // 2,
        ),
    ]


def _share(held: int, peak: Peak) -> str:
    return f"{_gib(held)} of {_gib(peak.allocated_bytes)} at the peak ({held / peak.allocated_bytes:.0%})"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
