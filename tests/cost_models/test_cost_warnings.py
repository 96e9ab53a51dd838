"""Every warning of the contract fires on the case that it is for, and not on its neighbour."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from cost_models.answer import full_answers
from cost_models.cluster import Host
from cost_models.codes import WARNINGS
from cost_models.estimate import estimate
from cost_models.problem import Problem
from tests.cost_models.problems import h100, make_problem, megatron, resolved

Case = tuple[Problem, dict[str, Any]]


class Pair(NamedTuple):
    """A case, and one that differs in what matters."""

    fires: Case
    neighbour: Case


def warnings(case: Case, confidence: float = 0.9) -> dict[str, str]:
    problem, strategy = case
    [found] = full_answers(estimate(problem, resolved(problem, strategy), memory_confidence=confidence))
    assert found["valid"], found["violations"]
    return {warning["code"]: warning["message"] for warning in found["warnings"]}


def cards(gpu: str, **fields: Any) -> dict[str, Any]:
    return {"nodes": 1, "gpus_per_node": 8, "gpu": gpu, **fields}


def ethernet(gbps: float) -> dict[str, Any]:
    return {**cards("h100-sxm5-80gb"), "nodes": 2, "inter_node": {"kind": "ethernet", "gbps_per_gpu": gbps}}


def hosted(memory_gib: float, **fields: Any) -> dict[str, Any]:
    return cards("h100-sxm5-80gb", host={"memory_gib": memory_gib, **fields})


def drives(read: float, write: float) -> dict[str, Any]:
    return hosted(1024.0, nvme_gib=10_000.0, nvme_read_gb_per_s=read, nvme_write_gb_per_s=write)


LLAMA: Final = make_problem("llama-3-70b", h100(8))
SMALL: Final = make_problem("llama-3-8b", h100(1))
EXPERTS: Final = megatron(1, 1, expert_parallel_size=8)
FSDP: Final[dict[str, Any]] = {"framework": "fsdp2", "activation_checkpointing": "full"}
OFFLOADED: Final[dict[str, Any]] = {
    "framework": "deepspeed",
    "zero_stage": 3,
    "offload": "optimizer",
    "activation_checkpointing": "full",
}
SPILLED: Final = {**OFFLOADED, "offload": "nvme"}
SLOW_DRIVES: Final = make_problem("llama-3-8b", drives(2.0, 1.0))

PAIRS: Final[dict[str, Pair]] = {
    "tensor_parallel_crosses_nodes": Pair(
        (make_problem("gpt-3-175b", h100(8)), megatron(16, 1)), (make_problem("gpt-3-175b", h100(8)), megatron(8, 1))
    ),
    "expert_parallel_crosses_domain": Pair(
        (make_problem("deepseek-v3", h100(8)), megatron(1, 1, expert_parallel_size=64)),
        (make_problem("deepseek-v3", h100(8)), EXPERTS),
    ),
    "slow_link": Pair(
        (make_problem("llama-3-8b", ethernet(25.0)), FSDP),
        (make_problem("llama-3-8b", ethernet(50.0)), FSDP),
    ),
    "peer_to_peer_missing": Pair(
        (make_problem("llama-3-8b", cards("rtx-4090-24gb")), FSDP),
        (make_problem("llama-3-8b", cards("rtx-a6000-48gb")), FSDP),
    ),
    "host_memory_short": Pair(
        (make_problem("llama-3-8b", hosted(64.0)), OFFLOADED), (make_problem("llama-3-8b", hosted(512.0)), OFFLOADED)
    ),
    "host_unknown": Pair(
        (make_problem("llama-3-8b", cards("h100-sxm5-80gb")), OFFLOADED),
        (make_problem("llama-3-8b", cards("h100-sxm5-80gb")), {**OFFLOADED, "offload": "none"}),
    ),
    "nvme_slow": Pair((SLOW_DRIVES, SPILLED), (SLOW_DRIVES, OFFLOADED)),
    "odd_head_dimension": Pair(
        (make_problem("vit-h", h100(1), sequence_length=257), FSDP),
        (make_problem("bert-large", h100(1), sequence_length=512), FSDP),
    ),
    "fp8_without_gain": Pair(
        (make_problem("bert-large", h100(1), sequence_length=512), {**FSDP, "precision": "fp8"}),
        (SMALL, {**FSDP, "precision": "fp8"}),
    ),
    "weights_replicated": Pair(
        (make_problem("llama-2-13b", h100(1)), {"framework": "megatron-lm", "zero_stage": 1}),
        (make_problem("llama-2-13b", h100(1)), {"framework": "megatron-lm", "zero_stage": 3}),
    ),
    "logits_dominate": Pair(
        (make_problem("llama-3-8b", h100(1), sequence_length=32_768, global_batch_size=8), FSDP),
        (make_problem("llama-3-8b", h100(1), sequence_length=32_768, global_batch_size=8, fused_loss=True), FSDP),
    ),
    "experts_imbalanced": Pair(
        (make_problem("mixtral-8x7b", h100(8), expert_imbalance=1.5), EXPERTS),
        (make_problem("mixtral-8x7b", h100(8), expert_imbalance=1.1), EXPERTS),
    ),
    "vocabulary_padded": Pair((LLAMA, megatron(8, 1)), (LLAMA, megatron(1, 8))),
    "few_micro_batches": Pair(
        (make_problem("llama-3-70b", h100(8), global_batch_size=16), megatron(4, 4)),
        (make_problem("llama-3-70b", h100(8), global_batch_size=64), megatron(4, 4)),
    ),
    "stages_imbalanced": Pair(
        (LLAMA, megatron(4, 4, layers_per_stage=[26, 18, 18, 18])),
        (LLAMA, megatron(4, 4, layers_per_stage=[21, 20, 20, 19])),
    ),
    "flat_all_reduce_across_nodes": Pair(
        (make_problem("llama-3-70b", h100(32)), FSDP),
        (make_problem("llama-3-70b", h100(32)), {**FSDP, "data_parallel_replicate_size": 4}),
    ),
    "extrapolated": Pair((make_problem("llama-3-8b", h100(8192), global_batch_size=65536), FSDP), (SMALL, FSDP)),
}


def test_there_is_a_pair_for_every_warning_of_the_contract() -> None:
    assert {*PAIRS, "near_memory_limit"} == set(WARNINGS)


@pytest.mark.parametrize("code", PAIRS)
def test_a_warning_fires_on_its_case_and_not_on_the_neighbour(code: str) -> None:
    pair = PAIRS[code]
    assert code in warnings(pair.fires)
    assert code not in warnings(pair.neighbour)


def test_a_plan_at_the_limit_states_its_probability() -> None:
    table = resolved(SMALL, FSDP)
    [found] = full_answers(estimate(SMALL, table, memory_confidence=0.9))
    for room, probability in ((found["memory"]["required_upper_gib"], 0.1), (found["memory"]["required_gib"] * 3, 0.0)):
        small = replace(SMALL, cluster=replace(SMALL.cluster, gpu_free_memory_bytes=room * 1.0001 * 2**30))
        [limited] = full_answers(estimate(small, table, memory_confidence=0.9))
        assert limited["fits"]
        assert limited["memory"]["oom_probability"] == pytest.approx(probability, abs=0.002)
        said = {warning["code"]: warning["message"] for warning in limited["warnings"]}.get("near_memory_limit")
        assert (said is None) is (probability < 0.01)
        assert said is None or said.endswith(f"is {limited['memory']['oom_probability']:.1%}")


def test_a_short_host_is_said_with_its_load_and_save_peaks() -> None:
    problem, strategy = PAIRS["host_memory_short"].fires
    [found] = full_answers(estimate(problem, resolved(problem, strategy), memory_confidence=0.9))
    needs = found["memory"]["host_gib_per_node"]
    assert warnings((problem, strategy))["host_memory_short"] == (
        f"a node has 64 GiB of host memory and needs {needs['steady']:,.0f} in steady training, "
        f"{needs['load_peak']:,.0f} while the model is loaded, {needs['checkpoint_peak']:,.0f} while a checkpoint is "
        "saved"
    )


def test_drives_that_are_too_small_are_said() -> None:
    problem = make_problem(
        "llama-3-8b", hosted(1024.0, nvme_gib=50.0, nvme_read_gb_per_s=25.0, nvme_write_gb_per_s=12.0)
    )
    [found] = full_answers(estimate(problem, resolved(problem, SPILLED), memory_confidence=0.9))
    assert found["fits"] is False
    needed = found["memory"]["nvme_gib_per_node"]
    said = {warning["code"]: warning["message"] for warning in found["warnings"]}
    assert said["host_memory_short"] == f"a node has 50 GiB of NVMe and needs {needed:,.0f}"


def test_drives_that_are_as_fast_as_asked_for_are_no_longer_slow() -> None:
    said = re.search(r"drives ([\d.]+) times as fast", warnings((SLOW_DRIVES, SPILLED))["nvme_slow"])
    assert said is not None
    host, times = SLOW_DRIVES.cluster.host, float(said[1]) + 0.05  # what rounding can take away
    assert isinstance(host, Host)
    faster = replace(
        host,
        nvme_read_bytes_per_s=times * host.nvme_read_bytes_per_s,
        nvme_write_bytes_per_s=times * host.nvme_write_bytes_per_s,
    )
    problem = replace(SLOW_DRIVES, cluster=replace(SLOW_DRIVES.cluster, host=faster))
    assert "nvme_slow" not in warnings((problem, SPILLED))


def test_imbalanced_experts_say_what_balance_would_give() -> None:
    problem, strategy = PAIRS["experts_imbalanced"].fires
    seconds = []
    for imbalance in (1.0, 1.5):
        uneven = replace(problem, workload=replace(problem.workload, expert_imbalance=imbalance))
        [found] = full_answers(estimate(uneven, resolved(uneven, strategy), memory_confidence=0.9))
        seconds.append(found["time"]["step_seconds"])
    assert seconds[0] < seconds[1]
    assert warnings((problem, strategy))["experts_imbalanced"] == (
        "the hottest expert gets 1.5 times the mean: the other ranks of expert_parallel_size 8 wait for it; with "
        f"balanced experts a step would take {seconds[0]:.3g} s instead of {seconds[1]:.3g} "
        f"({seconds[0] / seconds[1] - 1:+.1%})"
    )
