"""What the blocks of each family are: windows, residuals, names and splits of linear layers."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.architecture import FeedForward, MixtureOfExperts
from cost_models.hf_config import MODEL_TYPES, read_hf_config

NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""The one key that has no default."""


def defaults(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **NEEDED.get(model_type, {})}


def windows(config: dict[str, Any]) -> list[int | None]:
    model = read_hf_config(config)
    return [model.blocks[kind].attention.window for kind in model.layer_blocks]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama"}, [None] * 6),
        ({"model_type": "mistral"}, [4096] * 6),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 6),
        ({"model_type": "mistral", "sliding_window": 0}, [None] * 6),
        ({"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 4}, [None] * 6),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4},
            [None] * 4 + [64] * 2,
        ),
        (
            {"model_type": "qwen2_moe", "use_sliding_window": True, "max_window_layers": 3},
            [4096, None, 4096] + [None] * 3,
        ),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, [4096] * 6),
        ({"model_type": "gemma2"}, [4096, None] * 3),
        ({"model_type": "gemma3_text"}, [4096] * 5 + [None]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, [4096, 4096, None] * 2),
        ({"model_type": "gpt_oss"}, [128, None] * 3),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, [None] * 5 + [128]),
        ({"model_type": "cohere2"}, [4096] * 3 + [None] + [4096] * 2),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 32}, [None] * 3 + [32] + [None] * 2),
        ({"model_type": "llama4_text"}, [8192] * 3 + [None] + [8192] * 2),
    ],
)  # fmt: skip
def test_windows_follow_each_family(config: dict[str, Any], expected: list[int | None]) -> None:
    assert windows({**config, "num_hidden_layers": 6}) == expected


def test_gpt_neo_alternates_global_and_local() -> None:
    assert windows({"model_type": "gpt_neo"}) == [None, 256] * 12


PARALLEL = {"phi", "cohere", "cohere2", "gptj", "gpt_neox", "falcon"}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_parallel_residual_only_where_the_family_has_it(model_type: str) -> None:
    assert {block.parallel_residual for block in read_hf_config(defaults(model_type)).blocks} == {
        model_type in PARALLEL
    }


SPLITS = {
    **dict.fromkeys(("q", "k", "v", "qkv", "q_up", "kv_up", "gate", "up", "gate_up"), "column"),
    **dict.fromkeys(("o", "down"), "row"),
    **dict.fromkeys(("router", "shared_gate", "q_down", "kv_down"), "none"),
}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_linears_have_canonical_names_splits_and_fitting_widths(model_type: str) -> None:
    model = read_hf_config(defaults(model_type))
    for block in model.blocks:
        parts: list[FeedForward] = []
        linears = [*block.attention.linears]
        if block.cross_attention:
            linears += block.cross_attention.linears
        match block.feed_forward:
            case MixtureOfExperts() as moe:
                assert {linear.copies for linear in moe.routed.linears} == {moe.experts}
                parts = [part for part in (moe.routed, moe.shared) if part]
                linears += [linear for linear in (moe.router, moe.shared_gate) if linear]
            case FeedForward() as dense:
                parts = [dense]
        linears += [linear for part in parts for linear in part.linears]
        assert {linear.name: linear.split for linear in linears} == {
            linear.name: SPLITS[linear.name] for linear in linears
        }
        outer = next(linear for linear in block.attention.linears if linear.name == "o")
        assert outer.in_features == block.attention.heads * block.attention.value_head_dim
        assert outer.out_features == model.hidden_size
        assert len(parts[0].linears) == (2 if not parts[0].gated or "gate_up" in {w.name for w in linears} else 3)


def test_latent_attention_of_deepseek() -> None:
    attention = read_hf_config({"model_type": "deepseek_v3"}).blocks[0].attention
    assert attention.latent is not None
    assert (attention.latent.q_rank, attention.latent.kv_rank, attention.latent.rope_head_dim) == (1536, 512, 64)
    assert (attention.head_dim, attention.value_head_dim, attention.heads) == (192, 128, 128)
    shapes = {w.name: (w.in_features, w.out_features) for w in attention.linears}
    assert shapes == {
        "q_down": (7168, 1536),
        "q_up": (1536, 24576),
        "kv_down": (7168, 576),
        "kv_up": (512, 32768),
        "o": (16384, 7168),
    }


def test_encoder_and_decoder_of_t5() -> None:
    model = read_hf_config({"model_type": "t5", "num_layers": 3, "num_decoder_layers": 2})
    blocks = [model.blocks[kind] for kind in model.layer_blocks]
    assert [block.encoder for block in blocks] == [True] * 3 + [False] * 2
    assert [block.attention.causal for block in blocks] == [False] * 3 + [True] * 2
    assert [block.cross_attention is not None for block in blocks] == [False] * 3 + [True] * 2
    assert [block.attention.other_parameters for block in blocks] == [256, 0, 0, 256, 0]


def test_vit_has_a_sequence_length_of_its_own() -> None:
    assert read_hf_config({"model_type": "vit"}).sequence_length == 197
    assert read_hf_config({"model_type": "llama"}).sequence_length is None


def test_soft_caps_of_gemma2() -> None:
    capped = read_hf_config({"model_type": "gemma2"})
    plain = read_hf_config({"model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (capped.logit_soft_cap, capped.blocks[0].attention.soft_cap) == (True, True)
    assert (plain.logit_soft_cap, plain.blocks[0].attention.soft_cap) == (False, False)


def test_a_model_cut_short_keeps_its_dense_layers() -> None:
    model = read_hf_config({"model_type": "deepseek_v3", "num_hidden_layers": 2})
    assert [block.experts for block in model.blocks] == [None]
