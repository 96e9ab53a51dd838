"""Megatron-LM's arguments read back: those written here, and those of anybody's launch script.

What is left out has Megatron-LM's default, which is as good as written: the strategy that comes out is whole, but for
what only the number of GPUs or of layers tells. Source: as `megatron_words`; torch FSDP2 under Megatron-LM is the
framework fsdp2.
"""

from __future__ import annotations

from typing import Any, Final

from cost_models.errors import InvalidInput
from cost_models.strategy import RECOMPUTE_MODULES
from search.launch.megatron_layout import read_layout
from search.launch.megatron_model_parse import read_architecture
from search.launch.megatron_options import MegatronOptions
from search.launch.megatron_words import CONTEXT_KINDS, FP8_FORMATS, MUONS, SHARDING, STATE_DTYPES
from search.launch.parsed import Parsed
from search.launch.shell_text import read_shell

_DTYPES: Final = ("fp32", "fp16", "bf16", "fp8")
_ALLOCATORS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
DROPOUT: Final = 0.1
"""Megatron-LM's default of both kinds."""
TOPK: Final = 2


def parse(text: str) -> Parsed:
    """What the arguments say of strategy, workload and model.

    Raises:
        InvalidInput: Text that is no script, a value that Megatron-LM refuses, degrees that do not multiply.
    """
    shell = read_shell(text)
    options = MegatronOptions(shell.options)
    strategy: dict[str, Any] = {
        **_sharding(options),
        **_degrees(options),
        **read_layout(options),
        **_experts(options),
        **_precision(options),
        **_offload(options),
        **_runtime(options),
    }
    strategy |= _recomputation(options, strategy)
    strategy["expandable_segments"] = any("expandable_segments:True" in shell.variable(name) for name in _ALLOCATORS)
    workload = _workload(options, strategy)
    model, unmapped = read_architecture(options), options.unmapped()
    if len(unmapped) == len(shell.options):
        raise InvalidInput(("content",), "no_arguments", "holds no argument that Megatron-LM knows")
    return Parsed(strategy=strategy, workload=workload, unmapped=unmapped, model=model)


def _sharding(options: MegatronOptions) -> dict[str, Any]:
    framework, stage = "megatron-lm", 1 if options.flag("--use-distributed-optimizer") else 0
    kinds = ("no_shard", "optim", *SHARDING.values())
    kind = options.choice("--data-parallel-sharding-strategy", kinds, "no_shard")
    if options.flag("--use-torch-fsdp2"):
        framework, stage = "fsdp2", 2 if options.flag("--torch-fsdp2-no-reshard-after-forward") else 3
    elif options.flag("--use-megatron-fsdp"):
        stage = kinds.index(kind)
    elif options.choice("--optimizer", ("adam", "sgd", *MUONS.values()), "adam") == MUONS[1]:
        stage = 1
    return {
        "framework": framework,
        "zero_stage": stage,
        "data_parallel_replicate_size": options.size("--num-distributed-optimizer-instances", 1),
        "secondary_shard_size": 1,
    }


def _degrees(options: MegatronOptions) -> dict[str, Any]:
    tensor = options.size("--tensor-model-parallel-size", 1)
    context = options.size("--context-parallel-size", 1)
    pipeline = options.size("--pipeline-model-parallel-size", 1)
    kinds = {"allgather": "all-gather", **{word: kind for kind, word in CONTEXT_KINDS.items()}}
    degrees: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "context_parallel_size": context,
        "pipeline_parallel_size": pipeline,
        "sequence_parallel": options.flag("--sequence-parallel") and tensor > 1,
    }
    kind = kinds.get(options.text("--cp-comm-type", "p2p"))
    if kind is None:
        options.leave("--cp-comm-type")
    else:
        degrees["context_parallel_kind"] = kind
    gpus = options.gpus()
    if gpus is not None:
        taken = tensor * context * pipeline
        if gpus % taken:
            raise options.error(
                "--nnodes", "degrees_do_not_multiply_to_gpus", f"{gpus} GPUs are no multiple of {taken}"
            )
        degrees["data_parallel_size"] = gpus // taken
    if "--micro-batch-size" in options:
        degrees["micro_batch_size"] = options.size("--micro-batch-size", 1)
    return degrees


def _experts(options: MegatronOptions) -> dict[str, Any]:
    tensor = options.size("--tensor-model-parallel-size", 1)
    return {
        "expert_parallel_size": options.size("--expert-model-parallel-size", 1),
        "expert_tensor_parallel_size": options.size("--expert-tensor-parallel-size", tensor),
    }


def _precision(options: MegatronOptions) -> dict[str, Any]:
    base = "bf16" if options.flag("--bf16") else "fp16" if options.flag("--fp16") else "fp32"
    precision, recipe, stored = base, None, base
    keeps_fp8 = options.flag("--fp8-param-gather")
    if "--fp8-format" in options:
        options.choice("--fp8-format", ("e4m3", "hybrid"), "hybrid")
        found = options.choice("--fp8-recipe", (*FP8_FORMATS, "delayed", "custom"), "delayed")
        # Delayed scaling has one scale a tensor too.
        precision, recipe = "fp8", found if found in FP8_FORMATS else "tensorwise"
        stored = "fp8" if keeps_fp8 else base
        if found == "custom":
            options.leave("--fp8-recipe")
    elif "--fp4-format" in options:
        options.choice("--fp4-format", ("e2m1",), "e2m1")
        precision = "nvfp4"
    return {
        "precision": precision,
        "fp8_recipe": recipe,
        "parameter_dtype": stored,
        "gradient_dtype": _gradients(options, base),
        "optimizer_state_dtype": _states(options),
    }


def _gradients(options: MegatronOptions, base: str) -> str:
    wide = options.flag("--accumulate-allreduce-grads-in-fp32")
    narrow = options.flag("--grad-reduce-in-bf16")
    main = options.choice("--main-grads-dtype", ("fp32", "bf16"), "fp32")
    if base == "bf16":
        return "bf16" if narrow or (main == "bf16" and not wide) else "fp32"
    return "fp16" if base == "fp16" and not wide else "fp32"


def _states(options: MegatronOptions) -> str:
    aware = options.flag("--use-precision-aware-optimizer")
    first = options.choice("--exp-avg-dtype", _DTYPES, "fp32")
    second = options.choice("--exp-avg-sq-dtype", _DTYPES, "fp32")
    if not aware:
        return "fp32"
    if first != second:
        options.leave("--exp-avg-sq-dtype")
    return next((dtype for dtype, word in STATE_DTYPES.items() if word == first), "fp32")


def _offload(options: MegatronOptions) -> dict[str, Any]:
    fraction = options.number("--optimizer-offload-fraction", 1.0)
    layers = options.size("--cpu-offloading-num-layers", 0, smallest=0)
    of_model = options.size("--num-layers", 0, smallest=0)
    if options.flag("--optimizer-cpu-offload"):
        return {"offload": "optimizer", "offload_fraction": fraction}
    if layers:
        share = 1.0 if not of_model or layers >= of_model - 1 else layers / of_model
        return {"offload": "activations", "offload_fraction": share}
    return {"offload": "none", "offload_fraction": 1.0}


def _runtime(options: MegatronOptions) -> dict[str, Any]:
    gated = options.flag("--swiglu")
    plain = options.flag("--no-bias-swiglu-fusion"), options.flag("--no-bias-gelu-fusion")
    graphs = options.choice("--cuda-graph-impl", ("none", "local", "transformer_engine"), "none") != "none"
    if options.choice("--transformer-impl", ("local", "transformer_engine"), "transformer_engine") == "local":
        options.leave("--transformer-impl")
    overlap, gathers = options.flag("--overlap-grad-reduce"), options.flag("--overlap-param-gather")
    return {
        "overlap_communication": overlap or gathers,
        "compile": False,
        "kernels": "partly-fused" if plain[0 if gated else 1] else "fused",
        "cuda_graphs": graphs or options.flag("--enable-cuda-graph") or options.flag("--external-cuda-graph"),
        "gradient_as_bucket_view": True,
        "checkpoint_loading": "sharded",
        "checkpoint_saving": "sharded",
    }


def _recomputation(options: MegatronOptions, strategy: dict[str, Any]) -> dict[str, Any]:
    mode = options.choice("--recompute-granularity", ("full", "selective"), "none")
    method = options.choice("--recompute-method", ("uniform", "block"), "none")
    if options.flag("--recompute-activations"):
        mode = "selective"
    named = options.texts("--recompute-modules")
    modules: list[str] = []
    if mode == "selective":
        wanted = ("core_attn",) if named is None else named
        modules = [module for module in RECOMPUTE_MODULES if module in wanted]
        if set(wanted) - set(modules):
            options.leave("--recompute-modules")
    number = options.size("--recompute-num-layers", 1)
    if method == "uniform" and number > 1:
        options.leave("--recompute-num-layers")  # the inputs of groups of layers are kept, not of each
    found: dict[str, Any] = {"activation_checkpointing": mode, "recompute_modules": modules}
    layers = _recomputed_layers(strategy, number if mode == "full" and method == "block" else None, mode)
    return found if layers is None else {**found, "checkpointed_layers": layers}


def _recomputed_layers(strategy: dict[str, Any], number: int | None, mode: str) -> int | None:
    """Of the stage that recomputes most; None: the layout is not known."""
    if mode == "none":
        return 0
    if "layers_per_stage" not in strategy:
        return None
    stages, chunks = strategy["pipeline_parallel_size"], strategy["layers_per_stage"]
    return int(
        max(
            sum(layers if number is None else min(number, layers) for layers in chunks[stage::stages])
            for stage in range(stages)
        )
    )


def _workload(options: MegatronOptions, strategy: dict[str, Any]) -> dict[str, Any]:
    workload: dict[str, Any] = {"precision": strategy["precision"], "optimizer": _optimizer(options, strategy)}
    if "--seq-length" in options:
        workload["sequence_length"] = options.size("--seq-length", 1)
    data, micro = strategy.get("data_parallel_size"), strategy.get("micro_batch_size")
    if "--global-batch-size" in options:
        workload["global_batch_size"] = options.size("--global-batch-size", 1)
    elif data and micro:
        workload["global_batch_size"] = data * micro
    hidden, attention = (options.number(f"--{kind}-dropout", DROPOUT) for kind in ("hidden", "attention"))
    workload["dropout"] = hidden
    if hidden != attention:
        options.leave("--attention-dropout")
    fused = options.flag("--cross-entropy-loss-fusion")
    kind = options.choice("--cross-entropy-fusion-impl", ("native", "te"), "native")
    workload["fused_loss"] = fused and kind == "te"
    if fused and kind == "native":
        options.leave("--cross-entropy-loss-fusion")
    workload["attention"] = _attention(options)
    return workload | _length(options, workload)


def _optimizer(options: MegatronOptions, strategy: dict[str, Any]) -> str:
    name = options.choice("--optimizer", ("adam", "sgd", *MUONS.values()), "adam")
    momentum, decay = options.number("--sgd-momentum", 0.9), options.number("--weight-decay", 0.01, largest=1e9)
    if name == "sgd":
        return "sgd-momentum" if momentum else "sgd"
    if name in MUONS.values():
        return "muon"
    if strategy["optimizer_state_dtype"] == "int8":
        return "adamw-8bit"
    return "adamw" if decay else "adam"


def _attention(options: MegatronOptions) -> str:
    backend = options.choice("--attention-backend", ("flash", "fused", "unfused", "local", "auto"), "auto")
    flash = options.flag("--use-flash-attn")
    return "eager" if backend in ("unfused", "local") and not flash else "flash"


def _length(options: MegatronOptions, workload: dict[str, Any]) -> dict[str, Any]:
    """Tokens of the whole training; what a person fills in later is not there yet."""
    steps, samples = options.known_size("--train-iters"), options.known_size("--train-samples")
    sequence, batch = workload.get("sequence_length"), workload.get("global_batch_size")
    if steps is not None and sequence and batch:
        return {"training_tokens": float(steps * batch * sequence)}
    return {"training_tokens": float(samples * sequence)} if samples is not None and sequence else {}
