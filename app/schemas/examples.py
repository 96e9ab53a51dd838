"""Published configurations that the examples in the documentation are made of."""

from __future__ import annotations

from typing import Any, Final

MODEL: Final[dict[str, Any]] = {"preset": "llama-3-70b"}
CLUSTER: Final[dict[str, Any]] = {"preset": "dgx-h100", "nodes": 8}
HF_MODEL: Final[dict[str, Any]] = {
    "hf_config": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
    }
}
"""The config.json of meta-llama/Meta-Llama-3-8B."""
EXPLICIT_MODEL: Final[dict[str, Any]] = {
    "architecture": {
        "layers": 96,
        "hidden_size": 12288,
        "attention_heads": 96,
        "key_value_heads": 96,
        "ffn_hidden_size": 49152,
        "gated_mlp": False,
        "vocab_size": 51200,
        "tied_embeddings": True,
        "position_embeddings": "learned",
        "max_position_embeddings": 2048,
    }
}
"""GPT-3 175B as Megatron-LM trains it (arXiv 2205.05198, table 3)."""
EXPLICIT_CLUSTER: Final[dict[str, Any]] = {
    "name": "prod-a",
    "nodes": 8,
    "gpus_per_node": 8,
    "gpu": "h100-sxm5-80gb",
    "nvlink_domain_gpus": 8,
    "intra_node": {"kind": "nvlink", "gb_per_s": 450, "peer_to_peer": True},
    "inter_node": {"kind": "infiniband", "gbps_per_gpu": 400, "oversubscription": 1.0},
    "host": {"memory_gib": 2048, "memory_gb_per_s": 600, "cpu_cores": 112, "pcie_gb_per_s": 55},
    "usd_per_gpu_hour": 2.5,
}
TOPOLOGY: Final = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV4     SYS     SYS     0-23
GPU1    NV4      X      SYS     SYS     0-23
GPU2    SYS     SYS      X      NV4     24-47
GPU3    SYS     SYS     NV4      X      24-47
"""
WORKLOAD: Final[dict[str, Any]] = {
    "sequence_length": 8192,
    "global_batch_size": 128,
    "precision": "bf16",
    "optimizer": "adamw",
    "attention": "flash",
    "training_tokens": 1.0e12,
}
MEGATRON_STRATEGY: Final[dict[str, Any]] = {
    "framework": "megatron-lm",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 4,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "activation_checkpointing": "selective",
}
FSDP_STRATEGY: Final[dict[str, Any]] = {
    "framework": "fsdp2",
    "zero_stage": 3,
    "micro_batch_size": 1,
    "activation_checkpointing": "full",
}
ESTIMATE: Final[dict[str, Any]] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": WORKLOAD,
    "strategies": [MEGATRON_STRATEGY, FSDP_STRATEGY],
    "memory_confidence": 0.9,
    "detail": "full",
}
SEARCH: Final[dict[str, Any]] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": WORKLOAD,
    "frameworks": ["megatron-lm", "deepspeed", "fsdp2"],
    "objective": "step_time",
    "memory_confidence": 0.9,
    "budget": {"trials": 128, "seconds": 10},
    "plans": 10,
    "seed": 0,
    "labels": {"team": "a"},
}
EXPLICIT_ESTIMATE: Final[dict[str, Any]] = {
    "model": EXPLICIT_MODEL,
    "cluster": {"nodes": 8, "gpus_per_node": 8, "gpu": "a100-sxm4-80gb"},
    "workload": {"sequence_length": 2048, "global_batch_size": 64, "precision": "fp16"},
    "strategies": [
        {
            "framework": "megatron-lm",
            "tensor_parallel_size": 8,
            "pipeline_parallel_size": 8,
            "virtual_pipeline_size": 3,
            "activation_checkpointing": "selective",
        }
    ],
    "detail": "summary",
}
"""GPT-3 175B on 64 A100 (arXiv 2205.05198, table 3)."""
MEASURED_SEARCH: Final[dict[str, Any]] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": {"sequence_length": 8192, "global_batch_size": 128},
    "mode": "measured",
    "budget": {"trials": 15},
}
"""Then `POST searches/{id}/trials` asks for strategies to run."""
COST_SEARCH: Final[dict[str, Any]] = {
    "model": HF_MODEL,
    "cluster": EXPLICIT_CLUSTER,
    "workload": WORKLOAD,
    "objective": "cost",
    "space": {"tensor_parallel_size": [1, 2, 4, 8], "zero_stage": [1, 3]},
    "nodes_options": [4, 8],
    "current": FSDP_STRATEGY,
}
RUN: Final[dict[str, Any]] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
    "workload": {"sequence_length": 8192, "global_batch_size": 8, "precision": "bf16"},
    "strategy": {
        "framework": "fsdp2",
        "zero_stage": 3,
        "micro_batch_size": 1,
        "activation_checkpointing": "selective",
        "compile": True,
    },
    "measured": {"peak_reserved_gib": 47.65},
    "software": {"framework_version": "torchtitan"},
    "source": "torchao",
    "source_address": "https://github.com/pytorch/ao/blob/36027d82d1ad9949597ea16002ff4940374b1b94/docs/source/workflows/training.md",
    "family": "torchtitan",
    "model_name": "Llama3-8B",
}
"""Llama 3.1 8B on eight H100 (docs/source/workflows/training.md of pytorch/ao)."""
RUN_OUT_OF_MEMORY: Final[dict[str, Any]] = {
    "key": "litgpt/llama-2-7b/a100-40gb/lora/micro-batch-4",
    "model": {"preset": "llama-2-7b"},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "a100-sxm4-40gb"},
    "workload": {
        "sequence_length": 1304,
        "global_batch_size": 128,
        "precision": "bf16",
        "attention": "flash",
        "fine_tuning": {"method": "lora", "rank": 8, "target": "attention-qv"},
    },
    "strategy": {
        "framework": "ddp",
        "parameter_dtype": "bf16",
        "micro_batch_size": 4,
        "activation_checkpointing": "none",
        "kernels": "eager",
    },
    "measured": {"out_of_memory": True},
    "source": "litgpt",
    "source_address": "https://github.com/Lightning-AI/litgpt/blob/26857050fe3ff627cd714fe92f5838f51a3d5efa/tutorials/resource-tables.md",
    "family": "litgpt",
    "unknown": ["optimizer"],
}
"""Llama 2 7B with adapters on one A100 of 40 GB (tutorials/resource-tables.md of LitGPT)."""
MICRO_BATCH: Final[dict[str, Any]] = {
    "model": HF_MODEL,
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64, "precision": "bf16", "optimizer": "adamw"},
    "strategy": {
        "framework": "fsdp2",
        "zero_stage": 3,
        "micro_batch_size": 1,
        "activation_checkpointing": "full",
        "compile": True,
    },
    "observed": [
        {"seconds": 30, "allocated_gib": 20.1, "reserved_gib": 24.4, "device_gib": 26.0},
        {"seconds": 60, "allocated_gib": 20.4, "reserved_gib": 24.9, "device_gib": 26.5},
        {"seconds": 90, "allocated_gib": 20.4, "reserved_gib": 24.9, "device_gib": None},
        {"seconds": 120, "allocated_gib": 20.4, "reserved_gib": 24.9, "device_gib": 26.5},
    ],
    "memory_confidence": 0.9,
}
PROBLEM: Final[dict[str, Any]] = {
    "type": "urn:paraplan:problem:invalid-request",
    "title": "The request breaks a rule",
    "status": 422,
    "detail": "body.cluster.gpu: unknown GPU",
    "instance": "/v1/searches",
    "errors": [{"loc": ["body", "cluster", "gpu"], "code": "unknown_gpu", "message": "unknown GPU"}],
}
PARSE_DEEPSPEED: Final[dict[str, Any]] = {
    "format": "deepspeed",
    "content": '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}',
    "cluster": {"preset": "dgx-h100", "nodes": 1},
}
PARSE_MEGATRON: Final[dict[str, Any]] = {
    "format": "megatron-lm",
    "content": "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --swiglu --ffn-hidden-size 28672 "
    "--vocab-size 128256 --seq-length 8192 --tensor-model-parallel-size 8 --sequence-parallel "
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
}
