"""Bytes of memory-bound work against what the kernels read and write."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.problem import Problem
from cost_models.time.attention import attention_shape
from cost_models.time.cases import LayerCases, layer_cases
from cost_models.time.coefficients import default_coefficients
from cost_models.time.elementwise import ElementwiseTraffic, elementwise_traffic
from tests.cost_models.problems import a100, h100, make_problem, megatron, resolved

COEFFICIENTS = default_coefficients()
TOKENS, HIDDEN, HEADS = 2048.0, 12288.0, 96.0


def gpt3() -> Problem:
    return make_problem("gpt-3-175b", a100(8), sequence_length=2048, global_batch_size=64)


def cases_of(problem: Problem, **fields: Any) -> LayerCases:
    table = resolved(problem, megatron(8, 8, micro_batch_size=1, zero_stage=0, **fields))
    return layer_cases(problem, table, default_coefficients())[0]


def traffic(*, flash: bool = False, trained: bool = True, heads: float | None = None) -> ElementwiseTraffic:
    problem = gpt3()
    block, cases = problem.model.blocks[0], cases_of(problem)
    shape = attention_shape(block.attention, cases)
    if heads is not None:
        shape.batch_heads[:] = heads
    return elementwise_traffic(problem.model, block, shape, cases, dropout=False, flash=flash, trained=trained)


class TestBiases:
    def test_their_gradients_read_every_output_once(self) -> None:
        """fc1 and qkv over 8 ranks, fc2 and the output projection on the tokens of a rank under sequence parallelism:
        (4 + 3 + 1 + 1) outputs of the hidden size a token, 2 bytes each."""
        with_biases, without = (traffic(trained=trained).rest.backward[0] for trained in (True, False))
        assert with_biases - without == pytest.approx(2 * 9 * HIDDEN * TOKENS / 8)

    def test_forward_adds_them_inside_other_kernels(self) -> None:
        assert traffic(trained=True).forward[0] == traffic(trained=False).forward[0]

    @staticmethod
    def of_experts(model: str, **fields: Any) -> tuple[float, float, float]:
        """Bytes (forward, backward) per routed token and hidden element beside the layer's norms, and operators."""
        problem = make_problem(model, h100(1), sequence_length=4096, global_batch_size=8)
        cases = layer_cases(problem, resolved(problem, megatron(1, 1, expert_parallel_size=8, **fields)), COEFFICIENTS)[
            0
        ]
        block = problem.model.blocks[0]
        shape = attention_shape(block.attention, cases)
        rest = elementwise_traffic(problem.model, block, shape, cases, dropout=False, flash=True, trained=False).rest
        moved = 4 * 4096 * problem.model.hidden_size
        return float(rest.forward[0]) / moved, float(rest.backward[0]) / moved, float(rest.operators[0])

    def test_those_of_grouped_experts_are_added_outside_of_the_product(self) -> None:
        """GPT-OSS: 12 bytes forward and 16 backward an element, and two operators for each of 4 local experts."""
        grouped, plain = (self.of_experts("gpt-oss-20b", kernels=kernels) for kernels in ("fused", "partly-fused"))
        rotary = (20.0 - 4.0) * 72 * 64 * 4096 / (4 * 4096 * 2880)
        assert grouped[0] - plain[0] == pytest.approx(12.0 - rotary)
        assert grouped[1] - plain[1] == pytest.approx(16.0 - rotary)
        assert grouped[2] - plain[2] == pytest.approx(2 * 4 - 10)


class TestEagerAttention:
    def test_joins_the_gradients_of_queries_keys_and_values(self) -> None:
        eager, flash = (traffic(flash=flash).rest.backward[0] for flash in (False, True))
        assert eager - flash == pytest.approx(4 * 3 * HIDDEN * TOKENS / 8)

    def test_joins_them_as_well_where_the_model_has_one_matrix_of_all_three(self) -> None:
        """GPT-2 XL, 1,600 wide, 1,024 tokens."""
        problem = make_problem("gpt-2-xl", a100(1), sequence_length=1024, global_batch_size=8)
        cases = layer_cases(problem, resolved(problem, megatron(1, 1, micro_batch_size=1)), default_coefficients())[0]
        block = problem.model.blocks[0]
        shape = attention_shape(block.attention, cases)
        eager, flash = (
            elementwise_traffic(problem.model, block, shape, cases, dropout=False, flash=flash, trained=True)
            for flash in (False, True)
        )
        assert eager.rest.backward[0] - flash.rest.backward[0] == pytest.approx(4 * 3 * 1600 * 1024)

    def test_softmax_reads_and_writes_scores_and_copies_its_output(self) -> None:
        scores, context = TOKENS**2 * HEADS / 8, HIDDEN * TOKENS / 8
        core = traffic().core_attention
        assert core.forward[0] == pytest.approx(4 * scores + 4 * context)
        assert core.backward[0] == pytest.approx(6 * scores + 4 * context)

    def test_the_fused_kernel_takes_four_rows_of_heads_at_a_time(self) -> None:
        """FusedScaleMaskSoftmax.is_kernel_available; vTrain's runs with 2 heads a rank are 1 ms a layer slower than
        those with 4."""
        fused, plain = (traffic(heads=heads).core_attention for heads in (12.0, 10.0))
        assert plain.forward[0] / 10 > 3 * fused.forward[0] / 12
        assert plain.operators[0] - fused.operators[0] == 6


class TestAutocast:
    """DDP with fp32 weights against weights stored in 16 bit, 2,048 tokens."""

    @staticmethod
    def more(model: str, *, backward: bool, **fields: Any) -> float:
        """Bytes that autocast adds, per token and hidden element."""
        problem = make_problem(model, a100(1), sequence_length=2048, global_batch_size=8)
        moved = []
        for dtype in ("fp32", "bf16"):
            table = resolved(problem, {"framework": "ddp", "micro_batch_size": 1, "parameter_dtype": dtype, **fields})
            cases = layer_cases(problem, table, default_coefficients())[0]
            block = problem.model.blocks[0]
            shape = attention_shape(block.attention, cases)
            work = elementwise_traffic(problem.model, block, shape, cases, dropout=False, flash=True, trained=True)
            moved.append(float((work.backward if backward else work.forward)[0]))
        return (moved[0] - moved[1]) / (2048 * problem.model.hidden_size)

    def test_llama_casts_five_inputs_and_adds_to_a_wide_stream(self) -> None:
        assert self.more("llama-2-7b", backward=False) == pytest.approx(5 * 6 + 2 * 4)
        assert self.more("llama-2-7b", backward=True) == pytest.approx(5 * 6 + 2 * 4)

    def test_layer_norms_are_in_fp32(self) -> None:
        # fc1 and either one product for query, key and value, or three.
        assert self.more("gpt-3-175b", backward=False) == pytest.approx(4 * 6 + 2 * 4 + 2 * 4)
        assert self.more("gpt-3-175b", backward=True) == pytest.approx(4 * 6 + 2 * 4 + 2 * 8)

    def test_one_matrix_of_queries_keys_and_values_casts_one_input(self) -> None:
        assert self.more("gpt-2-xl", backward=False) == pytest.approx(2 * 6 + 2 * 4 + 2 * 4)

    def test_router_and_the_gate_of_shared_experts_cast_theirs(self) -> None:
        # query, key, value, router, gate; and gate and up of the shared experts.
        assert self.more("qwen2-57b-a14b", backward=False) == pytest.approx(7 * 6 + 2 * 4)

    def test_inductor_casts_where_it_writes(self) -> None:
        assert self.more("llama-2-7b", backward=False, compile=True) == pytest.approx(2 * 4)

    def test_fp32_training_casts_nothing(self) -> None:
        assert self.more("llama-2-7b", backward=False, precision="fp32") == 0
