"""Rates of large products: a share of the peak, or what the power limit feeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.catalog.hardware import load_gpu
from cost_models.strategy import PRECISIONS
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import Device, device_of


def device(name: str, **fields: float) -> Device:
    plain = device_of(load_gpu(name), default_coefficients())
    shares = {"gemm": 0.5, "gemm_fp8": 0.6, "gemm_flops_per_joule": np.inf, "fp8_flops_per_joule": np.inf}
    return replace(plain, generation=replace(plain.generation, **(shares | fields)))


def rate(of: Device, precision: str) -> float:
    return float(of.linear_rate(np.array([PRECISIONS.index(precision)]))[0])


class TestPower:
    def test_does_not_bind_where_no_limit_is_known(self) -> None:
        gb300 = device("gb300-279gb")
        assert rate(gb300, "bf16") == pytest.approx(0.5 * 2500e12)
        assert rate(gb300, "fp8") == pytest.approx(0.6 * 5000e12)

    def test_feeds_the_same_peak_in_proportion(self) -> None:
        gb200, gb300 = (rate(device(name, fp8_flops_per_joule=2e12), "fp8") for name in ("gb200-186gb", "gb300-279gb"))
        assert gb200 == pytest.approx(1200 * 2e12)
        assert gb300 / gb200 == pytest.approx(1400 / 1200)

    def test_binds_products_of_16_bit_by_a_figure_of_their_own(self) -> None:
        b200 = device("b200-sxm-180gb", gemm_flops_per_joule=1e12)
        assert rate(b200, "bf16") == b200.half_rate() == pytest.approx(1000 * 1e12)
        assert float(b200.wide_rate(np.array([PRECISIONS.index("fp8")]))[0]) == pytest.approx(1000 * 1e12)
        assert rate(b200, "fp8") == pytest.approx(0.6 * 4500e12)
        assert rate(b200, "nvfp4") == pytest.approx(0.6 * 9000e12)

    def test_a_gpu_without_bf16_runs_what_is_16_bit_in_fp16(self) -> None:
        assert device("v100-sxm2-32gb").half_rate() == pytest.approx(0.5 * 125e12)
