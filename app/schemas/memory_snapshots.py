"""What a PyTorch memory snapshot tells."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from app.schemas.base import ResponseModel

FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "A pickle of `torch.cuda.memory._dump_snapshot`, up to 512 MiB.",
        },
    },
}
"""The multipart body, as OpenAPI describes it: it is read after the key is checked, not by the framework before."""


class Fragmentation(ResponseModel):
    """At the moment of the peak of what is allocated."""

    allocated_gib: float
    reserved_gib: float
    reserved_minus_allocated_gib: float
    free_gib: float = Field(description="In blocks of the next request's pool and stream.")
    free_blocks: int
    largest_free_block_gib: float
    next_request_gib: float | None = Field(description="What is asked for next; null: the trace ends.")
    next_request_fits: bool | None = Field(description="Into the largest free block.")


class OutOfMemory(ResponseModel):
    """The last time that an allocation failed."""

    failures: int = Field(description="In the whole trace.")
    request_gib: float
    device_free_gib: float = Field(description="What the device still had.")
    free_gib: float = Field(description="What the allocator held unused, in blocks of the request's pool and stream.")
    free_blocks: int
    largest_free_block_gib: float
    missing_gib: float = Field(description="0: fragmentation alone made it fail.")


class AllocationSite(ResponseModel):
    """Blocks that were allocated at one place and live at the peak."""

    kind: Literal["buckets", "logits", "optimizer", "backward", "parameters", "activations", "other", "unrecorded"] = (
        Field(description="As the stack lets it be read.")
    )
    frames: list[str] = Field(
        description="`file:line:function`, innermost first: the library's innermost call, then the user's frames."
    )
    gib: float
    blocks: int
    share: float = Field(description="Of what is allocated at the peak.")


class MemoryAdvice(ResponseModel):
    """One change."""

    code: str
    message: str
    gib: float = Field(description="What it is about.")


class DeviceMemory(ResponseModel):
    """One GPU."""

    device: int
    peak_allocated_gib: float = Field(description="Over the trace, as torch.cuda.max_memory_allocated counts.")
    peak_reserved_gib: float = Field(description="Over the trace, as torch.cuda.max_memory_reserved counts.")
    allocated_at_end_gib: float
    reserved_at_end_gib: float
    fragmentation: Fragmentation
    out_of_memory: OutOfMemory | None
    gib_by_kind: dict[str, float] = Field(description="Of what is allocated at the peak.")
    sites: list[AllocationSite] = Field(description="The twenty that hold most.")
    advice: list[MemoryAdvice] = Field(description="What to change, the cheapest first.")
    events: int
    notes: list[str]


class MemorySnapshotReport(ResponseModel):
    """Peaks over all devices, then each device."""

    peak_allocated_gib: float
    peak_reserved_gib: float
    out_of_memory: bool
    devices: list[DeviceMemory]
    allocator_settings: dict[str, Any] = Field(description="As torch wrote them.")
