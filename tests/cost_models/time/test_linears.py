"""Linear layers of a block on one rank."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.models import load_model, model_preset
from cost_models.hf_config import read_hf_config
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import device_of
from cost_models.time.linears import up_projections
from cost_models.time.operators import Gemm, gemm_seconds
from tests.cost_models.problems import h100, make_problem, megatron, resolved


def test_up_projections_are_those_of_latent_attention() -> None:
    config = model_preset("deepseek-v2")["hf_config"]
    models = [read_hf_config(config), read_hf_config(config | {"q_lora_rank": None}), load_model("llama-3-8b")]
    names = [{linear.name for linear in up_projections(model.blocks[0])} for model in models]
    assert names == [{"q_up", "kv_up"}, {"q", "kv_up"}, set()]


def test_recomputed_up_projections_take_as_long_as_their_products() -> None:
    """DeepSeek-V3: 61 layers of 128 heads of 128 + 64 (queries) and 128 + 128 (keys and values), latents of 1536 and
    512; eight ranks have 16 heads each."""
    problem = make_problem("deepseek-v3", h100(32), sequence_length=4096, global_batch_size=32)
    layout = megatron(8, 1, expert_parallel_size=32, expert_tensor_parallel_size=1, micro_batch_size=1)
    again = {"activation_checkpointing": "selective", "recompute_modules": ["mla_up_proj"]}
    table = resolved(problem, layout | again)
    estimate = estimate_time(problem, table, all_stages(problem.model, table))
    device = device_of(problem.cluster.gpu, default_coefficients())
    heads = np.array([16.0])
    products = [
        gemm_seconds(
            Gemm(np.array([4096.0]), heads * width, np.array([depth]), np.ones(1)),
            device.linear_rate(table.precision),
            np.array([2.0]),
            device,
        )
        for width, depth in ((192.0, 1536.0), (256.0, 512.0))
    ]
    assert estimate.parts["recompute"] == pytest.approx(61 * float(sum(products)[0]))
    flops = 61 * 2 * problem.workload.tokens * 128 * (192 * 1536 + 256 * 512)
    assert estimate.hardware_flops - estimate.model_flops == pytest.approx(flops)
