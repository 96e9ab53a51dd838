"""FLOP of the model and of recomputation, as utilisation is counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.workload import FineTuning
from tests.cost_models.problems import h100, make_problem, megatron
from tests.cost_models.time.test_step_parts import llama, timed


class TestFlops:
    def test_six_per_matrix_parameter_and_token_plus_attention_in_full(self) -> None:
        problem = llama(sequence_length=4096, global_batch_size=512)
        layer = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
        attention = 12 * 4096 * 4096  # 12 s h of arXiv 2104.04473 equation 3, per token and layer
        tokens = 4096 * 512
        expected = tokens * (6 * (32 * layer + 4096 * 128256) + 32 * attention)
        assert timed(problem, megatron(1, 1)).model_flops[0] == expected

    def test_full_recomputation_adds_a_forward_of_the_layers(self) -> None:
        problem = llama()
        none, full = (timed(problem, megatron(1, 1, activation_checkpointing=kind)) for kind in ("none", "full"))
        assert none.hardware_flops[0] == none.model_flops[0]
        head = 6 * 4096 * 128256 * 4096 * 512
        assert full.hardware_flops[0] - full.model_flops[0] == pytest.approx((none.model_flops[0] - head) / 3)

    def test_half_of_the_layers_cost_half_of_it(self) -> None:
        problem = llama()
        half, full = (
            timed(problem, megatron(1, 1, activation_checkpointing="full", checkpointed_layers=layers))
            for layers in (16, 32)
        )
        assert half.parts["recompute"][0] == pytest.approx(full.parts["recompute"][0] / 2)
        again = full.hardware_flops - full.model_flops
        assert half.hardware_flops - half.model_flops == pytest.approx(again / 2)

    def test_lora_needs_four_of_frozen_and_six_of_adapters(self) -> None:
        tuned = FineTuning("lora", rank=16, target="attention-qv")
        problem = llama(fine_tuning=tuned)
        layer = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
        adapters = 16 * ((4096 + 4096) + (4096 + 1024))
        per_token = 4 * (32 * layer + 4096 * 128256) + 6 * 32 * adapters + 32 * 12 * 4096 * 4096
        estimate = timed(problem, {"framework": "fsdp2"})
        assert estimate.model_flops[0] == 4096 * 512 * per_token
        whole = timed(llama(), {"framework": "fsdp2"})
        assert estimate.parts["backward"][0] < whole.parts["backward"][0]

    @pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
    @given(rank=st.integers(1, 2**20))
    @settings(deadline=None, max_examples=10)
    def test_adapters_of_any_rank_take_the_time_of_their_products(self, model: str, rank: int) -> None:
        tuned = FineTuning("lora", rank=rank, target="all-linear")
        problem = make_problem(model, h100(2), fine_tuning=tuned)
        estimate = timed(problem, {"framework": "fsdp2"})
        assert estimate.model_flops[0] / (16 * estimate.peak_flops_per_s[0]) < estimate.step_seconds[0]

    def test_a_sparse_model_counts_what_a_token_uses(self) -> None:
        problem = make_problem("mixtral-8x7b", h100(8))
        layer = 4096 * (4096 + 1024 + 1024 + 4096) + 4096 * 8 + 2 * 3 * 4096 * 14336
        expected = 4096 * 512 * (6 * (32 * layer + 4096 * 32000) + 32 * 12 * 4096 * 4096)
        estimate = timed(problem, megatron(1, 1, expert_parallel_size=8))
        assert estimate.model_flops[0] == expected
        assert estimate.parts["expert_parallel"][0] > 0
