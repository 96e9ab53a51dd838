"""Weights, gradients and states against ZeRO's table, LoRA's counts and BLOOM's checkpoint."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from cost_models.memory.lasting import lasting_bytes
from cost_models.memory.states import sharding, state_bytes, state_bytes_per_weight
from cost_models.memory.weights import LocalWeights, adapter_split, end_weights, local_weights
from cost_models.stages import all_stages
from cost_models.workload import FineTuning
from tests.cost_models.problems import a100, h100, make_problem, megatron, resolved

DATA = Path(__file__).parents[2] / "data"
GB = 1e9


def zero_table() -> list[dict[str, str]]:
    lines = (DATA / "memory_zero_table1.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("row", zero_table(), ids=lambda row: f"{row['parameters']}-{row['ranks']}")
def test_zero_stages_shard_as_published(row: dict[str, str]) -> None:
    ranks = int(row["ranks"])
    cluster = {"nodes": max(ranks // 8, 1), "gpus_per_node": min(ranks, 8), "gpu": "v100-sxm2-32gb"}
    problem = make_problem("gpt-2-xl", cluster, global_batch_size=ranks, precision="fp16", attention="eager")
    table = resolved(problem, *({"framework": "deepspeed", "zero_stage": stage} for stage in (1, 2, 3)))
    stages = all_stages(problem.model, table)
    weights = np.full(3, float(row["parameters"]))
    none = np.zeros(3)
    found = state_bytes(
        problem, table, stages, LocalWeights(weights, none, weights, none, weights), sharding(problem, table)
    )
    total = (found.parameters + found.gradients + found.optimizer_states) / GB
    published = [float(row[f"stage_{stage}_gb"]) for stage in (1, 2, 3)]
    # The table is printed with three digits.
    np.testing.assert_allclose(total, published, rtol=0.02, atol=0.05)


def test_bloom_checkpoint_holds_weights_masters_and_moments() -> None:
    # BLOOM (arXiv 2211.05100): 329 GB (2^30) of bf16 weights, 2.3 TB (2^40) with fp32 masters and Adam states.
    problem = make_problem("bloom-176b", a100(48))
    table = resolved(problem, megatron(4, 12))
    weights = problem.model.parameters
    states = weights * (2 + state_bytes_per_weight(problem, table)[0])
    assert weights * 2 / 2**30 == pytest.approx(329, rel=0.01)
    assert states / 2**40 == pytest.approx(2.3, rel=0.03)


@pytest.mark.parametrize(("rank", "published"), [(1, 4.7e6), (8, 37.7e6)])
def test_lora_counts_are_those_of_its_paper(rank: int, published: float) -> None:
    # LoRA (arXiv 2106.09685), table 4: GPT-3 with adapters on queries and values.
    (block,) = make_problem("gpt-3-175b", h100(8)).model.blocks
    split = adapter_split(block, FineTuning("lora", rank, "attention-qv"))
    assert 96 * (split.tensor + split.whole) == pytest.approx(published, rel=0.01)


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    tuning = FineTuning("lora", rank=16, target="all-linear")
    problem = make_problem("llama-3-8b", {"nodes": 1, "gpus_per_node": 1, "gpu": "a100-sxm4-80gb"}, fine_tuning=tuning)
    table = resolved(problem, {"framework": "ddp"})
    stages = all_stages(problem.model, table)
    weights = local_weights(problem, table, stages, end_weights(problem, table))
    found = state_bytes(problem, table, stages, weights, sharding(problem, table))
    adapters = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert weights.dense[0] == problem.model.parameters
    assert weights.trainable_dense[0] == adapters
    # PEFT casts adapters to fp32.
    assert found.parameters[0] == 2 * problem.model.parameters + 4 * adapters
    assert found.gradients[0] == 4 * adapters
    assert found.optimizer_states[0] == 8 * adapters


@pytest.mark.parametrize(
    ("optimizer", "dtype_bytes"), [("adamw", 8.0), ("adam", 8.0), ("sgd-momentum", 4.0), ("sgd", 0.0)]
)
def test_moments_of_each_optimizer(optimizer: str, dtype_bytes: float) -> None:
    problem = make_problem("llama-3-8b", h100(1), optimizer=optimizer)
    table = resolved(problem, {"framework": "fsdp2"}, megatron(1, 1))
    assert state_bytes_per_weight(problem, table).tolist() == [dtype_bytes, dtype_bytes + 4.0]


def test_eight_bit_states_have_a_constant_a_block() -> None:
    problem = make_problem("llama-3-8b", h100(1), optimizer="adamw-8bit")
    assert state_bytes_per_weight(problem, resolved(problem, {"framework": "fsdp2"}))[0] == 2 * (1 + 4 / 256)


def test_a_tied_matrix_is_on_both_ends_of_a_pipeline_and_once_without() -> None:
    problem = make_problem("gpt-2-xl", h100(1))
    table = resolved(problem, megatron(1, 1), megatron(1, 4))
    stages = all_stages(problem.model, table)
    dense = local_weights(problem, table, stages, end_weights(problem, table)).dense
    padding = (50304 - 50257) * 1600
    assert dense[0] == problem.model.parameters + padding
    assert dense[1:].sum() == problem.model.parameters + padding + 50304 * 1600


def test_experts_are_sharded_over_what_expert_parallelism_leaves() -> None:
    problem = make_problem("mixtral-8x7b", h100(4))
    table = resolved(problem, megatron(2, 1, expert_parallel_size=4, expert_tensor_parallel_size=1))
    shards = sharding(problem, table)
    assert shards.dense_ranks[0] == 16
    assert shards.expert_ranks[0] == 8


def test_flat_parameters_mix_frozen_weights_and_adapters() -> None:
    # litgpt issue 1417: gradients as if nothing were frozen; whole while micro-batches are accumulated.
    tuning = FineTuning("lora", rank=8, target="attention-qv")
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "a100-sxm4-40gb"}
    found = []
    for global_batch_size in (2, 256):
        problem = make_problem("llama-2-7b", cluster, fine_tuning=tuning, global_batch_size=global_batch_size)
        table = resolved(problem, {"framework": "fsdp1"})
        stages = all_stages(problem.model, table)
        weights = local_weights(problem, table, stages, end_weights(problem, table))
        found.append(state_bytes(problem, table, stages, weights, sharding(problem, table)).gradients[0])
    blocks = sum(problem.model.layers_parameters)
    adapters = 32 * 8 * 4 * 4096
    assert found == [blocks + adapters, 2 * blocks + adapters]


@pytest.mark.parametrize(("optimizer", "temporaries"), [("adamw", 4.0), ("adamw-8bit", 0.0), ("sgd-momentum", 0.0)])
def test_only_adam_makes_temporaries_of_all_weights(optimizer: str, temporaries: float) -> None:
    problem = make_problem("gpt-2-xl", h100(1), sequence_length=1024, optimizer=optimizer)
    table = resolved(problem, {"framework": "ddp"})
    lasting, _ = lasting_bytes(problem, table, all_stages(problem.model, table))
    assert lasting.step_states[0] == temporaries * problem.model.parameters


@pytest.mark.parametrize(("framework", "embedding_bytes"), [("ddp", 8.0), ("fsdp2", 2 * (1 + 4 / 256))])
def test_transformers_steps_embeddings_in_fp32_beside_eight_bit_states(framework: str, embedding_bytes: float) -> None:
    problem = make_problem("llama-3-8b", h100(1), optimizer="adamw-8bit")
    table = resolved(problem, {"framework": framework, "zero_stage": 0})
    stages = all_stages(problem.model, table)
    weights = local_weights(problem, table, stages, end_weights(problem, table))
    found = state_bytes(problem, table, stages, weights, sharding(problem, table)).optimizer_states[0]
    embedding = 128256 * 4096
    others = problem.model.parameters - embedding
    assert found == pytest.approx(embedding_bytes * embedding + 2 * (1 + 4 / 256) * others)


@pytest.mark.parametrize(("framework", "zero_stage"), [("deepspeed", 1), ("fsdp2", 3)])
def test_gradients_of_experts_are_shared_among_their_own_ranks(framework: str, zero_stage: int) -> None:
    # 16 ranks, 8 of them with experts of their own: two share each. Stage 1 of DeepSpeed steps with its share; under
    # fsdp2 all gradients but those of a block and the embedding are there before the last block's backward.
    problem = make_problem("mixtral-8x7b", h100(2), global_batch_size=16)
    table = resolved(problem, {"framework": framework, "zero_stage": zero_stage, "expert_parallel_size": 8})
    stages = all_stages(problem.model, table)
    weights = local_weights(problem, table, stages, end_weights(problem, table))
    lasting, _ = lasting_bytes(problem, table, stages)
    share = weights.dense[0] / 16 + weights.expert[0] / 2
    if framework == "deepspeed":
        assert lasting.stepped_gradients[0] == pytest.approx(2 * share)
    else:
        embedding = 32000 * 4096
        head = 32000 * 4096 + 4096
        blocks = weights.dense[0] - embedding - head
        assert lasting.late_gradients[0] == pytest.approx(
            4 * (share - embedding / 16 - blocks / 32 / 16 - weights.expert[0] / 32 / 2)
        )
