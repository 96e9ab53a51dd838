"""Strategies that did run, and strategies that break one rule each, with the message that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cost_models.hf_config import read_hf_config
from cost_models.problem import Problem
from cost_models.workload import FineTuning
from tests.cost_models.problems import a100, h100, make_problem, megatron

T5: Final = replace(make_problem("llama-3-8b", h100(1)), model=read_hf_config({"model_type": "t5"}))
LLAMA: Final = make_problem("llama-3-70b", h100(8))
RECIPES: Final = {
    "llama-3.1-405b, arXiv 2407.21783, table 4": (
        make_problem("llama-3.1-405b", h100(2048), sequence_length=8192, global_batch_size=2048),
        megatron(8, 16, data_parallel_size=128),
    ),
    "llama-3.1-405b at 131072 tokens, arXiv 2407.21783, table 4": (
        make_problem("llama-3.1-405b", h100(2048), sequence_length=131_072, global_batch_size=128),
        megatron(8, 16, context_parallel_size=16, context_parallel_kind="all-gather", data_parallel_size=8),
    ),
    "llama-3.1-405b on 1024 GPUs, Megatron-Bridge's published settings: 128 chunks for 126 layers": (
        make_problem("llama-3.1-405b", h100(128), sequence_length=8192, global_batch_size=512),
        megatron(4, 16, virtual_pipeline_size=8),
    ),
    "bloom-176b, arXiv 2211.05100, section 3.4": (
        make_problem("bloom-176b", a100(48), sequence_length=2048, global_batch_size=2048),
        megatron(4, 12, data_parallel_size=8, micro_batch_size=2),
    ),
    "mt-nlg-530b, arXiv 2201.11990, section 3.2": (
        make_problem("mt-nlg-530b", a100(280), sequence_length=2048, global_batch_size=1920),
        megatron(8, 35, data_parallel_size=8),
    ),
    "gpt-3-175b, arXiv 2104.04473, table 1": (
        make_problem("gpt-3-175b", a100(128), sequence_length=2048, global_batch_size=1536, attention="eager"),
        megatron(8, 8, virtual_pipeline_size=2, activation_checkpointing="full"),
    ),
    "deepseek-v3 as Megatron-Core trains it": (
        make_problem("deepseek-v3", h100(128), global_batch_size=8192),
        megatron(
            2,
            8,
            virtual_pipeline_size=4,
            expert_parallel_size=64,
            expert_tensor_parallel_size=1,
            activation_checkpointing="selective",
            recompute_modules=["mla_up_proj", "mlp"],
        ),
    ),
    "deepseek-v3, arXiv 2412.19437, section 3.2": (
        make_problem("deepseek-v3", h100(256), global_batch_size=15_360),
        megatron(1, 16, expert_parallel_size=64, pipeline_schedule="zero-bubble"),
    ),
    "mixtral-8x7b, Megatron-Core's mixture-of-experts guide": (
        make_problem("mixtral-8x7b", h100(8), global_batch_size=256),
        megatron(1, 4, virtual_pipeline_size=8, expert_parallel_size=8),
    ),
    "interleaving with 5 micro-batches on 4 stages, a functional test of Megatron-LM": (
        make_problem("gpt-2-xl", h100(1), sequence_length=1024, global_batch_size=40),
        megatron(1, 4, virtual_pipeline_size=3, micro_batch_size=4),
    ),
    "llama-3.1-405b, arXiv 2410.06511, table 5: FSDP 8, TP 8, PP 8": (
        make_problem("llama-3.1-405b", h100(64), sequence_length=8192, global_batch_size=128),
        {
            "framework": "fsdp2",
            "tensor_parallel_size": 8,
            "pipeline_parallel_size": 8,
            "virtual_pipeline_size": 2,
            "activation_checkpointing": "full",
        },
    ),
    "llama-3.1-8b at 262144 tokens, arXiv 2410.06511, table 6: FSDP 1, CP 8": (
        make_problem("llama-3.1-8b", h100(1), sequence_length=262_144, global_batch_size=1),
        {"framework": "fsdp2", "context_parallel_size": 8, "activation_checkpointing": "full"},
    ),
    "zero-3 under Megatron-DeepSpeed with offload": (
        make_problem("gpt-3-175b", a100(8), sequence_length=2048, global_batch_size=64),
        megatron(8, 1, zero_stage=3, offload="optimizer-and-parameters"),
    ),
    "a 70b model on one node, arXiv 2104.07857: parameters on NVMe": (
        make_problem("llama-3-70b", h100(1), global_batch_size=8),
        {"framework": "deepspeed", "zero_stage": 3, "offload": "nvme", "activation_checkpointing": "full"},
    ),
    "hpZ, arXiv 2306.10209": (
        LLAMA,
        {"framework": "deepspeed", "zero_stage": 3, "secondary_shard_size": 8},
    ),
    "llama-3-70b, Composer's FULL_SHARD in fp8": (
        make_problem("llama-3-70b", h100(8), precision="fp8"),
        {"framework": "fsdp1", "micro_batch_size": 2, "activation_checkpointing": "full"},
    ),
    "SHARD_GRAD_OP": (make_problem("llama-3-8b", h100(8)), {"framework": "fsdp1", "zero_stage": 2}),
    "hybrid sharding": (LLAMA, {"framework": "fsdp2", "data_parallel_replicate_size": 8}),
    "gpt-2-xl on one node": (make_problem("gpt-2-xl", h100(1), sequence_length=1024), {"framework": "ddp"}),
    "nanotron's 8b on 64 GPUs, Ultra-Scale Playbook": (
        make_problem("llama-3-8b", h100(8)),
        {"framework": "nanotron", "tensor_parallel_size": 4, "pipeline_parallel_size": 4, "zero_stage": 1},
    ),
}

ODD: Final = make_problem(
    "llama-3-70b", {"nodes": 9, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}, global_batch_size=720
)
MIXTRAL: Final = make_problem("mixtral-8x7b", h100(8))
BERT: Final = make_problem("bert-large", h100(1), sequence_length=512)
V100: Final = make_problem("llama-3-8b", {"nodes": 1, "gpus_per_node": 8, "gpu": "v100-sxm2-32gb"})

BREAKING: Final[list[tuple[Problem, dict[str, Any], str, str]]] = [
    (
        LLAMA,
        {"framework": "fsdp2", "tensor_parallel_size": 8, "data_parallel_size": 4},
        "degrees_do_not_multiply_to_gpus",
        "tensor 8 x context 1 x data 4 x pipeline 1 = 32, but the cluster has 64 GPUs",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "micro_batch_size": 3},
        "batch_not_divisible",
        "global_batch_size 512 does not divide by data_parallel_size 64 x micro_batch_size 3",
    ),
    (
        ODD,
        megatron(6, 1, data_parallel_size=12),
        "heads_not_divisible",
        "64 heads do not divide by tensor_parallel_size 6",
    ),
    (
        LLAMA,
        megatron(4, 1, context_parallel_size=32, context_parallel_kind="all-to-all"),
        "heads_not_divisible",
        "64 heads do not divide by tensor_parallel_size 4 x context_parallel_size 32 (all-to-all)",
    ),
    (
        LLAMA,
        megatron(16, 1),
        "kv_heads_not_divisible",
        "8 key-value heads do not divide by tensor_parallel_size 16",
    ),
    (
        ODD,
        megatron(3, 1, sequence_parallel=False),
        "ffn_not_divisible",
        "ffn_hidden_size 28672 does not divide by tensor_parallel_size 3",
    ),
    (
        MIXTRAL,
        megatron(1, 1, expert_tensor_parallel_size=3),
        "ffn_not_divisible",
        "expert_ffn_hidden_size 14336 does not divide by expert_tensor_parallel_size 3",
    ),
    (
        LLAMA,
        megatron(8, 2, layers_per_stage=[40, 41]),
        "layers_not_divisible",
        "layers_per_stage places 81 layers on 2 chunks, but the model has 80 layers and the strategy 2 chunks",
    ),
    (
        make_problem("llama-3-70b", h100(8), sequence_length=4100),
        megatron(8, 1),
        "sequence_not_divisible",
        "sequence_length 4100 does not divide by tensor_parallel_size 8 (sequence parallelism)",
    ),
    (
        make_problem("llama-3-70b", h100(8), sequence_length=4100),
        {"framework": "fsdp2", "context_parallel_size": 4},
        "sequence_not_divisible",
        "sequence_length 4100 does not divide by 2 x context_parallel_size 4 (each rank holds 2 pieces)",
    ),
    (
        MIXTRAL,
        megatron(1, 1, expert_parallel_size=16),
        "experts_not_divisible",
        "8 experts do not divide by expert_parallel_size 16",
    ),
    (
        MIXTRAL,
        megatron(2, 16, expert_parallel_size=8),
        "expert_group_not_divisible",
        "expert_parallel_size 8 x expert_tensor_parallel_size 2 does not divide tensor x context x data = 4",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "data_parallel_replicate_size": 3},
        "replicate_not_divisor",
        "data_parallel_replicate_size 3 does not divide data_parallel_size 64",
    ),
    (
        MIXTRAL,
        megatron(1, 1, expert_parallel_size=8, data_parallel_replicate_size=16),
        "replicate_not_divisor",
        "data_parallel_replicate_size 16 does not divide the 8 ranks that hold the same experts",
    ),
    (
        LLAMA,
        {"framework": "ddp", "data_parallel_replicate_size": 8},
        "replicate_not_divisor",
        "ddp has no replicate groups: data_parallel_replicate_size must be 1",
    ),
    (
        LLAMA,
        {"framework": "deepspeed", "zero_stage": 3, "secondary_shard_size": 5},
        "replicate_not_divisor",
        "secondary_shard_size 5 does not divide the shard group of 64 ranks",
    ),
    (
        make_problem("llama-3-8b", h100(16)),
        megatron(2, 64),
        "fewer_layers_than_chunks",
        "32 layers do not fill pipeline_parallel_size 64 x virtual_pipeline_size 1 = 64 chunks; "
        "layers_per_stage can leave some empty",
    ),
    (
        LLAMA,
        megatron(8, 1, virtual_pipeline_size=2),
        "virtual_needs_pipeline",
        "virtual_pipeline_size 2 needs pipeline_parallel_size > 1",
    ),
    (
        make_problem("llama-3-70b", h100(8), global_batch_size=8),
        megatron(4, 4, virtual_pipeline_size=2),
        "micro_batches_not_multiple_of_stages",
        "the interleaved schedule needs at least pipeline_parallel_size 4 micro-batches, there are 2",
    ),
    (
        make_problem("llama-3-70b", h100(8), global_batch_size=36),
        {"framework": "fsdp2", "tensor_parallel_size": 4, "pipeline_parallel_size": 4, "virtual_pipeline_size": 2},
        "micro_batches_not_multiple_of_stages",
        "9 micro-batches do not split evenly into 2 rounds of at least 4 stages, as fsdp2's interleaved schedule needs",
    ),
    (
        LLAMA,
        {"framework": "deepspeed", "pipeline_parallel_size": 4, "pipeline_schedule": "gpipe"},
        "schedule_unsupported",
        "deepspeed has no gpipe schedule",
    ),
    (
        LLAMA,
        megatron(4, 4, pipeline_schedule="interleaved"),
        "schedule_unsupported",
        "the interleaved schedule needs virtual_pipeline_size > 1, not 1",
    ),
    (
        LLAMA,
        megatron(4, 4, pipeline_schedule="1f1b", virtual_pipeline_size=5),
        "schedule_unsupported",
        "the 1f1b schedule has one chunk a stage, not virtual_pipeline_size 5",
    ),
    (
        LLAMA,
        megatron(4, 4, pipeline_schedule="zero-bubble", virtual_pipeline_size=4),
        "schedule_unsupported",
        "megatron-lm's zero-bubble schedule needs virtual_pipeline_size 1 or 2, not 4",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "pipeline_parallel_size": 4, "pipeline_schedule": "zero-bubble"},
        "schedule_unsupported",
        "fsdp2's zero-bubble schedule needs virtual_pipeline_size 2, not 1",
    ),
    (LLAMA, {"framework": "ddp", "zero_stage": 3}, "zero_stage_unsupported", "ddp has no zero_stage 3 (only 0)"),
    (
        LLAMA,
        {"framework": "deepspeed", "zero_stage": 3, "pipeline_parallel_size": 4},
        "zero_stage_unsupported",
        "deepspeed runs a pipeline with zero_stage 0, 1, not 3 (pipeline_parallel_size 4)",
    ),
    (
        LLAMA,
        megatron(8, 1, zero_stage=0, data_parallel_replicate_size=2),
        "zero_stage_unsupported",
        "data_parallel_replicate_size 2 on megatron-lm needs zero_stage 1, 2, 3, not 0",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "secondary_shard_size": 8},
        "zero_stage_unsupported",
        "secondary_shard_size 8 (hpZ) needs deepspeed with zero_stage 3, not fsdp2 with 3",
    ),
    (
        LLAMA,
        {"framework": "fsdp1", "tensor_parallel_size": 8},
        "tensor_unsupported",
        "fsdp1 has no tensor parallelism (tensor_parallel_size 8)",
    ),
    (
        LLAMA,
        {"framework": "ddp", "pipeline_parallel_size": 2},
        "pipeline_unsupported",
        "ddp has no pipeline parallelism (pipeline_parallel_size 2)",
    ),
    (
        LLAMA,
        {"framework": "nanotron", "context_parallel_size": 2},
        "context_unsupported",
        "nanotron has no context parallelism (context_parallel_size 2)",
    ),
    (
        LLAMA,
        {"framework": "deepspeed", "context_parallel_size": 2, "context_parallel_kind": "ring"},
        "context_unsupported",
        "deepspeed has no ring context parallelism (only all-to-all) (context_parallel_size 2)",
    ),
    (
        BERT,
        megatron(1, 1, context_parallel_size=2),
        "context_unsupported",
        "ring context parallelism splits causal attention only; bert-large attends in both directions",
    ),
    (
        LLAMA,
        megatron(1, 1, expert_parallel_size=8),
        "expert_unsupported",
        "llama-3-70b has no experts for expert_parallel_size 8",
    ),
    (
        MIXTRAL,
        {"framework": "fsdp1", "expert_parallel_size": 8},
        "expert_unsupported",
        "fsdp1 has no expert parallelism (expert_parallel_size 8)",
    ),
    (
        MIXTRAL,
        {"framework": "deepspeed", "zero_stage": 3, "expert_parallel_size": 8},
        "expert_unsupported",
        "deepspeed runs expert parallelism with zero_stage 0, 1, 2, not 3",
    ),
    (
        MIXTRAL,
        {"framework": "fsdp2", "tensor_parallel_size": 4, "expert_tensor_parallel_size": 2},
        "expert_unsupported",
        "fsdp2 needs expert_tensor_parallel_size 1 or 4 (the tensor size), not 2",
    ),
    (
        MIXTRAL,
        megatron(2, 1, sequence_parallel=False),
        "experts_need_sequence_parallel",
        "megatron-lm trains experts with tensor_parallel_size 2 only with sequence_parallel",
    ),
    (
        LLAMA,
        megatron(1, 1, sequence_parallel=True),
        "sequence_parallel_needs_tensor",
        "sequence_parallel needs tensor_parallel_size > 1, not 1",
    ),
    (
        LLAMA,
        {"framework": "nanotron", "activation_checkpointing": "selective"},
        "checkpointing_unsupported",
        "nanotron has no selective activation_checkpointing (only none, full)",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "activation_checkpointing": "selective", "recompute_modules": ["mlp"]},
        "checkpointing_unsupported",
        "fsdp2 does not recompute by module (mlp)",
    ),
    (
        LLAMA,
        megatron(8, 1, activation_checkpointing="full", recompute_modules=["mlp"]),
        "checkpointing_unsupported",
        "recompute_modules (mlp) need selective activation_checkpointing",
    ),
    (
        LLAMA,
        megatron(8, 1, activation_checkpointing="selective", recompute_modules=["mla_up_proj", "layernorm"]),
        "checkpointing_unsupported",
        "llama-3-70b has no mla_up_proj to recompute",
    ),
    (
        LLAMA,
        {"framework": "nanotron", "activation_checkpointing": "full", "checkpointed_layers": 79},
        "checkpointing_unsupported",
        "nanotron recomputes all layers or none with full activation_checkpointing, not checkpointed_layers 79 of "
        "a stage",
    ),
    (
        LLAMA,
        megatron(8, 1, activation_checkpointing="selective", recompute_modules=["mlp"], checkpointed_layers=40),
        "checkpointing_unsupported",
        "megatron-lm recomputes all layers or none with selective activation_checkpointing, not checkpointed_layers 40 "
        "of a stage",
    ),
    (
        LLAMA,
        megatron(8, 1, offload="activations", activation_checkpointing="selective"),
        "offload_unsupported",
        "megatron-lm offloads activations only without a pipeline and without recomputation, not with "
        "pipeline_parallel_size 1 and selective activation_checkpointing",
    ),
    (
        LLAMA,
        megatron(4, 2, offload="activations"),
        "offload_unsupported",
        "megatron-lm offloads activations only without a pipeline and without recomputation, not with "
        "pipeline_parallel_size 2 and none activation_checkpointing",
    ),
    (LLAMA, megatron(8, 1, offload="nvme"), "offload_unsupported", "megatron-lm has no nvme offload"),
    (
        LLAMA,
        {"framework": "deepspeed", "zero_stage": 2, "offload": "nvme"},
        "offload_unsupported",
        "deepspeed offloads nvme with zero_stage 3, not 2",
    ),
    (
        make_problem(
            "llama-3-70b",
            {"nodes": 8, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "host": {"memory_gib": 2048, "nvme_gib": 0}},
        ),
        {"framework": "deepspeed", "zero_stage": 3, "offload": "nvme"},
        "offload_needs_host",
        "offload nvme needs NVMe drives in the host (nvme_gib, nvme_read_gb_per_s)",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "tensor_parallel_size": 8, "zero_stage": 0},
        "zero_stage_unsupported",
        "fsdp2 replicates weights (zero_stage 0, data_parallel_size 8) only without tensor, pipeline and context "
        "parallelism",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "offload": "optimizer-and-parameters", "offload_fraction": 0.5},
        "offload_unsupported",
        "fsdp2 offloads optimizer-and-parameters with zero_stage 3 as a whole, not an offload_fraction of 0.5",
    ),
    (
        make_problem("llama-3-70b", h100(8), optimizer="adamw-8bit"),
        {"framework": "nanotron"},
        "optimizer_unsupported",
        "nanotron has no optimizer adamw-8bit (only adamw, adam, sgd, sgd-momentum)",
    ),
    (V100, {"framework": "fsdp2"}, "precision_unsupported_by_gpu", "v100-sxm2-32gb has no bf16"),
    (
        LLAMA,
        {"framework": "fsdp2", "precision": "fp8", "fp8_recipe": "mxfp8"},
        "precision_unsupported_by_gpu",
        "h100-sxm5-80gb (hopper) has no fp8_recipe mxfp8",
    ),
    (
        LLAMA,
        {"framework": "nanotron", "precision": "fp8"},
        "precision_unsupported_by_framework",
        "nanotron does not train in fp8",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "parameter_dtype": "fp8"},
        "precision_unsupported_by_framework",
        "parameter_dtype fp8 needs precision fp8, not bf16",
    ),
    (
        LLAMA,
        {"framework": "megatron-lm", "precision": "fp8", "parameter_dtype": "fp8"},
        "precision_unsupported_by_framework",
        "parameter_dtype fp8 needs zero_stage 1, 2, 3 on megatron-lm, not 0",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "parameter_dtype": "nf4"},
        "precision_unsupported_by_framework",
        "parameter_dtype nf4 needs fine_tuning with method qlora",
    ),
    (
        LLAMA,
        {"framework": "nanotron", "optimizer_state_dtype": "int8"},
        "precision_unsupported_by_framework",
        "nanotron has no 8-bit optimizer states",
    ),
    (
        LLAMA,
        {"framework": "fsdp2", "gradient_dtype": "int8"},
        "precision_unsupported_by_framework",
        "no framework keeps gradients in int8",
    ),
    (V100, {"framework": "fsdp2"}, "attention_unsupported", "v100-sxm2-32gb has no flash attention kernel"),
    (
        make_problem("llama-3-70b", h100(8), attention="eager"),
        {"framework": "fsdp2", "context_parallel_size": 2},
        "attention_unsupported",
        "all-gather context parallelism needs flash attention",
    ),
    (
        make_problem("llama-3-8b", h100(8), fine_tuning=FineTuning("lora")),
        {"framework": "nanotron"},
        "fine_tuning_unsupported",
        "nanotron has no lora",
    ),
    (
        make_problem("llama-3-8b", h100(8), fine_tuning=FineTuning("qlora")),
        {"framework": "fsdp2", "tensor_parallel_size": 2},
        "fine_tuning_unsupported",
        "qlora keeps weights in packed 4-bit blocks, which cannot be split (tensor_parallel_size 2)",
    ),
    (
        T5,
        megatron(1, 2),
        "pipeline_unsupported",
        "encoder-decoder models are not priced with a pipeline (pipeline_parallel_size 2)",
    ),
    (
        T5,
        {"framework": "fsdp2", "context_parallel_size": 2},
        "context_unsupported",
        "encoder-decoder models are not priced with context parallelism (context_parallel_size 2)",
    ),
    (
        make_problem("llama-3-8b", h100(8), fine_tuning=FineTuning("qlora")),
        {"framework": "fsdp2", "parameter_dtype": "fp32"},
        "precision_unsupported_by_framework",
        "qlora keeps what it does not quantise in 16 bit, not in parameter_dtype fp32",
    ),
]
