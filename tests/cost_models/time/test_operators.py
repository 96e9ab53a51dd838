"""Matrix products and attention kernels by shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.hardware import load_gpu
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import Device, device_of
from cost_models.time.operators import AttentionShape, Gemm, aligned_share, flash_seconds, gemm_seconds, visible_span

PEAK = np.array([312e12])


def a100() -> Device:
    return device_of(load_gpu("a100-sxm4-80gb"), default_coefficients())


def seconds(m: float, n: float, k: float, batch: float = 1.0) -> float:
    gemm = Gemm(*(np.array([float(value)]) for value in (m, n, k, batch)))
    return float(gemm_seconds(gemm, PEAK, np.array([2.0]), a100())[0])


def flash(queries: float, span: float, batch_heads: float = 4096.0) -> tuple[float, float]:
    shape = AttentionShape(
        *(np.array([value]) for value in (batch_heads, queries, span, queries)), head_dim=128.0, value_head_dim=128.0
    )
    forward, backward = flash_seconds(shape, PEAK, a100())
    return float(forward[0]), float(backward[0])


class TestGemm:
    def test_large_products_run_at_the_rate_of_their_generation(self) -> None:
        size = 16384 * 4
        assert seconds(size, size, size) == pytest.approx(2 * size**3 / 312e12, rel=0.01)

    def test_one_tile_more_than_fits_takes_another_wave(self) -> None:
        """NVIDIA's guide, wave quantisation: 108 multiprocessors, tiles of 256 x 128."""
        device = replace(a100(), kernels=replace(a100().kernels, gemm_depth=0.0))
        full, spilled = (
            float(
                gemm_seconds(
                    Gemm(np.array([256.0 * 12]), np.array([columns]), np.array([2048.0]), np.array([1.0])),
                    PEAK,
                    np.array([2.0]),
                    device,
                )[0]
            )
            for columns in (128.0 * 9, 128.0 * 9 + 1)
        )
        assert full == pytest.approx(2 * 256 * 12 * 128 * 9 * 2048 / 312e12)
        assert spilled > 1.4 * full

    def test_slow_memory_binds(self) -> None:
        slow = replace(a100(), gpu=replace(a100().gpu, memory_bytes_per_s=1e9))
        gemm = Gemm(*(np.array([value]) for value in (64.0, 512.0, 2048.0, 3.0)))
        moved = np.array([2.0 * 3 * (64 * 2048 + 2048 * 512 + 64 * 512)])
        assert gemm_seconds(gemm, PEAK, np.array([2.0]), slow) == pytest.approx(slow.memory_seconds(moved))

    def test_no_columns_no_time(self) -> None:
        assert seconds(4096, 0, 4096) == 0

    @given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 64))
    def test_never_faster_than_the_peak_and_never_free(self, m: int, n: int, k: int, batch: int) -> None:
        assert seconds(m, n, k, batch) >= 2 * m * n * k * batch / 312e12


def test_rows_that_begin_between_16_bytes_slow_products_down() -> None:
    assert aligned_share(np.array([128.0, 80.0, 150.0, 50257.0])).tolist() == [1.0, 1.0, 0.6, 0.35]


class TestAttention:
    def test_causal_queries_see_half_of_the_keys(self) -> None:
        assert visible_span(np.array([4096.0]), causal=True, window=None)[0] == 2048

    def test_a_window_limits_what_they_see(self) -> None:
        spans = [visible_span(np.array([keys]), causal=True, window=1024)[0] for keys in (1024.0, 4096.0, 65536.0)]
        assert spans == [512.0, 1024 * (1 - 1024 / 8192), 1024 * (1 - 1024 / 131072)]

    def test_without_a_mask_they_see_all(self) -> None:
        assert visible_span(np.array([4096.0]), causal=False, window=None)[0] == 4096

    def test_long_rows_reach_the_rate_of_their_generation(self) -> None:
        forward, backward = flash(131072, 65536)
        products = 4 * 4096 * 131072 * 65536 * 128
        generation = a100().generation
        assert forward == pytest.approx(products / 312e12 / generation.flash_forward, rel=0.02)
        assert backward / forward == pytest.approx(2.5 / a100().kernels.flash_backward)

    def test_rates_of_flash_attention_2_fall_with_the_row_as_its_benchmarks(self) -> None:
        """H100, causal, forward, head size 128: arXiv 2407.08608 figure 5, TFLOP/s by length."""
        published = {512: 191, 1024: 260, 2048: 298, 4096: 319, 8192: 333, 16384: 335}
        ours = {length: length**2 / flash(length, length / 2)[0] for length in published}
        for length, rate in published.items():
            assert ours[length] / ours[16384] == pytest.approx(rate / published[16384], abs=0.07)

    def test_short_rows_reach_less(self) -> None:
        # Sixteen times the work takes less than sixteen times as long.
        assert flash(4096, 2048)[0] < 0.9 * 16 * flash(1024, 512)[0]

    def test_few_blocks_leave_multiprocessors_idle(self) -> None:
        assert flash(128, 64, batch_heads=1.0)[0] == pytest.approx(flash(128, 64, batch_heads=108.0)[0])
