"""Vision transformers: work of an image, weights at both ends, and a head that sees one token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.hf_config import read_hf_config
from cost_models.memory import estimate_memory
from cost_models.memory.weights import end_weights
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate
from cost_models.rules import violations
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.flops import model_flops
from tests.cost_models.problems import h100, make_problem, megatron, resolved

IMAGES = 1024


def vit_h(**workload: Any) -> Problem:
    return make_problem("vit-h", h100(1), sequence_length=257, global_batch_size=IMAGES, **workload)


def memory(problem: Problem, **strategy: Any) -> MemoryEstimate:
    table = resolved(problem, strategy)
    return estimate_memory(problem, table, all_stages(problem.model, table))


@pytest.mark.parametrize(
    ("config", "gflops"),
    [
        ({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}, 17.56),
        ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}, 61.55),
    ],
)
def test_work_of_an_image_is_that_of_torchvision(config: dict[str, int], gflops: float) -> None:
    # torchvision's ViT_B_16 and ViT_L_16 weights, 224 pixels: multiply-adds of one forward, in 10^9.
    model = read_hf_config({"model_type": "vit", "patch_size": 16, "num_labels": 1000, **config})
    base = vit_h()
    workload = make_problem("vit-h", h100(1), sequence_length=197, global_batch_size=IMAGES).workload
    flops = model_flops(Problem(model, base.cluster, workload))
    assert flops / IMAGES / 6 / 1e9 == pytest.approx(gflops, rel=2e-3)


def test_work_of_the_preset() -> None:
    # torchvision's ViT_H_14 at 224 pixels (IMAGENET1K_SWAG_LINEAR_V1): 167.29.
    assert model_flops(vit_h()) / IMAGES / 6 / 1e9 == pytest.approx(167.29, rel=2e-3)


def test_ends_hold_the_projection_and_the_labels_whole() -> None:
    problem = vit_h()
    ends = end_weights(problem, resolved(problem, {"framework": "fsdp2"}, {"framework": "fsdp2"} | {"zero_stage": 2}))
    first = (3 * 14 * 14 + 1) * 1280 + 257 * 1280 + 1280
    last = (1280 + 1) * 1000 + 2 * 1280
    assert ends.first.tolist() == [first, first]
    assert ends.last.tolist() == [last, last]
    split = end_weights(problem, resolved(problem, megatron(8, 1)))
    assert (split.first[0], split.last[0]) == (first, last)
    found = memory(problem, framework="ddp", parameter_dtype="fp32")
    assert found.parts["parameters"][0] >= 4 * problem.model.parameters


def test_logits_are_those_of_one_token_an_image() -> None:
    problem = vit_h()
    found = memory(problem, framework="ddp", micro_batch_size=128)
    # 128 images: a few copies of 128 x 1,000 numbers and the gradient of what enters the head.
    assert found.parts["logits"][0] <= 128 * 1000 * 24 + 128 * 257 * 1280 * 2


def test_the_image_stays_for_the_projection() -> None:
    problem = vit_h()
    whole, halved = (memory(problem, framework="ddp", micro_batch_size=size).parts["activations"][0] for size in (8, 4))
    assert whole == pytest.approx(2 * halved, rel=1e-3)
    image = 2 * 3 * 224 * 224
    layers = 32 * memory(problem, framework="ddp", micro_batch_size=8).activation_bytes_per_layer[0]
    assert whole >= layers + 8 * image


def test_the_head_takes_next_to_no_time() -> None:
    problem = vit_h()
    table = resolved(problem, {"framework": "fsdp2", "micro_batch_size": 128})
    assert not violations(problem, table).any()
    found = estimate_time(problem, table, all_stages(problem.model, table))
    assert np.isfinite(found.step_seconds[0])
    # 3 x 167.29 x 2 GFLOP an image at between 20 % and 65 % of 8 x 989 TFLOP/s.
    fastest = IMAGES * 6 * 167.29e9 / (8 * 989e12 * 0.65)
    assert fastest < found.step_seconds[0] < fastest * 0.65 / 0.20


def test_tensor_parallel_ranks_each_have_the_ends() -> None:
    problem = vit_h()
    table = resolved(problem, megatron(2, 1, sequence_parallel=False, micro_batch_size=64))
    assert not violations(problem, table).any()
    parts = estimate_time(problem, table, all_stages(problem.model, table)).parts
    assert parts["tensor_parallel"][0] > 0
