"""Whether two descriptions of a model are of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.architecture import FeedForward, ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.errors import CostModelError
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config


def architecture_of(model: Mapping[str, Any], sequence_length: object) -> dict[str, Any] | None:
    """The dimensions of a ModelInput; those of a partial architecture as they stand; None: it cannot be read.

    What cannot be read is refused with its reason when the record is checked.
    """
    try:
        if isinstance(model.get("preset"), str):
            return _dimensions(load_model(model["preset"]))
        if isinstance(model.get("hf_config"), Mapping):
            return _dimensions(read_hf_config(model["hf_config"]))
        given = model.get("architecture")
        if not isinstance(given, Mapping):
            return None
        try:
            length = sequence_length if isinstance(sequence_length, int) else None
            return _dimensions(build_architecture(given, sequence_length=length))
        except CostModelError:
            return {name: value for name, value in given.items() if not isinstance(value, Mapping | list)}
    except CostModelError:
        return None


def disagreements(logged: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Dimensions that both have, and that differ: name, the log's, the other's."""
    for name, says in (logged or {}).items():
        means = given.get(name)
        if says is not None and means is not None and says != means:
            yield name, says, means


def _dimensions(model: ModelArchitecture) -> dict[str, Any]:
    blocks = [model.blocks[kind] for kind in model.layer_blocks]
    if not blocks:
        return {}
    last = blocks[-1]
    dense = [block.feed_forward for block in blocks if isinstance(block.feed_forward, FeedForward)]
    experts = next((block.experts for block in blocks if block.experts), None)
    return {
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "attention_heads": last.attention.heads,
        "key_value_heads": last.attention.key_value_heads,
        "ffn_hidden_size": dense[0].hidden if dense else None,
        "gated_mlp": dense[0].gated if dense else None,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "experts": experts.experts if experts else None,
        "experts_per_token": experts.experts_per_token if experts else None,
    }
