"""What each framework can run: kinds of parallelism, ZeRO stages, recomputation, offload."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.framework import Framework
from cost_models.frameworks import FRAMEWORKS
from cost_models.layouts import largest_stages
from cost_models.rules.view import Dimensions, Rule, View, dimensions
from cost_models.strategy import OFFLOADS, RECOMPUTE_MODULES, BoolColumn

EXPERT_MODULES: Final = ("moe_act", "moe")


def _pipeline(view: View) -> BoolColumn:
    return (view.pipeline > 1) & ~view.able(lambda framework: bool(framework.pipeline_zero_stages))


def _pipeline_says(view: View) -> str:
    size = view.value("pipeline_parallel_size")
    return f"{view.framework.name} has no pipeline parallelism (pipeline_parallel_size {size})"


def _zero(view: View) -> BoolColumn:
    return ~view.allows("zero_stage", lambda framework: framework.zero_stages)


def _zero_says(view: View) -> str:
    stages = ", ".join(map(str, view.framework.zero_stages))
    return f"{view.framework.name} has no zero_stage {view.value('zero_stage')} (only {stages})"


def _pipeline_zero(view: View) -> BoolColumn:
    has_pipeline = view.able(lambda framework: bool(framework.pipeline_zero_stages))
    together = view.allows("zero_stage", lambda framework: framework.pipeline_zero_stages)
    alone = view.allows("zero_stage", lambda framework: framework.zero_stages)
    return (view.pipeline > 1) & has_pipeline & alone & ~together


def _pipeline_zero_says(view: View) -> str:
    stages = ", ".join(map(str, view.framework.pipeline_zero_stages))
    return (
        f"{view.framework.name} runs a pipeline with zero_stage {stages}, not {view.value('zero_stage')} "
        f"(pipeline_parallel_size {view.value('pipeline_parallel_size')})"
    )


def _replicated_with_model_parallel(view: View) -> BoolColumn:
    split = (view.tensor > 1) | (view.pipeline > 1) | (view.context > 1)
    able = view.able(lambda framework: framework.replication_with_model_parallel)
    broken: BoolColumn = (view.table.zero_stage == 0) & (view.table.data_parallel_size > 1) & split & ~able
    return broken


def _replicated_with_model_parallel_says(view: View) -> str:
    return (
        f"{view.framework.name} replicates weights (zero_stage 0, data_parallel_size "
        f"{view.value('data_parallel_size')}) only without tensor, pipeline and context parallelism"
    )


def _replicate_zero(view: View) -> BoolColumn:
    able = view.able(lambda framework: framework.replicated_shards)
    return (
        (view.replicate > 1)
        & able
        & ~view.allows("zero_stage", lambda framework: framework.replicate_zero_stages)
        & view.allows("zero_stage", lambda framework: framework.zero_stages)
    )


def _replicate_zero_says(view: View) -> str:
    stages = ", ".join(map(str, view.framework.replicate_zero_stages))
    return (
        f"data_parallel_replicate_size {view.value('data_parallel_replicate_size')} on {view.framework.name} needs "
        f"zero_stage {stages}, not {view.value('zero_stage')}"
    )


def _secondary(view: View) -> BoolColumn:
    able = view.able(lambda framework: framework.secondary_shards)
    broken: BoolColumn = (view.secondary > 1) & ~(able & (view.table.zero_stage == 3))
    return broken


def _secondary_says(view: View) -> str:
    return (
        f"secondary_shard_size {view.value('secondary_shard_size')} (hpZ) needs deepspeed with zero_stage 3, not "
        f"{view.framework.name} with {view.value('zero_stage')}"
    )


def _tensor(view: View) -> BoolColumn:
    return (view.tensor > 1) & ~view.able(lambda framework: framework.tensor_parallel)


def _tensor_says(view: View) -> str:
    return (
        f"{view.framework.name} has no tensor parallelism (tensor_parallel_size {view.value('tensor_parallel_size')})"
    )


def _context(view: View) -> BoolColumn:
    return (view.context > 1) & ~view.allows(
        "context_parallel_kind", lambda framework: framework.context_parallel_kinds
    )


def _context_says(view: View) -> str:
    kinds = ", ".join(view.framework.context_parallel_kinds)
    kind = view.value("context_parallel_kind")
    has = f"has no {kind} context parallelism (only {kinds})" if kinds else "has no context parallelism"
    return f"{view.framework.name} {has} (context_parallel_size {view.value('context_parallel_size')})"


def _context_causal(view: View) -> BoolColumn | bool:
    # Megatron-Core (BERT and T5 take no context parallelism) and torch's ring pair early with late pieces: causal only.
    return not view.dimensions.causal and (
        (view.context > 1) & ~view.table.is_choice("context_parallel_kind", "all-to-all")
    )


def _context_causal_says(view: View) -> str:
    return (
        f"{view.value('context_parallel_kind')} context parallelism splits causal attention only; {view.model.name} "
        "attends in both directions"
    )


def _expert(view: View) -> BoolColumn:
    able = view.able(lambda framework: framework.expert_parallel) & bool(view.dimensions.experts)
    return (view.expert > 1) & ~able


def _expert_says(view: View) -> str:
    size = view.value("expert_parallel_size")
    if not view.dimensions.experts:
        return f"{view.model.name} has no experts for expert_parallel_size {size}"
    return f"{view.framework.name} has no expert parallelism (expert_parallel_size {size})"


def _expert_zero(view: View) -> BoolColumn | bool:
    if not view.dimensions.experts:
        return False
    able = view.able(lambda framework: framework.expert_parallel)
    return (view.expert > 1) & able & ~view.allows("zero_stage", lambda framework: framework.expert_zero_stages)


def _expert_zero_says(view: View) -> str:
    stages = ", ".join(map(str, view.framework.expert_zero_stages))
    return f"{view.framework.name} runs expert parallelism with zero_stage {stages}, not {view.value('zero_stage')}"


def _expert_tensor(view: View) -> BoolColumn | bool:
    if not view.dimensions.experts:
        return False
    able = view.able(lambda framework: framework.expert_tensor_parallel)
    bound = view.able(lambda framework: framework.expert_tensor_is_tensor_or_one)
    broken: BoolColumn = (view.expert_tensor > 1) & (~able | (bound & (view.expert_tensor != view.tensor)))
    return broken


def _expert_tensor_says(view: View) -> str:
    size = view.value("expert_tensor_parallel_size")
    if view.framework.expert_tensor_parallel:
        tensor = view.value("tensor_parallel_size")
        return f"{view.framework.name} needs expert_tensor_parallel_size 1 or {tensor} (the tensor size), not {size}"
    return f"{view.framework.name} does not split experts over tensor ranks (expert_tensor_parallel_size {size})"


def _experts_sequence(view: View) -> BoolColumn | bool:
    needs = view.able(lambda framework: framework.experts_need_sequence_parallel)
    return bool(view.dimensions.experts) and (needs & (view.tensor > 1) & ~view.table.sequence_parallel)


def _experts_sequence_says(view: View) -> str:
    return (
        f"{view.framework.name} trains experts with tensor_parallel_size {view.value('tensor_parallel_size')} "
        "only with sequence_parallel"
    )


def _sequence_tensor(view: View) -> BoolColumn:
    broken: BoolColumn = view.table.sequence_parallel & (view.tensor == 1)
    return broken


def _sequence_tensor_says(view: View) -> str:
    return f"sequence_parallel needs tensor_parallel_size > 1, not {view.value('tensor_parallel_size')}"


def _checkpointing(view: View) -> BoolColumn:
    return ~view.allows("activation_checkpointing", lambda framework: framework.activation_checkpointing)


def _checkpointing_says(view: View) -> str:
    modes = ", ".join(view.framework.activation_checkpointing)
    return (
        f"{view.framework.name} has no {view.value('activation_checkpointing')} activation_checkpointing (only {modes})"
    )


def _part_of_a_stage(view: View) -> BoolColumn:
    able = view.able(lambda framework: framework.checkpoints_in_part)
    table = view.table
    whole = largest_stages(table.layouts, table.layers_per_stage, table.pipeline_parallel_size)
    refused: BoolColumn = ~able & table.is_choice("activation_checkpointing", "full")
    # Modules, or operators, are recomputed by one setting of the whole model wherever there is such a mode.
    refused |= table.is_choice("activation_checkpointing", "selective")
    return refused & (table.checkpointed_layers < whole)


def _part_of_a_stage_says(view: View) -> str:
    return (
        f"{view.framework.name} recomputes all layers or none with {view.value('activation_checkpointing')} "
        f"activation_checkpointing, not checkpointed_layers {view.value('checkpointed_layers')} of a stage"
    )


def _bits(names: tuple[str, ...]) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def _modules(view: View) -> BoolColumn:
    known = view.number(lambda framework: _bits(framework.recompute_modules))
    selective = view.table.is_choice("activation_checkpointing", "selective")
    return (view.table.recompute_modules & ~np.where(selective, known, 0)) > 0


def _modules_say(view: View) -> str:
    modules = ", ".join(view.value("recompute_modules"))
    if view.framework.recompute_modules:
        return f"recompute_modules ({modules}) need selective activation_checkpointing"
    return f"{view.framework.name} does not recompute by module ({modules})"


def recomputable_modules(framework: Framework, model: ModelArchitecture) -> tuple[str, ...]:
    """What a framework can recompute by name of what a model has."""
    absent = _absent(dimensions(model))
    return tuple(name for name in framework.recompute_modules if name not in absent)


def _absent(dimensions: Dimensions) -> tuple[str, ...]:
    return (() if dimensions.latent else ("mla_up_proj",)) + (() if dimensions.experts else EXPERT_MODULES)


def _absent_modules(view: View) -> BoolColumn:
    return (view.table.recompute_modules & _bits(_absent(view.dimensions))) > 0


def _absent_modules_say(view: View) -> str:
    absent = ", ".join(name for name in view.value("recompute_modules") if name in _absent(view.dimensions))
    return f"{view.model.name} has no {absent} to recompute"


def _offload(view: View) -> BoolColumn:
    return ~view.allows("offload", lambda framework: ("none", *framework.offloads))


def _offload_says(view: View) -> str:
    return f"{view.framework.name} has no {view.value('offload')} offload"


def _offload_zero(view: View) -> BoolColumn:
    together = np.array(
        [
            [[stage in framework.offload_zero_stages.get(kind, ()) for stage in range(4)] for kind in OFFLOADS[1:]]
            for framework in FRAMEWORKS
        ]
    )
    known = view.allows("offload", lambda framework: framework.offloads)
    refused: BoolColumn = known & ~together[view.table.framework, view.table.offload - 1, view.table.zero_stage]
    return refused


def _offload_zero_says(view: View) -> str:
    offload = view.value("offload")
    stages = ", ".join(map(str, view.framework.offload_zero_stages[offload]))
    return f"{view.framework.name} offloads {offload} with zero_stage {stages}, not {view.value('zero_stage')}"


def _offload_part(view: View) -> BoolColumn:
    in_part = np.array(
        [
            [[kind == "none" or framework.offloads_in_part(kind, stage) for stage in range(4)] for kind in OFFLOADS]
            for framework in FRAMEWORKS
        ]
    )
    able = in_part[view.table.framework, view.table.offload, view.table.zero_stage]
    refused: BoolColumn = (view.table.offload_fraction < 1) & ~able
    return refused


def _offload_part_says(view: View) -> str:
    return (
        f"{view.framework.name} offloads {view.value('offload')} with zero_stage {view.value('zero_stage')} as a "
        f"whole, not an offload_fraction of {view.value('offload_fraction')}"
    )


def _activations_alone(view: View) -> BoolColumn:
    table = view.table
    others = (table.pipeline_parallel_size > 1) | ~table.is_choice("activation_checkpointing", "none")
    alone = view.able(lambda framework: framework.offloads_activations_alone)
    return table.is_choice("offload", "activations") & others & alone


def _activations_alone_say(view: View) -> str:
    return (
        f"{view.framework.name} offloads activations only without a pipeline and without recomputation, not with "
        f"pipeline_parallel_size {view.value('pipeline_parallel_size')} and "
        f"{view.value('activation_checkpointing')} activation_checkpointing"
    )


def _offload_host(view: View) -> BoolColumn | bool:
    # An unknown host is a warning: the strategy is possible, only nobody can tell whether it fits.
    host = view.cluster.host
    lacks_nvme = host is not None and (host.nvme_bytes == 0 or host.nvme_read_bytes_per_s == 0)
    return lacks_nvme and view.table.is_choice("offload", "nvme")


def _offload_host_says(view: View) -> str:
    return f"offload {view.value('offload')} needs NVMe drives in the host (nvme_gib, nvme_read_gb_per_s)"


def _optimizer(view: View) -> BoolColumn:
    optimizer = view.problem.workload.optimizer
    return ~view.able(lambda framework: optimizer in framework.optimizers)


def _optimizer_says(view: View) -> str:
    optimizers = ", ".join(view.framework.optimizers)
    return f"{view.framework.name} has no optimizer {view.problem.workload.optimizer} (only {optimizers})"


ABILITIES: Final = (
    Rule("pipeline_unsupported", _pipeline, _pipeline_says),
    Rule("zero_stage_unsupported", _zero, _zero_says),
    Rule("zero_stage_unsupported", _pipeline_zero, _pipeline_zero_says),
    Rule("zero_stage_unsupported", _replicated_with_model_parallel, _replicated_with_model_parallel_says),
    Rule("zero_stage_unsupported", _replicate_zero, _replicate_zero_says),
    Rule("zero_stage_unsupported", _secondary, _secondary_says),
    Rule("tensor_unsupported", _tensor, _tensor_says),
    Rule("context_unsupported", _context, _context_says),
    Rule("context_unsupported", _context_causal, _context_causal_says),
    Rule("expert_unsupported", _expert, _expert_says),
    Rule("expert_unsupported", _expert_zero, _expert_zero_says),
    Rule("expert_unsupported", _expert_tensor, _expert_tensor_says),
    Rule("experts_need_sequence_parallel", _experts_sequence, _experts_sequence_says),
    Rule("sequence_parallel_needs_tensor", _sequence_tensor, _sequence_tensor_says),
    Rule("checkpointing_unsupported", _checkpointing, _checkpointing_says),
    Rule("checkpointing_unsupported", _part_of_a_stage, _part_of_a_stage_says),
    Rule("checkpointing_unsupported", _modules, _modules_say),
    Rule("checkpointing_unsupported", _absent_modules, _absent_modules_say),
    Rule("offload_unsupported", _offload, _offload_says),
    Rule("offload_unsupported", _offload_zero, _offload_zero_says),
    Rule("offload_unsupported", _offload_part, _offload_part_says),
    Rule("offload_unsupported", _activations_alone, _activations_alone_say),
    Rule("optimizer_unsupported", _optimizer, _optimizer_says),
    Rule("offload_needs_host", _offload_host, _offload_host_says),
)
