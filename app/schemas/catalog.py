"""What `catalog/*` answers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.schemas.base import ResponseModel


class ModelEntry(ResponseModel):
    """One model preset."""

    name: str
    parameters: int = Field(description="Distinct trainable parameters.")
    active_parameters: int = Field(description="Less the routed experts that a token does not use.")
    layers: int
    hidden_size: int
    vocab_size: int
    source: str


class GpuEntry(ResponseModel):
    """One GPU. Peaks are dense."""

    name: str
    generation: str | None
    memory_gib: float = Field(description="As torch reports it, GiB.")
    memory_gb_per_s: float
    peak_tflops: dict[str, float]
    tdp_watts: float
    flash_attention: bool
    intra_node: dict[str, Any] = Field(description="The usual link inside a domain.")
    inter_node: dict[str, Any] = Field(description="The usual fabric between domains.")
    pcie_gb_per_s: float
    source: str
    memory_source: str


class ClusterEntry(ResponseModel):
    """One cluster preset: a ClusterInput without `nodes`."""

    preset: str
    gpus_per_node: int
    gpu: str
    intra_node: dict[str, Any]
    inter_node: dict[str, Any]
    host: dict[str, Any]
    rack_gpus: int | None = Field(description="GPUs that one NVLink domain can hold, where it spans hosts.")
    source: str


class FrameworkEntry(ResponseModel):
    """What one framework can run, its defaults, and what it keeps in memory."""

    name: str
    version: str = Field(description="The release that the statements were read from.")
    runs: dict[str, Any] = Field(description="Values of the contract's fields that it can run.")
    defaults: dict[str, Any] = Field(description="What it does where a strategy leaves a field out.")
    keeps_in_memory: dict[str, Any] = Field(description="Stored dtypes, by precision of the workload.")
    behaviour: dict[str, Any] = Field(description="What else it is priced with: buffers, overlap, overheads.")
    launch_targets: list[str]


class ModelCatalog(ResponseModel):
    """All model presets."""

    items: list[ModelEntry]


class GpuCatalog(ResponseModel):
    """All GPUs."""

    items: list[GpuEntry]


class ClusterCatalog(ResponseModel):
    """All cluster presets."""

    items: list[ClusterEntry]


class FrameworkCatalog(ResponseModel):
    """All frameworks."""

    items: list[FrameworkEntry]
