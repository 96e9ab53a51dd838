"""Parameter counts of a model, as the API answers them."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import ModelArchitecture


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Distinct trainable parameters: no buffers, no multi-token-prediction layers, tied weights once."""

    total: int
    active: int
    """`total` less the routed experts that a token does not use."""
    embedding: int
    """The input embedding matrix (ViT: the patch projection)."""
    per_layer: tuple[int, ...]
    """A number a block, encoder first."""


def count_parameters(architecture: ModelArchitecture) -> ParameterCounts:
    """Counts, exact to the last parameter, as the `transformers` class of the model has them."""
    return ParameterCounts(
        total=architecture.parameters,
        active=architecture.active_parameters,
        embedding=architecture.embedding_parameters,
        per_layer=architecture.layers_parameters,
    )
