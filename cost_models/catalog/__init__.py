"""Presets of models, GPUs and clusters, each figure with its source."""
