"""Analytical cost models of large-model training: arithmetic on columns, no I/O."""
