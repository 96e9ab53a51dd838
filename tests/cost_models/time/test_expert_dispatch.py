"""Tokens on their way to experts in other domains: once for each expert, or once for each domain."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.expert_routing import domains_reached
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from cost_models.time.collectives import Network
from tests.cost_models.problems import make_problem, resolved

MIXTURE = next(block.experts for block in load_model("deepseek-v3").blocks if block.experts)
ANYWHERE = replace(MIXTURE, groups=1, groups_per_token=1)


def dgx(nodes: int, dispatch: str) -> dict[str, Any]:
    link = {"kind": "infiniband", "gbps_per_gpu": 400, "expert_dispatch": dispatch}
    return {"nodes": nodes, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "inter_node": link}


def test_domains_of_experts_chosen_anywhere() -> None:
    assert domains_reached(ANYWHERE, 8) == pytest.approx(8 * (1 - comb(224, 8) / comb(256, 8)))


def test_domains_of_experts_in_four_of_eight_groups() -> None:
    assert domains_reached(MIXTURE, 8) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))


@given(domains=st.sampled_from([1, 2, 4, 8, 16, 32, 64]), limited=st.booleans())
def test_a_token_reaches_no_more_domains_than_it_has_experts(domains: int, limited: bool) -> None:
    reached = domains_reached(MIXTURE if limited else ANYWHERE, domains)
    assert 1 - 1e-9 <= reached <= min(domains, MIXTURE.experts_per_token) + 1e-9
    assert reached <= domains_reached(ANYWHERE, domains) + 1e-9


@pytest.mark.parametrize(("ranks", "published"), [(32, 57.6), (64, 49.9)])
def test_as_fast_as_hybrid_ep_was_measured(ranks: int, published: float) -> None:
    """GB/s of 4,096 bf16 tokens of 7,168 on H100, top 8 anywhere, 8 experts a rank, those of a rank's own host counted:
    mean of dispatch and combine, kernels only, 16 SMs (deepseek-ai/DeepEP 07eea0c0, Hybrid-EP_Implementation.md)."""
    network = Network(resolve_cluster(dgx(8, "hierarchical")), default_coefficients())
    group = network.channel(np.array([ranks]), np.array([1]))
    hosts = ranks // 8
    token = 4096 * 7168 * 2.0
    reached = domains_reached(replace(ANYWHERE, experts=8 * ranks), hosts)
    seconds = network.forwarded(group, np.array([token * reached * (1 - 1 / hosts)]), np.array([8 * token]))
    assert token * reached / seconds[0] / 1e9 == pytest.approx(published, rel=0.05)


def expert_seconds(dispatch: str, framework: str, experts: int) -> float:
    problem = make_problem("deepseek-v3", dgx(8, dispatch))
    table = resolved(problem, {"framework": framework, "expert_parallel_size": experts})
    return float(estimate_time(problem, table, all_stages(problem.model, table)).parts["expert_parallel"][0])


@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2"])
def test_hierarchical_dispatch_sends_less_across_domains(framework: str) -> None:
    copies = domains_reached(MIXTURE, 8) / MIXTURE.experts_per_token
    ratio = expert_seconds("hierarchical", framework, 64) / expert_seconds("all-to-all", framework, 64)
    assert ratio == pytest.approx(copies, abs=0.02)


@pytest.mark.parametrize(("framework", "experts"), [("megatron-lm", 8), ("deepspeed", 64)])
def test_hierarchical_dispatch_needs_domains_and_a_framework_that_can(framework: str, experts: int) -> None:
    assert expert_seconds("hierarchical", framework, experts) == expert_seconds("all-to-all", framework, experts)
