"""Megatron-LM's arguments as the sections of Megatron-Bridge's ConfigContainer.

Source: NVIDIA-NeMo/Megatron-Bridge 0.3.1 `training/config.py` (sections), `training/mixed_precision.py`,
`models/gpt_provider.py`, `models/mla_provider.py`, `peft/lora.py`, `utils/instantiate_utils.py` (`_target_`, `_call_`);
fields that it inherits: Megatron-Core 0.16.1. Where it has another default than Megatron-LM the field is written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from search.launch.job import LaunchJob
from search.launch.megatron_arguments import uses_fsdp
from search.launch.megatron_words import Options

Section = dict[str, Any]

MODEL: Final[Mapping[str, str]] = {
    "num-experts": "num_moe_experts",
    "make-vocab-size-divisible-by": "make_vocab_size_divisible_by",
    "microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage",
    **{
        name: name.replace("-", "_")
        for name in (
            *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels"),
            *("num-query-groups", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"),
            *("qk-layernorm", "softmax-type", "normalization", "position-embedding-type", "add-qkv-bias"),
            *("vocab-size", "glu-linear-offset", "activation-func-clamp-value", "moe-router-topk"),
            *("moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-token-dispatcher-type"),
            "moe-enable-deepep",
            *("moe-router-load-balancing-type", "moe-aux-loss-coeff", "moe-router-dtype", "moe-permute-fusion"),
            *("moe-grouped-gemm", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
            *("pipeline-model-parallel-layout", "context-parallel-size", "cp-comm-type", "sequence-parallel"),
            *("expert-model-parallel-size", "expert-tensor-parallel-size", "seq-length", "attention-dropout"),
            *("hidden-dropout", "recompute-granularity", "recompute-method", "recompute-num-layers"),
            *("cross-entropy-fusion-impl", "cuda-graph-impl", "cuda-graph-scope", "cpu-offloading-num-layers"),
            *("init-model-with-meta-device", "transformer-impl"),
        )
    },
}
"""Options of Megatron-LM, without dashes → fields of the model provider."""
OPTIMIZER: Final = (
    *("optimizer", "sgd-momentum", "use-precision-aware-optimizer", "main-grads-dtype", "exp-avg-dtype"),
    *("exp-avg-sq-dtype", "optimizer-cpu-offload", "optimizer-offload-fraction", "overlap-cpu-optimizer-d2h-h2d"),
    *("use-distributed-optimizer", "overlap-param-gather"),
)
DATA: Final = (
    *("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "use-megatron-fsdp"),
    *("data-parallel-sharding-strategy", "fsdp-double-buffer", "num-distributed-optimizer-instances"),
)
_ATTENTION_BACKENDS: Final = {"flash": 1, "fused": 2, "unfused": 3}
"""Members of Megatron-Core's AttnBackend."""
_TYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
_ACTIVATIONS: Final = {
    "--swiglu": "torch.nn.functional.silu",
    "--quick-geglu": "megatron.core.fusions.fused_bias_geglu.quick_gelu",
    "--squared-relu": "megatron.core.activations.squared_relu",
}


def filled_in(name: str, *, number: bool = False) -> str:
    """A value from the environment, as OmegaConf puts it in when the file is read."""
    value = f"${{oc.env:{name}}}"
    return f"${{oc.decode:{value}}}" if number else value


def target(path: str, **fields: Any) -> Section:
    """An object that Bridge makes of its class."""
    return {"_target_": path, **fields}


def reference(path: str) -> Section:
    """A function or dtype itself."""
    return {"_target_": path, "_call_": False}


def model_section(job: LaunchJob, options: Options) -> Section:
    """The model provider: dimensions, parallelism, recomputation, kernels."""
    latent = "--multi-latent-attention" in options
    provider = "mla_provider.MLAModelProvider" if latent else "gpt_provider.GPTModelProvider"
    strategy = job.strategy
    section = target(f"megatron.bridge.models.{provider}", **_fields(options, MODEL))
    section |= {
        "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights" not in options,
        "should_pad_vocab": True,
        "add_bias_linear": "--disable-bias-linear" not in options,
        "gated_linear_unit": bool({"--swiglu", "--quick-geglu"} & set(options)),
        "activation_func": reference(_activation(options)),
        "bias_activation_fusion": strategy["kernels"] == "fused" and _has_fused_activation(options),
        "cross_entropy_loss_fusion": "--cross-entropy-loss-fusion" in options,
        "virtual_pipeline_model_parallel_size": _virtual(strategy),
        "overlap_p2p_comm": strategy["virtual_pipeline_size"] > 1 and strategy["overlap_communication"],
        "batch_p2p_comm": not (strategy["virtual_pipeline_size"] > 1 and strategy["overlap_communication"]),
        "attention_backend": _backend(options),
        "use_te_rng_tracker": "--te-rng-tracker" in options,
    }
    if latent:
        section["rope_type"] = "rope"
    return section | _lists(job, options)


def _lists(job: LaunchJob, options: Options) -> Section:
    """Options whose values are lists there."""
    found: Section = {}
    blocks = [job.model.blocks[kind] for kind in job.model.layer_blocks]
    if "--moe-layer-freq" in options:
        found["moe_layer_freq"] = [int(block.experts is not None) for block in blocks]
    if "--window-attn-skip-freq" in options:
        found["window_attn_skip_freq"] = [int(block.attention.window is not None) for block in blocks]
    if "--window-size" in options:
        # YAML has no tuples, and Transformer Engine compares with them.
        sizes = [int(part) for part in options["--window-size"][0].split(",")]
        found["window_size"] = target("builtins.tuple", _args_=[sizes])
    if "--recompute-modules" in options:
        found["recompute_modules"] = list(options["--recompute-modules"])
    if "--cpu-offloading-num-layers" in options:
        found["cpu_offloading"] = True
    return found


def mixed_precision_section(job: LaunchJob, options: Options) -> Section:
    """Dtypes of weights and gradients, fp8 and fp4."""
    kinds = [kind for kind in ("bf16", "fp16") if f"--{kind}" in options]
    dtype = reference(f"torch.{_TYPES[kinds[0] if kinds else 'fp32']}")
    section = target("megatron.bridge.training.mixed_precision.MixedPrecisionConfig")
    section |= {kinds[0] if kinds else "fp32": True, "params_dtype": dtype, "pipeline_dtype": dict(dtype)}
    section["grad_reduce_in_fp32"] = job.strategy["gradient_dtype"] == "fp32"
    names = {"fp8-format": "fp8", "fp4-format": "fp4", "fp8-recipe": "fp8_recipe", "fp4-recipe": "fp4_recipe"}
    names |= {name: name.replace("-", "_") for name in ("initial-loss-scale", "fp8-param-gather")}
    names["reuse-grad-buf-for-mxfp8-param-ag"] = "reuse_grad_buf_for_mxfp8_param_ag"
    return section | _fields(options, names)


def optimizer_section(job: LaunchJob, options: Options) -> Section:
    """The optimizer and where its states are."""
    section = target("megatron.bridge.training.config.OptimizerConfig")
    section |= _fields(options, {name: name.replace("-", "_") for name in OPTIMIZER})
    for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if name in section:
            section[name] = reference(f"torch.{_TYPES[section[name]]}")
    if job.workload.optimizer == "adam":
        section["decoupled_weight_decay"] = False
    section["lr"] = filled_in("LEARNING_RATE", number=True)
    return section


def data_parallel_section(job: LaunchJob, options: Options) -> Section:
    """Sharding over the data ranks, and what overlaps."""
    section = target("megatron.bridge.training.config.DistributedDataParallelConfig")
    section |= _fields(options, {name: name.replace("-", "_") for name in DATA})
    section["grad_reduce_in_fp32"] = job.strategy["gradient_dtype"] == "fp32"
    section["fp8_param_gather"] = job.strategy["parameter_dtype"] == "fp8"
    return section


def other_sections(job: LaunchJob, steps: int | None) -> dict[str, Section]:
    """Batch, checkpoints, data and tokenizer."""
    config = "megatron.bridge.training.config"
    fsdp = uses_fsdp(job.strategy)
    number = filled_in("TRAIN_ITERS", number=True) if steps is None else steps
    sections = {
        "train": target(
            f"{config}.TrainingConfig",
            micro_batch_size=job.strategy["micro_batch_size"],
            global_batch_size=job.workload.global_batch_size,
            train_iters=number,
        ),
        "scheduler": target(f"{config}.SchedulerConfig", lr_decay_style="cosine"),
        "dist": target(f"{config}.DistributedInitConfig", use_megatron_fsdp=fsdp),
        "rng": target(f"{config}.RNGConfig", te_rng_tracker=bool(job.strategy["cuda_graphs"])),
        "logger": target(f"{config}.LoggerConfig", log_interval=1, log_throughput=True),
        "tokenizer": target(
            "megatron.bridge.training.tokenizers.config.TokenizerConfig",
            tokenizer_type="HuggingFaceTokenizer",
            tokenizer_model=filled_in("TOKENIZER_MODEL"),
        ),
        "checkpoint": target(
            f"{config}.CheckpointConfig",
            save=filled_in("CHECKPOINTS"),
            load=filled_in("CHECKPOINTS"),
            save_interval=1000,
            ckpt_format="fsdp_dtensor" if fsdp else "torch_dist",
        ),
    }
    return {**sections, **_dataset(job, config)}


def _dataset(job: LaunchJob, config: str) -> dict[str, Section]:
    length = job.workload.sequence_length
    if job.workload.fine_tuning is not None:
        tuned = target(f"{config}.FinetuningDatasetConfig", dataset_root=filled_in("DATA_PATH"), seq_length=length)
        return {"dataset": tuned}
    data = target(
        f"{config}.GPTDatasetConfig",
        random_seed=1234,
        seq_length=length,
        blend=[[filled_in("DATA_PATH")], None],
        split="99,1,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        dataloader_type="single",
    )
    return {"dataset": data}


def _fields(options: Options, names: Mapping[str, str]) -> Section:
    return {field: _value(options[f"--{name}"]) for name, field in names.items() if f"--{name}" in options}


def _value(values: tuple[str, ...]) -> Any:
    if not values:
        return True
    (text,) = values
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _has_fused_activation(options: Options) -> bool:
    """Of gated activations, and of a GELU with its bias."""
    gated = bool({"--swiglu", "--quick-geglu"} & set(options))
    return gated or not {"--squared-relu", "--disable-bias-linear"} & set(options)


def _activation(options: Options) -> str:
    return next((path for flag, path in _ACTIVATIONS.items() if flag in options), "torch.nn.functional.gelu")


def _virtual(strategy: Mapping[str, Any]) -> int | None:
    return None if strategy["virtual_pipeline_size"] == 1 else int(strategy["virtual_pipeline_size"])


def _backend(options: Options) -> Section:
    member = _ATTENTION_BACKENDS[options["--attention-backend"][0]]
    return target("megatron.core.transformer.enums.AttnBackend", _args_=[member])
