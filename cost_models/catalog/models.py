"""Models by name: the presets of `models.toml`."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from cost_models.architecture import ModelArchitecture
from cost_models.errors import UnknownPreset
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("cost_models.catalog").joinpath("models.toml").read_text(encoding="utf-8"))


def model_names() -> tuple[str, ...]:
    """Names of all presets, in the order of the catalog."""
    return tuple(_presets())


def model_preset(name: str) -> dict[str, Any]:
    """What the catalog says of a preset: `source` and either `hf_config` or `architecture`."""
    try:
        return dict(_presets()[name])
    except KeyError:
        near = get_close_matches(name, model_names(), n=3, cutoff=0.5) or model_names()
        message = f"no model preset {name!r}; nearest: {', '.join(near)}"
        raise UnknownPreset(("model", "preset"), "unknown_preset", message) from None


@cache
def load_model(name: str) -> ModelArchitecture:
    """The model of a preset."""
    preset = model_preset(name)
    if "hf_config" in preset:
        return read_hf_config({**preset["hf_config"], "_name_or_path": name})
    parallel = preset.get("parallel_residual", False)
    return build_architecture(preset["architecture"], name=name, parallel_residual=parallel)
