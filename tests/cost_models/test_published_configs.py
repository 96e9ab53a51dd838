"""Transcribed config.json files against the sizes of their published checkpoints: no dimension was copied wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models.hf_config import read_hf_config
from cost_models.parameters import count_parameters

CONFIGS = json.loads((Path(__file__).parent.parent / "data" / "published_configs.json").read_text())["configs"]

# Elements of the safetensors files, as the hub's model pages state them.
CHECKPOINTS = {
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "Llama-3.2-1B": 1_235_814_400,
    "SmolLM2-135M-Instruct": 134_515_008,
    "Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "Mistral-Nemo-Base-2407": 12_247_782_400,
    "Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b-it": 999_885_952,
    "phi-2": 2_779_683_840,
    "Phi-3-mini-4k-instruct": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "Phi-3.5-MoE-instruct": 41_873_153_344,
    "glm-4-9b-hf": 9_399_951_360,
    "GLM-4-32B-0414": 32_566_081_536,
    "starcoder2-7b": 7_173_923_840,
    "stablelm-2-1_6b": 1_644_515_328,
    "c4ai-command-r-plus": 103_810_674_688,
    "OLMo-7B-hf": 6_888_095_744,
    "OLMo-2-1124-7B": 7_298_617_344,
    "OLMoE-1B-7B-0924": 6_919_161_856,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "internlm2_5-7b": 7_737_708_544,
    "Seed-OSS-36B-Base": 36_151_104_512,
    "SmolLM3-3B": 3_075_098_624,
    "dbrx-base": 131_596_523_520,
}


@pytest.mark.parametrize(("name", "elements"), CHECKPOINTS.items())
def test_a_transcribed_config_has_its_checkpoints_size(name: str, elements: int) -> None:
    assert count_parameters(read_hf_config(CONFIGS[name])).total == elements
