"""Hugging Face configs: exact counts as transformers has them, semantics of blocks, and refusals by name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InvalidInput, UnsupportedModel
from cost_models.hf_config import MODEL_TYPES, read_hf_config
from cost_models.parameters import count_parameters

DATA = Path(__file__).parent.parent / "data"
RECORDED: dict[str, Any] = json.loads((DATA / "parameter_counts.json").read_text())["models"]
ISSUE_TYPES = (
    "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi phi3 phimoe glm gpt2 gpt_neo "
    "gpt_neox gptj gpt_bigcode opt bloom falcon mpt starcoder2 stablelm cohere cohere2 olmo olmo2 olmoe granite glm4 "
    "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 gpt_oss internlm2 seed_oss smollm3 nemotron dbrx llama4_text bert "
    "roberta t5 vit"
)
NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""The one key that has no default."""


def defaults(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **NEEDED.get(model_type, {})}


@pytest.mark.parametrize("name", RECORDED)
def test_counts_are_those_of_transformers(name: str) -> None:
    recorded = RECORDED[name]
    counts = count_parameters(read_hf_config(recorded["config"]))
    per_layer = tuple(size for size, repeats in recorded["per_layer"] for _ in range(repeats))
    assert (counts.total, counts.active, counts.embedding, counts.per_layer) == (
        recorded["total"],
        recorded["active"],
        recorded["embedding"],
        per_layer,
    )


def test_every_type_of_the_issue_is_read_and_recorded() -> None:
    assert set(ISSUE_TYPES.split()) == set(MODEL_TYPES)
    recorded = [model["config"]["model_type"] for model in RECORDED.values()]
    assert min(recorded.count(model_type) for model_type in MODEL_TYPES) >= 3


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_extra_experts", 4),
        ("mamba_d_state", 16),
        ("n_mtp_modules", 1),
        ("conv_kernel", 4),
        ("extra_head", True),
        ("vision_tower", "clip"),
        ("adapter_rank", 8),
    ],
)
def test_unknown_key_that_smells_of_structure_is_refused(model_type: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=key) as refusal:
        read_hf_config({**defaults(model_type), key: value})
    assert refusal.value.loc == ("model", "hf_config", key)
    assert refusal.value.code == "unknown_structural_key"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("key", ["text_config", "vision_config", "encoder"])
def test_unknown_nested_part_is_refused(model_type: str, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=key) as refusal:
        read_hf_config({**defaults(model_type), key: {"hidden_size": 64}})
    assert refusal.value.code == "unknown_nested_part"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_other_unknown_keys_are_ignored_and_listed(model_type: str) -> None:
    plain = read_hf_config(defaults(model_type))
    noted = read_hf_config({**defaults(model_type), "trained_by": "us"})
    assert count_parameters(noted) == count_parameters(plain)
    assert f"hf_config.trained_by ignored: not a known key of {model_type}" in noted.assumptions


def test_defaults_that_were_used_are_listed_once() -> None:
    model = read_hf_config({"model_type": "llama", "num_hidden_layers": 2})
    assert "hf_config.hidden_size left out: 4096, the default of llama" in model.assumptions
    assert "hf_config.num_key_value_heads left out: 32, as many as attention heads" in model.assumptions
    assert not any("num_hidden_layers" in line for line in model.assumptions)
    assert len(set(model.assumptions)) == len(model.assumptions)


@pytest.mark.parametrize(
    ("config", "key", "code"),
    [
        ({}, "model_type", "missing"),
        ({"model_type": "mamba2"}, "model_type", "unknown_model_type"),
        ({"model_type": 7}, "model_type", "unknown_model_type"),
        ({"model_type": ["llama"]}, "model_type", "unknown_model_type"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "modeling_new.NewModel"}}, "auto_map", "remote_code"),
        ({"model_type": "llama", "auto_map": "x.Y"}, "auto_map", "remote_code"),
        ({"model_type": "llama", "trust_remote_code": True}, "trust_remote_code", "unsupported_value"),
        ({"model_type": "llama", "pruned_heads": {"0": [1]}}, "pruned_heads", "unsupported_value"),
        ({"model_type": "llama", "hidden_act": "swiglu_v9"}, "hidden_act", "unsupported_activation"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention", "unsupported_value"),
        ({"model_type": "phi3", "lm_head_bias": True}, "lm_head_bias", "unsupported_value"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq", "unsupported_value"),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            "position_embedding_type",
            "unsupported_value",
        ),
        ({"model_type": "dbrx", "tie_word_embeddings": True}, "tie_word_embeddings", "unsupported_value"),
        ({"model_type": "t5", "feed_forward_proj": "gated-snake"}, "feed_forward_proj", "unsupported_activation"),
        ({"model_type": "gemma2", "num_hidden_layers": 1, "layer_types": ["ssm"]}, "layer_types", "unsupported_value"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(config: dict[str, Any], key: str, code: str) -> None:
    with pytest.raises(InvalidInput, match=key) as refusal:
        read_hf_config(config)
    assert (refusal.value.loc, refusal.value.code) == (("model", "hf_config", key), code)


@pytest.mark.parametrize(
    ("config", "loc"),
    [
        ({"model_type": "mpt", "attn_config": {"attn_type": "grouped_query_attention"}}, ("attn_config", "attn_type")),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": 2}}, ("attn_config", "kv_n_heads")),
        ({"model_type": "dbrx", "ffn_config": {"moe_top_k": 9}}, ("ffn_config", "moe_top_k")),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 5}}, ("attn_config", "kv_n_heads")),
        ({"model_type": "dbrx", "ffn_config": {"ffn_act_fn": {"name": "sine"}}}, ("ffn_config", "ffn_act_fn")),
        ({"model_type": "dbrx", "ffn_config": 3}, ("ffn_config",)),
    ],
)
def test_nested_keys_are_named_with_their_path(config: dict[str, Any], loc: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_hf_config(config)
    assert refusal.value.loc == ("model", "hf_config", *loc)


BAD_SIZES = [0, -1, 1.5, 4096.0, float("nan"), float("inf"), True, "4096", None, [4096], 2**31, 10**400]


@pytest.mark.parametrize("value", BAD_SIZES)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_sizes_are_positive_integers(key: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=key) as refusal:
        read_hf_config({"model_type": "llama", key: value})
    assert refusal.value.loc == ("model", "hf_config", key)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads"),
        ({"model_type": "llama", "num_attention_heads": 33}, "num_attention_heads"),
        ({"model_type": "llama", "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"model_type": "llama", "attention_bias": 1}, "attention_bias"),
        ({"model_type": "gpt2", "n_head": 7}, "n_head"),
        ({"model_type": "gpt2", "n_head": 12, "num_attention_heads": 6}, "num_attention_heads"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "gemma2", "attn_logit_softcapping": float("nan")}, "attn_logit_softcapping"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
        ({"model_type": "gpt_neo", "num_layers": 3}, "attention_types"),
        ({"model_type": "gpt_neo", "attention_types": "global"}, "attention_types"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**12]]}, "attention_types"),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [0.5]}, "mlp_only_layers"),
        ({"model_type": "vit", "image_size": [224]}, "image_size"),
        ({"model_type": "vit", "patch_size": 0}, "patch_size"),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads"),
    ],
)
def test_contradictions_name_the_field(config: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidInput, match=key) as refusal:
        read_hf_config(config)
    assert refusal.value.loc == ("model", "hf_config", key)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=6),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=2),
    max_leaves=4,
)
KEYS = sorted({key for model in RECORDED.values() for key in model["config"]} - {"model_type"})


@given(model_type=st.sampled_from(MODEL_TYPES), config=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_any_config_is_read_or_refused_but_never_breaks(model_type: str, config: dict[str, Any]) -> None:
    layer_keys = {key: 2 for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if key in config}
    with suppress(InvalidInput):
        model = read_hf_config({**config, **layer_keys, "model_type": model_type})
        assert 0 < model.active_parameters <= model.parameters


@pytest.mark.parametrize("name", RECORDED)
def test_totals_are_the_sums_of_their_parts(name: str) -> None:
    model = read_hf_config(RECORDED[name]["config"])
    counts = count_parameters(model)
    ends = (
        model.embedding_parameters
        + model.position_parameters
        + model.input_parameters
        + model.final_norm_parameters
        + model.output_parameters
        + (model.head.parameters if model.head else 0)
    )
    assert counts.total == ends + sum(counts.per_layer)
    assert len(set(model.blocks)) == len(model.blocks)
    assert set(model.layer_blocks) == set(range(len(model.blocks)))
    assert (model.head is None) == model.tied_embeddings


def test_remote_code_of_the_types_own_is_understood() -> None:
    model = read_hf_config(RECORDED["published Kimi-K2-Instruct"]["config"])
    assert "hf_config.auto_map ignored: read as kimi_k2" in model.assumptions
    assert "hf_config.quantization_config ignored: a storage format, not a shape" in model.assumptions


def test_multi_token_prediction_is_left_out_and_said() -> None:
    with_it = read_hf_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    without = read_hf_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 0})
    assert with_it.parameters == without.parameters
    assert [line for line in with_it.assumptions if "multi-token-prediction" in line] == [
        "hf_config.num_nextn_predict_layers 1: multi-token-prediction layers are neither counted nor priced"
    ]
    assert not any("multi-token-prediction" in line for line in without.assumptions)


def test_switches_that_mpt_has_no_code_for_are_said() -> None:
    model = read_hf_config({"model_type": "mpt", "expansion_ratio": 2})
    assert "hf_config: expansion_ratio 2 has no effect on transformers' MptForCausalLM" in model.assumptions
