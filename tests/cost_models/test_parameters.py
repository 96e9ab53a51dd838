"""Presets: their published sizes, and their names."""

from __future__ import annotations

import pytest

from cost_models.catalog.models import load_model, model_names, model_preset
from cost_models.errors import UnknownPreset
from cost_models.parameters import count_parameters

CONTRACT_PRESETS = (
    "gpt-2-xl gpt-3-175b mt-nlg-530b palm-540b bloom-176b llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b "
    "llama-3.1-8b llama-3.1-70b llama-3.1-405b mistral-7b mixtral-8x7b mixtral-8x22b qwen2.5-7b qwen2.5-14b "
    "qwen2.5-32b qwen2.5-72b qwen3-8b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b deepseek-v2 deepseek-v3 gemma-2-27b "
    "gpt-oss-20b gpt-oss-120b kimi-k2 bert-large vit-h"
)


def test_the_contracts_presets_are_there_with_their_sources() -> None:
    assert set(CONTRACT_PRESETS.split()) <= set(model_names())
    for name in model_names():
        assert model_preset(name)["source"]
        assert load_model(name).name == name


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # Sum of the elements of the published safetensors checkpoints, as the hub's model pages state them.
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2", 235_741_434_880),
        ("gemma-2-27b", 27_227_128_320),
        ("bloom-176b", 176_247_271_424),
    ],
)
def test_totals_are_those_of_the_published_checkpoints(name: str, total: int) -> None:
    assert count_parameters(load_model(name)).total == total


def test_deepseek_v3_is_its_main_model_without_the_routers_buffers() -> None:
    # 671,026,419,200 in the checkpoint's main model; 58 × 256 of them are e_score_correction_bias, a buffer.
    assert count_parameters(load_model("deepseek-v3")).total == 671_026_419_200 - 58 * 256


@pytest.mark.parametrize(
    ("name", "total_billion", "active_billion"),
    [
        # As the papers and model cards named in the catalog round or cut them.
        ("gpt-2-xl", 1.558, 1.558),
        ("gpt-3-175b", 174.6, 174.6),
        ("mt-nlg-530b", 530, 530),
        ("palm-540b", 540.35, 540.35),
        ("mixtral-8x7b", 46.7, 12.9),
        ("mixtral-8x22b", 141, 39),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("deepseek-v2", 236, 21),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1040, 32.6),
        ("bert-large", 0.340, 0.340),
        ("vit-h", 0.632, 0.632),
    ],
)
def test_totals_and_active_near_the_published_figures(name: str, total_billion: float, active_billion: float) -> None:
    counts = count_parameters(load_model(name))
    assert counts.total / 1e9 == pytest.approx(total_billion, rel=0.02)
    assert counts.active / 1e9 == pytest.approx(active_billion, rel=0.02)


@pytest.mark.parametrize(
    ("name", "total_billion", "active_billion"), [("gpt-oss-20b", 20.91, 3.61), ("gpt-oss-120b", 116.83, 5.13)]
)
def test_gpt_oss_as_its_model_card_counts(name: str, total_billion: float, active_billion: float) -> None:
    # arXiv 2508.10925, table 1: unembedding parameters count as active, embedding parameters do not.
    counts = count_parameters(load_model(name))
    assert round(counts.total / 1e9, 2) == total_billion
    assert round((counts.active - counts.embedding) / 1e9, 2) == active_billion


def test_palm_has_parallel_layers_and_one_key_value_head() -> None:
    (block,) = load_model("palm-540b").blocks
    assert (block.parallel_residual, block.norms, block.attention.key_value_heads) == (True, 1, 1)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownPreset, match=r"llama3-70b.*nearest: llama-3-70b") as refusal:
        load_model("llama3-70b")
    assert (refusal.value.loc, refusal.value.code) == (("model", "preset"), "unknown_preset")
