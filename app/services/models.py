"""From a ModelInput to an architecture, and what is known of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.schemas.models import ModelInput
from cost_models.architecture import FeedForward, ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.parameters import count_parameters


def read_model(given: ModelInput, sequence_length: int | None = None) -> ModelArchitecture:
    """The architecture that exactly one of preset, hf_config and architecture describes.

    `sequence_length` is the workload's: learned positions whose number is left out are as many.
    """
    if given.preset is not None:
        return load_model(given.preset)
    if given.hf_config is not None:
        return read_hf_config(given.hf_config)
    assert given.architecture is not None
    fields = given.architecture.model_dump(exclude_none=True)
    return build_architecture(fields, sequence_length=sequence_length)


def inspect_model(given: ModelInput) -> dict[str, Any]:
    """Parameter counts, the architecture as it will be priced, and every assumption."""
    model = read_model(given)
    counts = count_parameters(model)
    return {
        "parameters": asdict(counts) | {"per_layer": list(counts.per_layer)},
        "architecture": _describe(model),
        "assumptions": list(model.assumptions),
    }


def _describe(model: ModelArchitecture) -> dict[str, Any]:
    """The names of `ModelInput.architecture`, then what they cannot say: every distinct block, the layers using it."""
    described = asdict(model)
    used = [model.blocks[kind] for kind in model.layer_blocks]
    attention = used[-1].attention
    dense = [block.feed_forward for block in used if isinstance(block.feed_forward, FeedForward)]
    experts = next((block.experts for block in used if block.experts), None)
    perceptron = dense[0] if dense else experts.routed if experts else None
    return {
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "attention_heads": attention.heads,
        "key_value_heads": attention.key_value_heads,
        "head_dim": attention.head_dim,
        "ffn_hidden_size": perceptron.hidden if perceptron else None,
        "gated_mlp": perceptron.gated if perceptron else None,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "experts": experts.experts if experts else None,
        "experts_per_token": experts.experts_per_token if experts else None,
        "expert_ffn_hidden_size": experts.routed.hidden if experts else None,
        "shared_expert_ffn_hidden_size": experts.shared.hidden if experts and experts.shared else None,
        "first_dense_layers": next((i for i, block in enumerate(used) if block.experts), 0) if experts else None,
    } | {name: value for name, value in described.items() if name != "assumptions"}
