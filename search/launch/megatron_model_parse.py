"""The model that Megatron-LM's arguments describe, as the contract's `architecture` where that can say it.

Source: as `megatron_words`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from search.launch.megatron_options import MegatronOptions

BEYOND: Final = ("--multi-latent-attention", "--window-size", "--softmax-type", "--qk-layernorm", "--mtp-num-layers")
"""What an `architecture` has no field for."""
_POSITIONS: Final = {"learned_absolute": "learned", "rope": "rotary", "none": "none"}
_RUN: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
_LATENT: Final = ("--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim")


def read_architecture(options: MegatronOptions) -> dict[str, Any]:
    """The contract's fields; empty where the arguments do not tell the model, or an architecture cannot say it."""
    for name in (*BEYOND, *_LATENT, "--window-attn-skip-freq"):
        options.texts(name)
    sizes = {name: options.known_size(f"--{name}") for name in ("num-layers", "hidden-size", "num-attention-heads")}
    vocabulary = options.known_size("--vocab-size") or options.known_size("--padded-vocab-size")
    options.texts("--padded-vocab-size")
    optional = {**_attention(options, sizes), **_feed_forward(options, sizes), **_experts(options)}
    others = _others(options)
    told = vocabulary is not None and all(size is not None for size in sizes.values())
    if not told or any(name in options for name in BEYOND) or None in optional.values():
        return {}
    return {
        "layers": sizes["num-layers"],
        "hidden_size": sizes["hidden-size"],
        "attention_heads": sizes["num-attention-heads"],
        "vocab_size": vocabulary,
        **optional,
        **others,
    }


def _attention(options: MegatronOptions, sizes: dict[str, int | None]) -> dict[str, Any]:
    heads, hidden = sizes["num-attention-heads"], sizes["hidden-size"]
    groups = options.known_size("--num-query-groups") if options.flag("--group-query-attention") else heads
    options.texts("--num-query-groups")
    channels = options.known_size("--kv-channels")
    found: dict[str, Any] = {"key_value_heads": groups}
    if channels and hidden and heads and channels * heads != hidden:
        found["head_dim"] = channels
    return found


def _feed_forward(options: MegatronOptions, sizes: dict[str, int | None]) -> dict[str, Any]:
    gated = any([options.flag("--swiglu"), options.flag("--quick-geglu")])
    options.flag("--squared-relu")
    hidden, width = sizes["hidden-size"], options.known_size("--ffn-hidden-size")
    if width is None and hidden:
        # As validate_args derives it: 4 h, of a gated one two thirds, to a multiple of 64.
        width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    return {"ffn_hidden_size": width, "gated_mlp": gated}


def _experts(options: MegatronOptions) -> dict[str, Any]:
    experts = options.known_size("--num-experts")
    shared = options.known_size("--moe-shared-expert-intermediate-size")
    width, topk = options.known_size("--moe-ffn-hidden-size"), options.size("--moe-router-topk", 2)
    dense = _dense_layers(options.text("--moe-layer-freq", "1"))
    if experts is None:
        return {}
    found: dict[str, Any] = {"experts": experts, "experts_per_token": topk}
    if width is not None:
        found["expert_ffn_hidden_size"] = width
    if shared is not None:
        found["shared_expert_ffn_hidden_size"] = shared
    if dense != 0:
        found["first_dense_layers"] = dense  # None: dense layers come behind layers with experts
    return found


def _dense_layers(frequency: str) -> int | None:
    """Dense layers before those with experts; None: no such order."""
    runs = "".join(
        found.group(1).replace(",", "") * min(int(found.group(2) or 1), 10_000) for found in _RUN.finditer(frequency)
    )
    if frequency == "1" or re.fullmatch(r"0*1+", runs):
        return runs.count("0")
    return None


def _others(options: MegatronOptions) -> dict[str, Any]:
    kind = options.text("--position-embedding-type", "learned_absolute")
    if options.flag("--use-rotary-position-embeddings"):
        kind = "rope"
    if kind not in _POSITIONS:
        options.leave("--position-embedding-type")
    found: dict[str, Any] = {
        "tied_embeddings": not options.flag("--untie-embeddings-and-output-weights"),
        "position_embeddings": _POSITIONS.get(kind, "rotary"),
        "biases": not options.flag("--disable-bias-linear"),
        "norm": "rmsnorm" if options.text("--normalization", "LayerNorm") == "RMSNorm" else "layernorm",
    }
    options.flag("--add-qkv-bias")
    positions = options.known_size("--max-position-embeddings")
    return found if positions is None else {**found, "max_position_embeddings": positions}
