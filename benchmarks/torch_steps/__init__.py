"""Peaks of whole training steps as PyTorch itself counts them, recorded as test data (`python -m` this package)."""
