"""The collectives that a plan's gradients are priced with, in words and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cost_models.time.reductions import Reduction
from cost_models.units import GB


def in_words(levels: Sequence[Reduction]) -> str | None:
    """A sentence; None: nothing is reduced."""
    if not levels:
        return None
    said = [_level(level) for level in levels]
    if len(levels) > 1:
        return f"Gradients are priced as reduced in {len(levels)} levels: {', then '.join(said)}."
    return f"Gradients are priced as one {'flat ' if levels[0].nodes > 1 else ''}{said[0]}."


def _level(level: Reduction) -> str:
    nodes = f"on {level.nodes:,} nodes" if level.nodes > 1 else "inside a node"
    return (
        f"{level.collective} over {level.ranks:,} ranks {nodes} ({level.algorithm}, NCCL's {level.protocol} protocol, "
        f"{level.message_bytes / GB:.2g} GB a message)"
    )


def as_data(levels: Sequence[Reduction]) -> list[Mapping[str, Any]]:
    """Plain values for the answer, level by level."""
    return [
        {
            "collective": level.collective,
            "algorithm": level.algorithm,
            "protocol": level.protocol,
            "ranks": level.ranks,
            "nodes": level.nodes,
            "message_bytes": level.message_bytes,
        }
        for level in levels
    ]
