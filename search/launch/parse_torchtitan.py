"""A configuration of torchtitan read back: the Python function of 0.3, or the TOML file of the versions before.

The function is read, never run: calls of its config classes and assignments to `config.section.option`, as far as
their values are literals. What a base configuration sets that it starts from cannot be seen.

Source: as `torchtitan`; TOML: pytorch/torchtitan 0.2 `config/job_config.py`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any, Final

from search.launch.parsed import Keys, Parsed, error, present, syntax_error
from search.launch.torchtitan import DTYPES, OPTIMIZERS
from search.launch.torchtitan_refusals import INTERLEAVED, SCHEDULES

LARGEST_TEXT: Final = 200_000
"""Characters; the model parts of the deepest pipelines have some ten thousand."""
SECTIONS: Final = {
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "CompileConfig": "compile",
    "CheckpointManager.Config": "checkpoint",
    "OptimizersContainer.Config": "optimizer",
    "ParamGroupConfig": "optimizer",
    "ChunkedLossWrapper.Config": "loss",
}
"""Class → section of the same meaning in TOML."""
CHECKPOINTING: Final = {
    "FullAC.Config": "full",
    "SelectiveAC.Config": "selective",
    "MemoryBudgetAC.Config": "memory_budget",
}
CONVERTERS: Final = {
    "Float8LinearConverter.Config": ("fp8", "rowwise"),
    "MXFP8LinearConverter.Config": ("fp8", "mxfp8"),
    "NVFP4LinearConverter.Config": ("nvfp4", None),
}
"""Class → precision and recipe."""
UNREADABLE: Final = "…"
"""Stands for a value that is computed."""
SCHEDULE_NAMES: Final = {name: meaning for meaning, name in SCHEDULES.items()} | {INTERLEAVED: ("interleaved", None)}
INERT: Final = (
    *("job.", "metrics.", "profiling.", "profiler.", "lr_scheduler.", "comm.", "debug.", "validation.", "validator."),
    *("model.", "experimental.", "fault_tolerance.", "checkpoint.", "training.dataset", "training.dataset_path"),
    *("training.steps", "training.max_norm", "training.gc_freq", "training.seed", "training.deterministic"),
    *("optimizer.lr", "optimizer.eps", "optimizer.beta1", "optimizer.beta2", "optimizer.weight_decay"),
    *("optimizer.pattern", "optimizer.optimizer_kwargs.", "optimizer.optimizer_kwargs", "compile.components"),
    *("compile.backend", "parallelism.context_parallel_load_balancer", "parallelism.spmd_backend"),
    *("activation_checkpoint.preserve_rng_state", "activation_checkpoint.early_stop", "loss.loss_fn"),
)
AS_PRICED: Final = {
    "training.mixed_precision_reduce": ("float32",),
    "compile.enable_async_tensor_parallel": (False,),
    "parallelism.enable_async_tensor_parallel": (False,),
    "optimizer.implementation": ("foreach", "fused"),
    "activation_checkpoint.selective_ac_option": ("op",),
}


def parse(text: str) -> Parsed:
    """What the file says of strategy and workload.

    Raises:
        InvalidInput: The text is neither, or breaks a rule of torchtitan's; with the key, or the line.
    """
    if len(text) > LARGEST_TEXT:
        raise syntax_error("configuration of torchtitan", None, f"it is longer than {LARGEST_TEXT} characters")
    content = _from_python(text) if re.search(r"^\s*(def|from|import|class) ", text, re.MULTILINE) else _from_toml(text)
    keys = Keys(content, no_value=(UNREADABLE,))
    keys.need_sections("parallelism", "training", "activation_checkpoint", "compile", "optimizer")
    sizes = _sizes(keys)
    strategy = {
        "framework": "fsdp2",
        **sizes,
        **_sharding(keys, sizes),
        **_pipeline(keys, sizes.get("pipeline_parallel_size", 1)),
        **_numbers(keys),
        **_rest(keys),
    }
    workload = present(
        sequence_length=keys.size("training.seq_len"),
        global_batch_size=_positive(keys, "training.global_batch_size"),
        precision=strategy.get("precision"),
        optimizer=_optimizer(keys),
        fused_loss=keys.flag("loss.chunked"),
    )
    keys.ignore(*INERT)
    for key, values in AS_PRICED.items():
        keys.ignore_value(key, *values)
    return Parsed(strategy, workload, keys.unmapped())


def _from_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as found:
        raise syntax_error("TOML", None, str(found)) from None
    except RecursionError:
        raise syntax_error("TOML", None, "it is nested too deeply") from None


def _from_python(text: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text)
        content: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _add_call(content, node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                _add_assignment(content, node)
    except SyntaxError as found:
        raise syntax_error("Python", found.lineno, found.msg) from None
    except (ValueError, RecursionError, MemoryError) as found:
        raise syntax_error("Python", None, str(found) or "it is nested too deeply") from None
    return content


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *names] if isinstance(node, ast.Name) else names)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return UNREADABLE


def _class_of(node: ast.Call) -> str:
    """The last names of what is called: of `X.Config` both."""
    names = _dotted(node.func).split(".")
    return ".".join(names[-2:] if names[-1] == "Config" else names[-1:])


def _add_call(content: dict[str, Any], node: ast.Call) -> None:
    name = _class_of(node)
    values = {word.arg: _literal(word.value) for word in node.keywords if word.arg is not None}
    if name in CHECKPOINTING:
        content["activation_checkpoint"] = {"mode": CHECKPOINTING[name], **values}
    elif name in CONVERTERS:
        precision, recipe = CONVERTERS[name]
        content.setdefault("quantize", {}).update(present(precision=precision, recipe=recipe))
    elif name in SECTIONS:
        section = content.setdefault(SECTIONS[name], {})
        section.update({key: value for key, value in values.items() if key != "param_groups"})
        if name == "ChunkedLossWrapper.Config":
            section["chunked"] = True
    for word in node.keywords:
        if word.arg == "activation_checkpoint" and isinstance(word.value, ast.Constant) and word.value.value is None:
            content["activation_checkpoint"] = {"mode": "none"}


def _add_assignment(content: dict[str, Any], node: ast.Assign | ast.AnnAssign) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        names = _dotted(target).split(".")
        if len(names) == 3 and names[1] in SECTIONS.values() and node.value is not None:
            content.setdefault(names[1], {})[names[2]] = _literal(node.value)
        if len(names) == 2 and names[1] == "activation_checkpoint" and isinstance(node.value, ast.Constant):
            content["activation_checkpoint"] = {"mode": "none"}


def _positive(keys: Keys, key: str) -> int | None:
    """-1 stands for what follows from the rest."""
    value = keys.size(key, -1)
    return value if value is not None and value > 0 else None


def _sizes(keys: Keys) -> dict[str, Any]:
    section = "parallelism"
    shard, replicas = (
        _positive(keys, f"{section}.data_parallel_shard_degree"),
        keys.size(f"{section}.data_parallel_replicate_degree"),
    )
    piped = keys.size(f"{section}.pipeline_parallel_degree")
    parts = keys.size(f"{section}.context_parallel_degree")
    rotation = keys.choice(f"{section}.context_parallel_rotate_method", ("allgather", "alltoall"))
    kind = "ring" if rotation == "alltoall" else "all-gather"
    found = present(
        data_parallel_size=None if shard is None else shard * (replicas or 1),
        tensor_parallel_size=keys.size(f"{section}.tensor_parallel_degree"),
        pipeline_parallel_size=piped,
        context_parallel_size=parts,
        context_parallel_kind=kind if parts is not None and parts > 1 else None,
        expert_parallel_size=keys.size(f"{section}.expert_parallel_degree"),
        expert_tensor_parallel_size=keys.size(f"{section}.expert_tensor_parallel_degree"),
    )
    split = keys.flag(f"{section}.enable_sequence_parallel")
    if split is not None and found.get("tensor_parallel_size", 1) > 1:
        found["sequence_parallel"] = split
    if replicas is not None and not (shard == 1 and replicas > 1):
        found["data_parallel_replicate_size"] = replicas
    return found


def _sharding(keys: Keys, sizes: dict[str, Any]) -> dict[str, Any]:
    policy = keys.required_choice("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"))
    data = sizes.get("data_parallel_size")
    replicas = keys.size("parallelism.data_parallel_replicate_degree") or 1
    if data is not None and data == replicas > 1:
        return {"zero_stage": 0}
    piped = sizes.get("pipeline_parallel_size", 1) > 1
    return {"zero_stage": 2 if policy == "never" or (policy != "always" and piped) else 3}


def _pipeline(keys: Keys, stages: int) -> dict[str, Any]:
    name = keys.choice("parallelism.pipeline_parallel_schedule", tuple(SCHEDULE_NAMES))
    parts = keys.modules("parallelism.module_fqns_per_model_part")
    local = keys.size("training.local_batch_size")
    micro = keys.size("parallelism.pipeline_parallel_microbatch_size")
    if stages == 1:
        return present(micro_batch_size=local)
    found = present(micro_batch_size=micro)
    if parts is not None:
        chunks, rest = divmod(len(parts), stages)
        if rest or not chunks:
            rule = f"must have a multiple of {stages} parts, one or more for each stage, not {len(parts)}"
            raise error("parallelism.module_fqns_per_model_part", "fewer_layers_than_chunks", rule)
        found["virtual_pipeline_size"] = chunks
        found["layers_per_stage"] = [sum(module.startswith("layers.") for module in part) for part in parts]
    if name is not None:
        schedule, fixed = SCHEDULE_NAMES[name]
        found["pipeline_schedule"] = schedule
        found.setdefault("virtual_pipeline_size", fixed or 2)
    return found


def _numbers(keys: Keys) -> dict[str, Any]:
    """Dtypes and the precision of the converters, else of mixed precision."""
    names = {name: dtype for dtype, name in DTYPES.items()}
    stored = keys.choice("training.dtype", tuple(names))
    mixed = keys.choice("training.mixed_precision_param", tuple(names))
    quantised = keys.choice("quantize.precision", ("fp8", "nvfp4"))
    recipe = keys.choice("quantize.recipe", ("rowwise", "mxfp8"))
    for section in ("quantize.linear.float8", "float8"):
        named = keys.choice(f"{section}.recipe_name", ("tensorwise", "rowwise"))
        if named is not None:
            quantised, recipe = "fp8", named
    precision = quantised or (None if mixed is None else names[mixed])
    dtype = None if stored is None else names[stored]
    narrow = keys.choice("optimizer.implementation", ("fused_opt_states_bf16",)) is not None
    return present(
        precision=precision,
        fp8_recipe=recipe,
        parameter_dtype=dtype,
        gradient_dtype=dtype,
        optimizer_state_dtype="bf16" if narrow else dtype,
    )


def _rest(keys: Keys) -> dict[str, Any]:
    mode = keys.choice("activation_checkpoint.mode", ("none", "selective", "full"))
    offloads = keys.flag("training.enable_cpu_offload")
    plain = keys.flag("training.disable_cuda_graphs")
    return present(
        activation_checkpointing=mode,
        offload=None if offloads is None else "optimizer-and-parameters" if offloads else "none",
        compile=_compiles(keys),
        cuda_graphs=None if plain is None else not plain,
    )


def _compiles(keys: Keys) -> bool | None:
    found = [keys.flag(key) for key in ("compile.enable", "training.compile")]
    return next((value for value in found if value is not None), None)


def _optimizer(keys: Keys) -> str | None:
    names = {name: optimizer for optimizer, name in OPTIMIZERS.items()}
    found = [keys.choice(key, tuple(names)) for key in ("optimizer.optimizer_name", "optimizer.name")]
    return next((names[value] for value in found if value is not None), None)
