"""Engines, sessions and tables."""
