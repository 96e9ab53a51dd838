"""Hugging Face `config.json`, as people have them, to a `ModelArchitecture`."""

from __future__ import annotations

from cost_models.hf_config.registry import MODEL_TYPES, read_hf_config

__all__ = ["MODEL_TYPES", "read_hf_config"]
