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


class TestConsumerCards:
    @pytest.mark.parametrize(
        ("name", "measured"),
        [
            ("rtx-3090-24gb", 76.3),
            ("rtx-4090-24gb", 163),
            ("rtx-a6000-48gb", 122),
            ("a40-48gb", 121),
            ("l40s-48gb", 267),
            ("h20-96gb", 141.8),
        ],
    )
    def test_products_in_training_are_a_tenth_slower_than_alone(self, name: str, measured: float) -> None:
        """TFLOP/s of the largest bf16 products under torch (zzc0721/torch-performance-test-data)."""
        gpu = device_of(load_gpu(name), default_coefficients())
        assert rate(gpu, "bf16") == pytest.approx(0.9 * measured * 1e12, rel=0.06)

    def test_halved_peaks_leave_power_to_spare(self) -> None:
        gpus = [load_gpu(name) for name in ("rtx-3090-24gb", "rtx-a6000-48gb")]
        ga102 = default_coefficients().generation("ampere", "ga102")
        bound = [gpu.tdp_watts * ga102.gemm_flops_per_joule for gpu in gpus]
        assert bound[0] > gpus[0].peak_flops_per_s["bf16"]
        assert bound[1] < 0.8 * gpus[1].peak_flops_per_s["bf16"]

    def test_a_chip_without_figures_of_its_own_has_its_generations(self) -> None:
        coefficients = default_coefficients()
        assert coefficients.generation("ampere", "ga100") is coefficients.generations["ampere"]
        assert coefficients.generation(None) is coefficients.generations["unknown"]
        assert coefficients.generation("hopper", "h20-96gb", "gh100") is coefficients.generations["h20-96gb"]


@pytest.mark.parametrize(
    ("name", "measured"),
    [("v100-sxm2-32gb", 14), ("a100-sxm4-80gb", 19.1), ("rtx-3090-24gb", 24.8), ("h100-sxm5-80gb", 52.1)],
)
def test_products_in_fp32_on_cuda_cores(name: str, measured: float) -> None:
    """TFLOP/s of the largest products under torch, as above; V100: mli/transformers-benchmarks."""
    assert rate(device_of(load_gpu(name), default_coefficients()), "fp32") == pytest.approx(measured * 1e12, rel=0.08)
