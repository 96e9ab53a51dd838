"""Reads a Hugging Face config.json by model_type."""
