"""What the training scripts for Hugging Face models read beside the engine's own file, and which models they train.

Source: transformers 5.24 `PreTrainedModel.from_pretrained` (attn_implementation, dtype, device_map), PEFT `LoraConfig`,
Liger-Kernel `_apply_liger_kernel_to_instance`.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any, Final

from search.launch.job import LaunchFile, LaunchJob

SETTINGS_PATH: Final = "settings.json"
MODEL_PATH: Final = "model.py"
SCRIPT_PATH: Final = "train.py"
ATTENTION: Final = {"flash": "flash_attention_2", "eager": "eager"}
LORA_TARGETS: Final = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "attention-qv": ["q_proj", "v_proj"],
    "all-linear": "all-linear",
}
"""In PEFT's words; names of the Llama family and those that copied it."""
SAVED_MODULES: Final = {"embedding": "embed_tokens", "head": "lm_head"}
MASKED: Final = ("bert", "roberta")
STORED: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "fp32": "fp32"}
"""precision → dtype of weights that are stored in what they are computed in."""
FP32_ADAPTERS: Final = ("ddp",)
"""Frameworks whose adapters stay in PEFT's fp32; ZeRO and FSDP want weights of one dtype together."""
NOTES: Final = (
    "MODEL is a folder (or name) with the planned model's config.json and weights, DATA a file of token ids (uint32, "
    "one after another), LEARNING_RATE the highest learning rate.",
)
ARGUMENTS: Final = (
    *("--model", "${MODEL:?folder or name of the Hugging Face model}"),
    *("--data", "${DATA:?file of token ids}"),
    *("--learning-rate", "${LEARNING_RATE:?highest learning rate}"),
)


def model_refusals(job: LaunchJob) -> dict[str, str]:
    """The scripts predict the next token, and nothing else."""
    model = job.model
    if model.is_classifier or model.is_encoder_decoder or model.model_type in MASKED:
        return {"model": f"the script trains causal language models, and {model.name} is none"}
    return {}


def steps(job: LaunchJob) -> int | None:
    """Optimizer steps for the training tokens; None: not said."""
    tokens = job.workload.training_tokens
    return None if tokens is None else math.ceil(tokens / job.workload.tokens)


def attention(job: LaunchJob) -> str:
    """`attn_implementation`; FlashAttention has no fp32 kernels, PyTorch's memory-efficient ones stand in for it."""
    if job.workload.attention == "flash" and job.strategy["precision"] == "fp32":
        return "sdpa"
    return ATTENTION[job.workload.attention]


def script_refusals(job: LaunchJob) -> dict[str, str]:
    """Host memory for activations: layers keep what autograd saves there, recomputed ones save nothing that could."""
    strategy = job.strategy
    if strategy["offload"] == "activations" and strategy["activation_checkpointing"] == "full":
        return {"offload": "inputs of recomputed layers stay on the device (torch.utils.checkpoint keeps them itself)"}
    return {}


def step_words(job: LaunchJob) -> tuple[str, ...]:
    """The number of steps is the plan's where it has one."""
    return () if job.workload.training_tokens is not None else ("--steps", "${STEPS:?number of optimizer steps}")


def adapters(job: LaunchJob) -> dict[str, Any] | None:
    """Arguments of PEFT's LoraConfig, and whether the frozen weights are NF4."""
    tuning = job.workload.fine_tuning
    if tuning is None:
        return None
    return {
        "nf4": tuning.method == "qlora",
        "fp32": job.strategy["framework"] in FP32_ADAPTERS,
        "r": tuning.rank,
        "target_modules": LORA_TARGETS[tuning.target],
        "modules_to_save": [SAVED_MODULES[name] for name in tuning.modules_to_save],
    }


def offloaded_layers(job: LaunchJob) -> int:
    """Layers whose activations wait in host memory."""
    if job.strategy["offload"] != "activations":
        return 0
    fraction: float = job.strategy["offload_fraction"]
    return round(job.model.layers * fraction)


def settings(job: LaunchJob) -> dict[str, Any]:
    """What `model.py` and `train.py` read."""
    strategy, workload = job.strategy, job.workload
    full = strategy["activation_checkpointing"] == "full"
    return {
        "sequence_length": workload.sequence_length,
        "micro_batch_size": strategy["micro_batch_size"],
        "gradient_accumulation_steps": job.micro_batches,
        "steps": steps(job),
        "optimizer": workload.optimizer,
        "precision": strategy["precision"],
        "parameter_dtype": strategy["parameter_dtype"],
        "fp8_recipe": strategy["fp8_recipe"] if strategy["precision"] == "fp8" else None,
        "attention": attention(job),
        "dropout": workload.dropout,
        "kernels": strategy["kernels"],
        "fused_loss": workload.fused_loss,
        "checkpointed_layers": strategy["checkpointed_layers"] if full else 0,
        "offloaded_layers": offloaded_layers(job),
        "compile": strategy["compile"],
        "checkpoint_loading": strategy["checkpoint_loading"],
        "checkpoint_saving": strategy["checkpoint_saving"],
        "context_parallel_size": strategy["context_parallel_size"],
        "tensor_parallel_size": strategy["tensor_parallel_size"],
        "adapters": adapters(job),
    }


def script_files(job: LaunchJob, script: str, **more: Any) -> tuple[LaunchFile, ...]:
    """`settings.json` with what is common and `more`, `model.py`, and `train.py` from the template of that name."""
    content = json.dumps({**settings(job), **more}, indent=2) + "\n"
    return (
        LaunchFile(SETTINGS_PATH, content),
        LaunchFile(MODEL_PATH, template("model")),
        LaunchFile(SCRIPT_PATH, template(script)),
    )


def template(name: str) -> str:
    """A file of `scripts`, as it is handed out."""
    return (files("search.launch") / "scripts" / f"{name}.py.txt").read_text(encoding="utf-8")
