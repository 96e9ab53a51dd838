"""`models/inspect`."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "_some_note": "kept",
}
"""The config.json of meta-llama/Meta-Llama-3-8B, which has 8,030,261,248 parameters (its model card: 8B)."""


class TestInspect:
    def test_a_preset(self, client: TestClient) -> None:
        answer = client.post("/v1/models/inspect", json={"model": {"preset": "mixtral-8x7b"}})
        assert answer.status_code == 200
        parameters = answer.json()["parameters"]
        # Counts of transformers' MixtralForCausalLM; the paper (arXiv 2401.04088) says 47B and 13B active.
        assert (parameters["total"], parameters["active"]) == (46_702_792_704, 12_879_925_248)
        assert parameters["embedding"] == 32_000 * 4096
        assert len(parameters["per_layer"]) == 32
        architecture = answer.json()["architecture"]
        assert (architecture["experts"], architecture["experts_per_token"]) == (8, 2)
        assert architecture["expert_ffn_hidden_size"] == 14336

    def test_a_config_as_people_have_it(self, client: TestClient) -> None:
        answer = client.post("/v1/models/inspect", json={"model": {"hf_config": LLAMA_3_8B}})
        assert answer.status_code == 200
        assert answer.json()["parameters"]["total"] == 8_030_261_248
        assert any("_some_note" in line for line in answer.json()["assumptions"])

    def test_an_architecture_lists_its_defaults(self, client: TestClient) -> None:
        dimensions = {
            "layers": 32,
            "hidden_size": 4096,
            "attention_heads": 32,
            "key_value_heads": 8,
            "ffn_hidden_size": 14336,
            "gated_mlp": True,
            "vocab_size": 128256,
            "tied_embeddings": False,
        }
        answer = client.post("/v1/models/inspect", json={"model": {"architecture": dimensions}})
        assert answer.status_code == 200
        assert answer.json()["parameters"]["total"] == 8_030_261_248
        described = answer.json()["architecture"]
        assert {name: described[name] for name in dimensions} == dimensions
        for name in ("head_dim", "position_embeddings", "norm", "biases"):
            assert any(name in line for line in answer.json()["assumptions"])

    @pytest.mark.parametrize("preset", ["vit-h", "bert-large"])
    def test_models_that_are_only_read(self, client: TestClient, preset: str) -> None:
        assert client.post("/v1/models/inspect", json={"model": {"preset": preset}}).status_code == 200

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"model_type": "mamba2"}, "model_type"),
            ({"model_type": None}, "model_type"),
            ({"auto_map": {"AutoModel": "modeling.Model"}, "model_type": "my_model"}, "model_type"),
            ({"num_mystery_experts": 8}, "num_mystery_experts"),
            ({"vision_config": {"hidden_size": 1}}, "vision_config"),
            ({"hidden_size": -1}, "hidden_size"),
        ],
    )
    def test_what_is_not_understood_is_refused_by_name(
        self, client: TestClient, change: dict[str, object], named: str
    ) -> None:
        answer = client.post("/v1/models/inspect", json={"model": {"hf_config": LLAMA_3_8B | change}})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["body", "model", "hf_config", named]
