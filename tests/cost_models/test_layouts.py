"""Default layouts of layers over model chunks."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.architecture import ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.explicit_architecture import build_architecture
from cost_models.layouts import (
    NO_LAYOUT,
    balanced_layout,
    busiest_stages,
    default_layout,
    head_cost_in_layers,
    largest_stages,
    running_cost_layout,
)


def small_model(layers: int, vocab: int = 50_000) -> ModelArchitecture:
    return build_architecture(
        {
            "layers": layers,
            "hidden_size": 1024,
            "attention_heads": 16,
            "key_value_heads": 16,
            "ffn_hidden_size": 4096,
            "gated_mlp": False,
            "vocab_size": vocab,
            "tied_embeddings": False,
        }
    )


ULTRASCALE: dict[str, Any] = {
    "attention_heads": 32,
    "key_value_heads": 32,
    "gated_mlp": True,
    "vocab_size": 131072,
    "tied_embeddings": False,
}
"""The models of nanotron's scaling benchmarks (scripts/scaling_benchmarks.py)."""


def ultrascale(layers: int, hidden: int, ffn: int) -> ModelArchitecture:
    return build_architecture({**ULTRASCALE, "layers": layers, "hidden_size": hidden, "ffn_hidden_size": ffn})


class TestDefaultLayout:
    def test_equal_where_it_divides(self) -> None:
        assert default_layout(load_model("mt-nlg-530b"), 35, 1, ends_count_as_layers=True) == (3,) * 35

    def test_ends_count_as_a_layer_each_as_bloom_was_trained(self) -> None:
        # arXiv 2211.05100, 3.4: 70 layers on 12 stages, the embedding and the head as a layer each.
        assert default_layout(load_model("bloom-176b"), 12, 1, ends_count_as_layers=True) == (5, *(6,) * 10, 5)

    def test_ends_count_as_a_layer_each_as_llama_405b_was_trained(self) -> None:
        # arXiv 2407.21783, 3.3.2: one layer less on the first and on the last of 16 stages.
        assert default_layout(load_model("llama-3.1-405b"), 16, 1, ends_count_as_layers=True) == (7, *(8,) * 14, 7)

    def test_ends_have_chunks_to_themselves_where_there_are_as_many(self) -> None:
        layout = default_layout(load_model("llama-3.1-405b"), 16, 8, ends_count_as_layers=True)
        assert layout == (0, *(1,) * 126, 0)

    def test_best_balanced_else(self) -> None:
        # The head of llama-3-70b multiplies as much as 1.23 layers: the last stage has one layer less.
        assert default_layout(load_model("llama-3-70b"), 3, 1, ends_count_as_layers=True) == (27, 27, 26)

    def test_no_layout_for_more_chunks_than_layers(self) -> None:
        assert default_layout(small_model(4), 6, 1, ends_count_as_layers=False) == NO_LAYOUT

    @given(st.integers(1, 130), st.integers(1, 20), st.integers(1, 6), st.booleans())
    def test_places_each_layer_once(self, layers: int, pipeline: int, virtual: int, ends: bool) -> None:
        layout = default_layout(small_model(layers), pipeline, virtual, ends_count_as_layers=ends)
        if layout == NO_LAYOUT:
            assert pipeline * virtual > layers
        else:
            assert len(layout) == pipeline * virtual
            assert sum(layout) == layers


class TestBalancedLayout:
    @given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1_000, 400_000))
    def test_no_layout_is_better(self, layers: int, pipeline: int, virtual: int, vocab: int) -> None:
        chunks = pipeline * virtual
        if chunks > layers:
            return
        model = small_model(layers, vocab)
        head = head_cost_in_layers(model)
        every = []
        for cuts in combinations(range(1, layers), chunks - 1):
            edges = (0, *cuts, layers)
            every.append(tuple(b - a for a, b in pairwise(edges)))
        loads = busiest_stages(every, np.arange(len(every)), np.full(len(every), pipeline), head)
        layout = balanced_layout(model, pipeline, virtual)
        assert loads[every.index(layout)] == pytest.approx(loads.min())

    def test_a_heavy_head_empties_the_last_stage_to_one_layer_a_chunk(self) -> None:
        # 12 x 1024^2 weights a layer against 1024 x 10^6 of the head: 81.4 layers.
        assert balanced_layout(small_model(11, 1_000_000), 4, 1) == (3, 3, 4, 1)

    def test_deepseek_v3_on_16_stages(self) -> None:
        assert balanced_layout(load_model("deepseek-v3"), 16, 1) == (3, *(4,) * 14, 2)


class TestRunningCostLayout:
    def test_a_head_of_four_layers_leaves_the_last_of_four_stages_without_one(self) -> None:
        # 4 x 2048^2 + 3 x 2048 x 8192 a layer against 2048 x 131072 of the head: 4 layers. Of 20 each stage has 5, and
        # gets the layer that exceeds it.
        assert running_cost_layout(ultrascale(16, 2048, 8192), 2) == (11, 5)
        assert running_cost_layout(ultrascale(16, 2048, 8192), 4) == (6, 5, 5, 0)

    def test_an_eight_billion_model_on_eight_stages(self) -> None:
        # The head is worth 2.2 layers: 34.2 in all, 4.28 a stage.
        assert running_cost_layout(ultrascale(32, 4096, 14336), 8) == (5, 4, 4, 5, 4, 4, 4, 2)

    def test_key_and_value_heads_do_not_count(self) -> None:
        whole = build_architecture({**ULTRASCALE, "layers": 30, "hidden_size": 4096, "ffn_hidden_size": 11008})
        fewer = build_architecture(
            {**ULTRASCALE, "layers": 30, "hidden_size": 4096, "ffn_hidden_size": 11008, "key_value_heads": 4}
        )
        assert running_cost_layout(whole, 4) == running_cost_layout(fewer, 4)

    @given(st.integers(1, 80), st.integers(1, 16), st.integers(1_000, 400_000))
    def test_places_each_layer_once_and_no_stage_but_the_last_ones_is_empty(
        self, layers: int, chunks: int, vocab: int
    ) -> None:
        layout = default_layout(small_model(layers, vocab), chunks, 1, ends_count_as_layers=False, by_cost=True)
        if chunks > layers:
            assert layout == NO_LAYOUT
        else:
            assert (len(layout), sum(layout)) == (chunks, layers)
            assert sorted(layout, key=bool, reverse=True) == list(layout)


def test_the_head_of_llama_3_70b_is_worth_more_than_a_layer() -> None:
    # 8192 x 128256 / (2 x 8192^2 + 2 x 8192 x 1024 + 3 x 8192 x 28672)
    assert head_cost_in_layers(load_model("llama-3-70b")) == pytest.approx(1_050_673_152 / 855_638_016)


def test_the_head_of_a_mixture_is_compared_with_the_experts_that_a_token_uses() -> None:
    # mixtral-8x7b: 4096 x 32000 / (2 x 4096^2 + 2 x 4096 x 1024 + 2 x 3 x 4096 x 14336 + 8 x 4096)
    assert head_cost_in_layers(load_model("mixtral-8x7b")) == pytest.approx(131_072_000 / 394_297_344)


class TestLargestStages:
    def test_chunks_of_a_stage_add_up(self) -> None:
        layouts = ((1, 2, 3, 4), (5, 1), (80,))
        largest = largest_stages(layouts, np.array([0, 0, 1, 2]), np.array([2, 4, 2, 1]))
        assert largest.tolist() == [6, 4, 5, 80]

    def test_the_head_counts_on_the_last_stage(self) -> None:
        assert busiest_stages(((2, 2),), np.array([0]), np.array([2]), 1.5).tolist() == [3.5]

    def test_an_empty_table(self) -> None:
        none = np.array([], dtype=np.int64)
        assert largest_stages((), none, none).tolist() == []
