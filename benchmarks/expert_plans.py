"""Production recipes of experts, and what a search that was not told of them proposes on the same machines.

Run with `python -m benchmarks.expert_plans` from the root of the repository: for each recipe whether it is valid and
fits, its time here and as published, the first plan of the search, and what that gains and stakes. The formulas alone
judge; the recipe is neither a seed nor named, but numerics that it gives up and that a search leaves to the user are
in the request's `space`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cost_models.answer import full_answers
from cost_models.catalog.models import load_model
from cost_models.cluster import ExpertDispatch
from cost_models.cluster_input import load_cluster_preset
from cost_models.estimate import estimate
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns
from cost_models.workload import FineTuning, Workload
from search import SearchProblem, run_search
from search.describe import describe
from search.evaluator import Evaluator
from search.explain import gain_and_risk

BRIDGE: Final = "NVIDIA-NeMo/Megatron-Bridge"
BRIDGE_TABLES: Final = f"{BRIDGE} 0a25f911, docs/performance-summary-archive.md: degrees, tokens per second and GPU"
BRIDGE_PRECISION: Final = (
    f"{BRIDGE}, training/mixed_precision.py and scripts/performance/utils/precision.py: current scaling is "
    "`tensorwise` with fp8_param_gather, and no layer is left in bf16"
)
BRIDGE_GRADIENTS: Final = f"{BRIDGE}, scripts/performance/configs: set_*_common_configs, grad_reduce_in_fp32 False"
BF16_GRADIENTS: Final = {"gradient_dtype": ("fp32", "bf16")}
"""Gradients summed over micro-batches and ranks in bf16: a loss of precision, which a search takes only where `space`
says that it may; all of Megatron-Bridge's performance recipes take it."""


@dataclass(frozen=True)
class Recipe:
    """One published plan."""

    name: str
    model: str
    preset: str
    nodes: int
    workload: Workload
    strategy: Mapping[str, Any]
    sources: tuple[str, ...]
    published_seconds: float | None = None
    """Of this very run; None where the source prints none."""
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    expert_dispatch: ExpertDispatch = "all-to-all"
    """What its nodes are set up for."""
    assumed: str = "nothing"
    """What the sources leave open, in words."""

    def search(self, **changes: Any) -> SearchProblem:
        """A default request for the same job."""
        cluster = load_cluster_preset(self.preset, self.nodes)
        fabric = replace(cluster.inter_node, expert_dispatch=self.expert_dispatch)
        return SearchProblem(
            model=load_model(self.model),
            clusters=(replace(cluster, inter_node=fabric),),
            workload=self.workload,
            space=self.space,
            **changes,
        )

    def answer(self) -> dict[str, Any]:
        """Its Estimate, and the nodes it runs on, as a plan has them."""
        problem = self.search().problems[0]
        table = resolve_strategies(problem, partial_columns([dict(self.strategy)])).table
        answer = full_answers(estimate(problem, table, memory_confidence=self.search().memory_confidence))[0]
        return {**answer, "nodes": self.nodes}

    def first_plan(self) -> Mapping[str, Any]:
        """Of the search."""
        result = run_search(self.search(), report=lambda *_: None, cancelled=lambda: False, clock=time.monotonic)
        return result.plans[0]


def _seconds(sequences: int, sequence_length: int, gpus: int, tokens_per_second_per_gpu: float) -> float:
    return sequences * sequence_length / (gpus * tokens_per_second_per_gpu)


def _counted(layers: int, chunks: int) -> list[int]:
    """Equal chunks with the embedding and the loss counted as a layer each: the outer two hold one layer less."""
    each, rest = divmod(layers + 2, chunks)
    assert rest == 0
    return [each - 1, *[each] * (chunks - 2), each - 1]


CURRENT_SCALING: Final = {
    "framework": "megatron-lm",
    "zero_stage": 1,
    "micro_batch_size": 1,
    "activation_checkpointing": "none",
    "precision": "fp8",
    "fp8_recipe": "tensorwise",
    "parameter_dtype": "fp8",
    "gradient_dtype": "bf16",
}
"""What Megatron-Bridge's recipes for H100 share."""

RECIPES: Final = (
    Recipe(
        "Llama-3-8B, 8 H100, fp8",
        "llama-3-8b",
        "dgx-h100",
        1,
        Workload(8192, 128, precision="fp8"),
        {**CURRENT_SCALING, "zero_stage": 3},
        (
            f"{BRIDGE_TABLES} (25.11, FSDP 8)",
            f"{BRIDGE} 0fa501ac, scripts/performance/configs/llama3/workload_base_configs.py: use_megatron_fsdp",
            BRIDGE_PRECISION,
            BRIDGE_GRADIENTS,
        ),
        _seconds(128, 8192, 8, 14451),
        BF16_GRADIENTS,
    ),
    Recipe(
        "Llama-3.1-70B, 64 H100, fp8",
        "llama-3.1-70b",
        "dgx-h100",
        8,
        Workload(8192, 256, precision="fp8"),
        {**CURRENT_SCALING, "tensor_parallel_size": 4, "pipeline_parallel_size": 8, "virtual_pipeline_size": 5},
        (f"{BRIDGE_TABLES} (26.02)", BRIDGE_PRECISION, BRIDGE_GRADIENTS),
        _seconds(256, 8192, 64, 1621),
        BF16_GRADIENTS,
    ),
    Recipe(
        "Llama-3.1-405B, 1,024 H100, fp8",
        "llama-3.1-405b",
        "dgx-h100",
        128,
        Workload(8192, 1536, precision="fp8"),
        {
            **CURRENT_SCALING,
            "tensor_parallel_size": 8,
            "pipeline_parallel_size": 8,
            "virtual_pipeline_size": 8,
            "context_parallel_size": 2,
            "layers_per_stage": _counted(126, 64),
        },
        (f"{BRIDGE_TABLES} (26.02)", BRIDGE_PRECISION, BRIDGE_GRADIENTS),
        _seconds(1536, 8192, 1024, 311),
        BF16_GRADIENTS,
    ),
    Recipe(
        "BLOOM-176B, 384 A100, bf16",
        "bloom-176b",
        "dgx-a100",
        48,
        Workload(2048, 2048, precision="bf16"),
        {
            "framework": "megatron-lm",
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 12,
            "zero_stage": 1,
            "micro_batch_size": 2,
            "activation_checkpointing": "full",
            "precision": "bf16",
            "sequence_parallel": False,
            "layers_per_stage": _counted(70, 12),
        },
        (
            "bigscience-workshop/bigscience 003b2505, train/tr11-176B-ml/tr11-176B-ml.slurm",
            "README.md there: 105 s a step, 5 layers beside each embedding; bf16 implies ZeRO-1",
        ),
        105.0,
        assumed="megatron-lm for its fork Megatron-DeepSpeed; InfiniBand for Omni-Path; kernels of today, no dropout",
    ),
    Recipe(
        "DeepSeek-V3, 1,024 H100, fp8",
        "deepseek-v3",
        "dgx-h100",
        128,
        Workload(4096, 8192, precision="fp8"),
        {
            **CURRENT_SCALING,
            "fp8_recipe": "blockwise",
            "parameter_dtype": "bf16",
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 8,
            "virtual_pipeline_size": 4,
            "expert_parallel_size": 64,
            "expert_tensor_parallel_size": 1,
            "layers_per_stage": [1, *[2] * 30, 0],
            "activation_checkpointing": "selective",
            "recompute_modules": ["mla_up_proj", "mlp"],
        },
        (
            f"{BRIDGE_TABLES} (25.09, 330 of 338 TFLOP/s for blocks of 128 x 128)",
            f"{BRIDGE} a9497c6b, scripts/performance/dryrun_configs/deepseek/deepseek_v3_pretrain_h100_fp8_sc_v1.yaml",
        ),
        _seconds(8192, 4096, 1024, 1297 * 330 / 338),
        BF16_GRADIENTS,
        "hierarchical",
        "no block for multi-token prediction, which is 4 % of the published run's work",
    ),
    Recipe(
        "Qwen3-235B-A22B, 256 H100, fp8",
        "qwen3-235b-a22b",
        "dgx-h100",
        32,
        Workload(4096, 8192, precision="fp8"),
        {
            **CURRENT_SCALING,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 8,
            "virtual_pipeline_size": 4,
            "expert_parallel_size": 32,
            "expert_tensor_parallel_size": 1,
            "layers_per_stage": _counted(94, 32),
        },
        (
            f"{BRIDGE_TABLES} (26.02)",
            f"{BRIDGE} 01b2977e, scripts/performance/configs/qwen/qwen3_workload_base_configs.py: H100_FP8_CS_V2",
            BRIDGE_PRECISION,
            BRIDGE_GRADIENTS,
        ),
        _seconds(8192, 4096, 256, 1633),
        BF16_GRADIENTS,
        assumed="nothing hides its experts' traffic, which runs under another micro-batch's work (moe_a2a_overlap)",
    ),
    Recipe(
        "Llama-2-70B LoRA, 8 H100, fp8",
        "llama-2-70b",
        "dgx-h100",
        1,
        Workload(8192, 8, precision="fp8", fine_tuning=FineTuning("lora", 16, "attention")),
        {
            "framework": "megatron-lm",
            "tensor_parallel_size": 4,
            "zero_stage": 0,
            "micro_batch_size": 1,
            "activation_checkpointing": "none",
            "precision": "fp8",
            "fp8_recipe": "tensorwise",
            "parameter_dtype": "fp8",
        },
        (
            "mlcommons/training_results_v4.0 62f111b7, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo: "
            "config_DGXH100_1x8x4xtp4pp1cp1.sh; conf/megatron_gpt_peft_tuning_config.yaml: fp8_params, attention",
        ),
        assumed="tensorwise for delayed scaling",
    ),
)


def _fit(answer: Mapping[str, Any]) -> str:
    return f"{'fits' if answer['fits'] else 'does not fit'}, P(out of memory) {answer['memory']['oom_probability']:.2g}"


def print_recipe(recipe: Recipe) -> None:
    """A recipe, the first plan of the search, and what this gains and stakes."""
    own, first = recipe.answer(), recipe.first_plan()
    published = "" if recipe.published_seconds is None else f", published {recipe.published_seconds:.2f} s"
    print(f"\n{recipe.name}: valid {own['valid']}; assumed: {recipe.assumed}")
    print(f"  recipe      {own['time']['step_seconds']:6.2f} s{published}; {_fit(own)}: {describe(own['strategy'])}")
    print(f"  first plan  {first['time']['step_seconds']:6.2f} s; {_fit(first)}: {describe(first['strategy'])}")
    print(f"  {gain_and_risk(Evaluator(recipe.search()), first, own)}")
    for sentence in first["explanation"]:
        print(f"    {sentence}")
    for source in recipe.sources:
        print(f"  source: {source}")


if __name__ == "__main__":
    for each in RECIPES:
        print_recipe(each)
