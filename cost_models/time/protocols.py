"""NCCL's wire protocols: each trades latency for bandwidth, and NCCL takes the fastest for a message.

Latencies in seconds from NCCL's own cost model (src/graph/tuning.cc: baseLat, hwLat); shares of bandwidth from
"Demystifying NCCL" (arXiv 2507.04786) section III.C: a flag beside every 8 bytes of 16 (LL), or 8 of 128 (LL128).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Protocol:
    """Latencies of one protocol and the share of the bandwidth that it leaves to data."""

    bandwidth: float
    ring_base: float
    tree_base: float
    nvlink: tuple[float, float]
    """One hop of a ring and of a tree."""
    pcie: tuple[float, float]
    network: tuple[float, float]


SIMPLE: Final = Protocol(1.0, 8.4e-6, 8.4e-6, (3.4e-6, 4.0e-6), (5.7e-6, 4.0e-6), (14.0e-6, 14.0e-6))
LL128: Final = Protocol(120 / 128, 14.0e-6, 14.0e-6, (1.9e-6, 1.25e-6), (2.5e-6, 1.9e-6), (4.0e-6, 8.5e-6))
LL: Final = Protocol(0.5, 6.6e-6, 6.8e-6, (0.6e-6, 0.6e-6), (1.0e-6, 1.0e-6), (2.7e-6, 5.0e-6))
PROTOCOLS: Final = (SIMPLE, LL128, LL)
