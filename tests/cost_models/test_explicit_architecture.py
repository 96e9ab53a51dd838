"""Explicit architectures: the model they describe, its assumptions, and refusals by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InvalidInput
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.parameters import count_parameters

GPT3: dict[str, Any] = {
    "layers": 96,
    "hidden_size": 12288,
    "attention_heads": 96,
    "key_value_heads": 96,
    "ffn_hidden_size": 49152,
    "gated_mlp": False,
    "vocab_size": 50257,
    "tied_embeddings": True,
    "position_embeddings": "learned",
}
LLAMA: dict[str, Any] = {
    "layers": 2,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 2,
    "ffn_hidden_size": 96,
    "gated_mlp": True,
    "vocab_size": 100,
    "tied_embeddings": False,
}
EXPERTS: dict[str, Any] = {"experts": 8, "experts_per_token": 2}


def test_gpt3_has_its_published_175_billion() -> None:
    model = build_architecture(GPT3)
    assert model.parameters == 174_604_259_328
    assert (model.norm, model.position_embeddings, model.max_position_embeddings) == ("layernorm", "learned", 2048)
    assert all(linear.bias for linear in model.blocks[0].attention.linears)


def test_learned_positions_left_out_are_the_workloads_and_said() -> None:
    model = build_architecture(GPT3, sequence_length=1024)
    assert model.position_parameters == 1024 * 12288
    assert "architecture.max_position_embeddings left out: 1024, the workload's sequence_length" in model.assumptions
    assert build_architecture({**GPT3, "max_position_embeddings": 512}, sequence_length=1024).position_parameters == (
        512 * 12288
    )


@pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
def test_other_positions_have_no_biases_and_rmsnorm(positions: str) -> None:
    model = build_architecture({**LLAMA, "position_embeddings": positions})
    assert (model.norm, model.position_parameters) == ("rmsnorm", 0)
    assert not any(linear.bias for linear in model.blocks[0].attention.linears)


dimensions = st.builds(
    lambda layers, dim, groups, per_group, ffn, vocab, tied: {
        "layers": layers,
        "hidden_size": dim * groups * per_group,
        "attention_heads": groups * per_group,
        "key_value_heads": groups,
        "ffn_hidden_size": ffn,
        "gated_mlp": True,
        "vocab_size": vocab,
        "tied_embeddings": tied,
    },
    st.integers(1, 12),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 4096),
    st.integers(1, 10**6),
    st.booleans(),
)


@given(dimensions)
def test_equals_llama_of_the_same_dimensions(fields: dict[str, Any]) -> None:
    explicit = build_architecture(fields)
    llama = read_hf_config(
        {
            "model_type": "llama",
            "num_hidden_layers": fields["layers"],
            "hidden_size": fields["hidden_size"],
            "num_attention_heads": fields["attention_heads"],
            "num_key_value_heads": fields["key_value_heads"],
            "intermediate_size": fields["ffn_hidden_size"],
            "vocab_size": fields["vocab_size"],
            "tie_word_embeddings": fields["tied_embeddings"],
        }
    )
    unnamed = {"name": "", "model_type": "", "max_position_embeddings": None, "assumptions": ()}
    assert replace(explicit, **unnamed) == replace(llama, **unnamed)


@given(dimensions, st.integers(1, 64), st.integers(1, 64), st.integers(1, 512), st.integers(0, 12))
def test_equals_mixtral_and_active_leaves_out_unused_experts(
    fields: dict[str, Any], experts: int, used: int, width: int, first_dense: int
) -> None:
    used, first_dense = min(used, experts), min(first_dense, fields["layers"])
    model = build_architecture(
        {
            **fields,
            "experts": experts,
            "experts_per_token": used,
            "expert_ffn_hidden_size": width,
            "first_dense_layers": first_dense,
        }
    )
    counts = count_parameters(model)
    expert = 3 * fields["hidden_size"] * width
    sparse_layers = fields["layers"] - first_dense
    dense = count_parameters(build_architecture(fields))
    assert counts.total - counts.active == sparse_layers * (experts - used) * expert
    router = fields["hidden_size"] * experts
    assert counts.total - dense.total == sparse_layers * (
        experts * expert + router - 3 * fields["hidden_size"] * fields["ffn_hidden_size"]
    )


def test_shared_experts_are_one_perceptron_that_every_token_uses() -> None:
    plain = count_parameters(build_architecture({**LLAMA, **EXPERTS}))
    shared = count_parameters(build_architecture({**LLAMA, **EXPERTS, "shared_expert_ffn_hidden_size": 10}))
    assert shared.total - plain.total == shared.active - plain.active == 2 * 3 * 64 * 10


@pytest.mark.parametrize("field", LLAMA)
def test_required_fields(field: str) -> None:
    with pytest.raises(InvalidInput, match=field) as refusal:
        build_architecture({key: value for key, value in LLAMA.items() if key != field})
    assert (refusal.value.loc, refusal.value.code) == (("model", "architecture", field), "missing")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": 10_001}, "layers"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"vocab_size": 1.0}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"gated_mlp": 1}, "gated_mlp"),
        ({"tied_embeddings": None}, "tied_embeddings"),
        ({"attention_heads": 6}, "attention_heads"),
        ({"key_value_heads": 3}, "key_value_heads"),
        ({"key_value_heads": 8}, "key_value_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"position_embeddings": "sinusoidal"}, "position_embeddings"),
        ({"norm": "batchnorm"}, "norm"),
        ({"biases": "yes"}, "biases"),
        ({"experts": 8}, "experts_per_token"),
        ({"experts": 8, "experts_per_token": 9}, "experts_per_token"),
        ({"experts_per_token": 2}, "experts_per_token"),
        ({"expert_ffn_hidden_size": 2}, "expert_ffn_hidden_size"),
        ({"first_dense_layers": 1}, "first_dense_layers"),
        ({**EXPERTS, "first_dense_layers": 3}, "first_dense_layers"),
        ({**EXPERTS, "shared_expert_ffn_hidden_size": -1}, "shared_expert_ffn_hidden_size"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field) as refusal:
        build_architecture({**LLAMA, **change})
    assert refusal.value.loc == ("model", "architecture", field)


def test_head_dim_need_not_be_hidden_over_heads() -> None:
    attention = build_architecture({**LLAMA, "attention_heads": 6, "head_dim": 20}).blocks[0].attention
    assert [linear.parameters for linear in attention.linears] == [64 * 120, 64 * 40, 64 * 40, 120 * 64]


def test_null_counts_as_left_out() -> None:
    optional = "head_dim max_position_embeddings position_embeddings biases norm experts experts_per_token"
    optional += " expert_ffn_hidden_size shared_expert_ffn_hidden_size first_dense_layers"
    assert build_architecture({**LLAMA, **dict.fromkeys(optional.split())}) == build_architecture(LLAMA)
    with pytest.raises(InvalidInput, match="layers is required"):
        build_architecture({**LLAMA, "layers": None})
