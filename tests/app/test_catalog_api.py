"""`catalog/*`."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

MODELS = {
    "gpt-2-xl",
    "gpt-3-175b",
    "mt-nlg-530b",
    "palm-540b",
    "bloom-176b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "mistral-7b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v2",
    "deepseek-v3",
    "gemma-2-27b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "kimi-k2",
    "bert-large",
    "vit-h",
}
GPUS = {
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "t4-16gb",
    "a10-24gb",
    "a10g-24gb",
    "l4-24gb",
    "rtx-3090-24gb",
    "rtx-4090-24gb",
    "rtx-a6000-48gb",
    "a40-48gb",
    "l40s-48gb",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "a100-pcie-80gb",
    "a800-sxm4-80gb",
    "h100-sxm5-80gb",
    "h100-pcie-80gb",
    "h800-sxm5-80gb",
    "h20-96gb",
    "h200-sxm5-141gb",
    "h200-nvl-141gb",
    "b200-sxm-180gb",
    "b300-sxm-270gb",
    "gb200-186gb",
    "gb300-279gb",
    "mi250x-64gb",
    "mi300x-192gb",
    "mi325x-256gb",
    "mi350x-288gb",
    "mi355x-288gb",
    "gaudi2-96gb",
    "gaudi3-128gb",
    "ascend-910b-64gb",
}
CLUSTERS = ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "gb300-nvl72", "p4d", "p5", "mi300x-node"]


def items(client: TestClient, name: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/catalog/{name}")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


class TestCatalog:
    def test_models(self, client: TestClient) -> None:
        models = {item["name"]: item for item in items(client, "models")}
        assert set(models) >= MODELS
        # transformers' DeepseekV3ForCausalLM without its buffers; arXiv 2412.19437 says 671B
        assert models["deepseek-v3"]["parameters"] == 671_026_404_352
        assert all(item["source"] for item in models.values())

    def test_gpus(self, client: TestClient) -> None:
        gpus = {item["name"]: item for item in items(client, "gpus")}
        assert set(gpus) >= GPUS
        assert gpus["h100-sxm5-80gb"]["peak_tflops"]["bf16"] == 989.4
        assert "bf16" not in gpus["v100-sxm2-32gb"]["peak_tflops"]
        assert all(item["source"] for item in gpus.values())

    def test_clusters(self, client: TestClient) -> None:
        clusters = {item["preset"]: item for item in items(client, "clusters")}
        assert set(CLUSTERS) <= set(clusters)
        assert all(item["source"] for item in clusters.values())

    def test_frameworks(self, client: TestClient) -> None:
        frameworks = {item["name"]: item for item in items(client, "frameworks")}
        assert list(frameworks) == ["megatron-lm", "deepspeed", "fsdp2", "fsdp1", "ddp", "nanotron"]
        assert frameworks["ddp"]["runs"]["zero_stages"] == [0]
        assert frameworks["deepspeed"]["defaults"]["kernels"] == "eager"
        assert frameworks["megatron-lm"]["keeps_in_memory"]["gradient_dtype"]["bf16"] == "fp32"
        assert frameworks["fsdp2"]["launch_targets"] == ["torchtitan", "accelerate"]

    def test_every_cluster_and_gpu_can_be_planned_for(self, client: TestClient) -> None:
        workload = {"sequence_length": 1024, "global_batch_size": 64}
        described = [{"preset": name, "nodes": 2} for name in CLUSTERS]
        described += [{"nodes": 1, "gpus_per_node": 2, "gpu": name} for name in sorted(GPUS)]
        for cluster in described:
            answer = client.post(
                "/v1/estimates",
                json={
                    "model": {"preset": "gpt-2-xl"},
                    "cluster": cluster,
                    "workload": workload,
                    "strategies": [{"framework": "fsdp2"}],
                },
            )
            assert answer.status_code == 200, (cluster, answer.text)
            estimate = answer.json()["estimates"][0]
            assert estimate["valid"], (cluster, estimate["violations"])
            assert estimate["time"]["step_seconds"] > 0
