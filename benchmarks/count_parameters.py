"""Counts parameters with `transformers` on the meta device and records them as test data.

A development tool: `transformers` and `torch` are no dependencies of the product. In an environment of their own:

    pip install torch transformers
    python benchmarks/count_parameters.py

Counted are every model type's defaults, small configs with the switches thrown, the presets of the catalog, and
published configs as they are.
"""

from __future__ import annotations

import json
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from config_variations import VARIATIONS, variations
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    T5ForConditionalGeneration,
)

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
STAND_INS = {"kimi_k2": "deepseek_v3", "internlm2": "llama"}
"""Remote code counted as a class of transformers with the same weights: Kimi K2 is DeepSeek-V3's class; InternLM2 is
Llama's with q, k and v in one matrix and `bias` for `attention_bias`."""
BLOCK_LISTS = (
    "model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers", "transformer.blocks",
    "bert.encoder.layer", "roberta.encoder.layer", "vit.layers", "encoder.block", "decoder.block",
)  # fmt: skip
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_top_k")


def build(config: dict[str, Any]) -> Any:
    """The model of a config, without memory for its weights."""
    model_type = config["model_type"]
    config = dict(config)
    if model_type in STAND_INS:
        config["model_type"] = STAND_INS[model_type]
        config.pop("auto_map", None)
    if model_type == "internlm2":
        config["attention_bias"] = config.pop("bias", True)
        config.setdefault("vocab_size", 103168)
    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    with torch.device("meta"):
        if model_type == "t5":
            return T5ForConditionalGeneration(parsed)
        if model_type in ("bert", "roberta"):
            return AutoModelForMaskedLM.from_config(parsed)
        if model_type == "vit":
            return AutoModelForImageClassification.from_config(parsed)
        return AutoModelForCausalLM.from_config(parsed)


def count(config: dict[str, Any]) -> dict[str, Any]:
    """Total, active, embedding and per-layer counts of one config."""
    model = build(config)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = sum(p.numel() for p in parameters.values())
    embedding = sum(p.numel() for p in model.get_input_embeddings().parameters())
    per_layer = [sum(p.numel() for p in block.parameters()) for blocks in block_lists(model) for block in blocks]
    return {
        "class": type(model).__name__,
        "config": config,
        "total": total,
        "active": total - unused(parameters, model.config),
        "embedding": embedding,
        "per_layer": [[size, len(list(run))] for size, run in groupby(per_layer)],
    }


def as_saved(config: dict[str, Any]) -> dict[str, Any]:
    """A config as `save_pretrained` writes it, with what this version adds."""
    saved: dict[str, Any] = json.loads(CONFIG_MAPPING[config["model_type"]].from_dict(config).to_json_string())
    return saved


def block_lists(model: Any) -> list[Any]:
    """The lists of blocks, encoder first."""
    modules = dict(model.named_modules())
    return [modules[name] for name in BLOCK_LISTS if name in modules]


def unused(parameters: dict[str, Any], config: Any) -> int:
    """Parameters of the routed experts that a token does not use; transformers stacks experts in the first axis."""
    nested = getattr(config, "ffn_config", config)
    stacked = [p for name, p in parameters.items() if ".experts." in name]
    if not stacked:
        return 0
    used = next(getattr(nested, key) for key in EXPERTS_PER_TOKEN if hasattr(nested, key))
    experts = getattr(nested, "moe_num_experts", None) or stacked[0].shape[0]
    return sum(p.numel() * (experts - used) // experts for p in stacked)


def all_configs() -> dict[str, dict[str, Any]]:
    """What is counted, by name."""
    presets = tomllib.loads((ROOT / "cost_models" / "catalog" / "models.toml").read_text())
    published = json.loads((DATA / "published_configs.json").read_text())
    needed = {"deepseek_v2": {"num_experts_per_tok": 6}, "nemotron": {"num_key_value_heads": 48}}
    dbrx = {"attn_config": {"rope_theta": 10000.0}}
    small = {name: {"model_type": name, **base} for name, (base, _) in VARIATIONS.items() if name not in STAND_INS}
    return {
        **{f"{name} defaults": {"model_type": name, **needed.get(name, {})} for name in VARIATIONS if name != "dbrx"},
        "dbrx defaults": {"model_type": "dbrx", **dbrx},
        **variations(),
        **{f"{name} as transformers saves it": as_saved(config) for name, config in small.items()},
        **{f"preset {name}": preset["hf_config"] for name, preset in presets.items() if "hf_config" in preset},
        **{f"published {name}": config for name, config in published["configs"].items()},
    }


def main() -> None:
    """Counts everything and writes the test data."""
    models = {}
    for name, config in all_configs().items():
        try:
            models[name] = count(config)
        except Exception as error:
            print(f"not counted: {name}: {type(error).__name__}: {error}")
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "stand_ins": STAND_INS}
    lines = (f"{json.dumps(name)}: {json.dumps(counts, separators=(',', ':'))}" for name, counts in models.items())
    text = f'{json.dumps(versions)[:-1]}, "models": {{\n' + ",\n".join(lines) + "\n}}\n"
    (DATA / "parameter_counts.json").write_text(text)
    print(f"{len(models)} models counted with transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
