"""Formats that are read back into strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from search.launch import parse_accelerate, parse_deepspeed, parse_megatron, parse_torchtitan
from search.launch.parsed import Parsed

PARSERS: Final[Mapping[str, Callable[[str], Parsed]]] = {
    "deepspeed": parse_deepspeed.parse,
    "megatron-lm": parse_megatron.parse,
    "torchtitan": parse_torchtitan.parse,
    "accelerate": parse_accelerate.parse,
}
"""By the contract's name of the format."""
