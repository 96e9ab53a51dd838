"""Exposed seconds of a layer's tensor-, context- and expert-parallel traffic for one micro-batch.

Volumes: arXiv 1909.08053 (two all-reduces a layer and pass), arXiv 2205.05198 section 4.2.2 (as much as a
reduce-scatter and an all-gather each under sequence parallelism), arXiv 2310.01889 (ring attention), arXiv 2309.14509
(all-to-all), arXiv 2101.03961 (expert dispatch and combine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import Block, FeedForward, ModelArchitecture
from cost_models.expert_routing import domains_reached
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.channels import Channel
from cost_models.time.collectives import Network
from cost_models.time.linears import routed_tokens

ACTIVATION_BYTES: Final = 2.0
"""Activations travel in 16 bit."""


@dataclass(frozen=True)
class Passes:
    """Exposed seconds and issued collectives of one kind of traffic; columns (u,)."""

    forward: FloatColumn
    backward: FloatColumn
    collectives: FloatColumn
    """Of one forward."""


@dataclass(frozen=True)
class CaseGroups:
    """Groups of the traffic inside a layer."""

    tensor: Channel
    context: Channel
    expert: Channel
    expert_tensor: Channel


def case_groups(network: Network, cases: LayerCases) -> CaseGroups:
    """Where each case's ranks sit."""
    table = cases.table
    ones = np.ones_like(table.tensor_parallel_size)
    return CaseGroups(
        tensor=network.channel(table.tensor_parallel_size, ones),
        context=network.channel(table.context_parallel_size, table.tensor_parallel_size),
        expert=network.channel(table.expert_parallel_size, table.expert_tensor_parallel_size),
        expert_tensor=network.channel(table.expert_tensor_parallel_size, ones),
    )


def element_bytes(cases: LayerCases) -> FloatColumn:
    """Of an activation in flight."""
    return np.where(cases.table.is_choice("precision", "fp32"), 4.0, ACTIVATION_BYTES)


def tensor_traffic(
    model: ModelArchitecture, block: Block, cases: LayerCases, network: Network, groups: CaseGroups
) -> Passes:
    """Around attention, the dense or shared feed-forward, and the routed experts where they are split as well."""
    message = cases.tokens * model.hidden_size * element_bytes(cases)
    split = network.all_gather(groups.tensor, message)
    whole = network.all_reduce(groups.tensor, message)
    sublayers = len(block.attentions) + _dense_feed_forward(block)
    one_pass = sublayers * np.where(cases.table.sequence_parallel, 2 * split, whole)
    hidden = cases.coefficient("hidden_tensor_traffic") * cases.table.overlap_communication
    # Megatron gathers a split input again for the weight gradient, under the product of the input gradient.
    bare = cases.table.sequence_parallel & ~cases.table.overlap_communication
    again = np.where(bare & cases.fact("regathers_sequence_parallel_inputs"), sublayers * split, 0.0)
    backward = one_pass * (1 - hidden) + again
    forward = one_pass
    count: FloatColumn = sublayers * np.where(cases.table.sequence_parallel, 2.0, 1.0) * (cases.tensor > 1)
    if block.experts is not None:
        gathered = routed_tokens(block.experts, cases) * cases.expert_tensor * model.hidden_size * element_bytes(cases)
        experts = 2 * network.all_gather(groups.expert_tensor, gathered)
        forward = forward + experts
        backward = backward + experts
        count = count + 2.0 * (cases.expert_tensor > 1)
    return Passes(forward, backward, count)


def _dense_feed_forward(block: Block) -> float:
    if isinstance(block.feed_forward, FeedForward):
        return 1.0
    return 1.0 if block.feed_forward.shared else 0.0


def context_traffic(
    block: Block,
    cases: LayerCases,
    network: Network,
    groups: CaseGroups,
    attention_seconds: tuple[FloatColumn, FloatColumn],
) -> Passes:
    """Keys and values that travel round the ring under attention, are gathered before it, or change owners by heads."""
    attention = block.attention
    width = attention.head_dim + attention.value_head_dim
    own = cases.tokens * attention.key_value_heads / cases.tensor * width * element_bytes(cases)
    steps = np.maximum(cases.context - 1, 0.0)
    ring = tuple(
        steps * np.maximum(0.0, network.send(groups.context, own * copies) - seconds / cases.context)
        for seconds, copies in zip(attention_seconds, (1.0, 2.0), strict=True)
    )
    gathered = network.all_gather(groups.context, own * cases.context)
    queries = cases.tokens * attention.heads / cases.tensor * width * element_bytes(cases)
    exchanged = network.all_to_all(groups.context, own + queries)
    is_ring = cases.table.is_choice("context_parallel_kind", "ring")
    is_gather = cases.table.is_choice("context_parallel_kind", "all-gather")
    forward = np.where(is_ring, ring[0], np.where(is_gather, gathered, exchanged))
    backward = np.where(is_ring, ring[1], np.where(is_gather, 2 * gathered, exchanged))
    rounds: FloatColumn = np.where(is_ring, steps, np.where(is_gather, 1.0, 4.0)) * (cases.context > 1)
    return Passes(forward, backward, rounds)


def expert_traffic(
    model: ModelArchitecture, block: Block, imbalance: float, cases: LayerCases, network: Network, groups: CaseGroups
) -> Passes:
    """Dispatch and combine, as slow as the rank with the hottest expert.

    A token is sent once for each of its experts, as by Megatron-Core's all-to-all dispatcher; or, beyond a domain and
    where framework and cluster can, once for each domain and forwarded inside (DeepEP, HybridEP).
    """
    if block.experts is None:
        nothing = np.zeros(len(cases))
        return Passes(nothing, nothing, nothing)
    sent = routed_tokens(block.experts, cases) * model.hidden_size * element_bytes(cases) * imbalance
    seconds = network.all_to_all(groups.expert, sent)
    if network.cluster.inter_node.expert_dispatch == "hierarchical":
        domains = groups.expert.at(groups.expert.domains)
        few, number = np.unique(domains, return_inverse=True)
        reached = np.array([domains_reached(block.experts, int(count)) for count in few])[number]
        across = sent / block.experts.experts_per_token * reached * (1 - 1 / domains)
        able = (domains > 1) & cases.fact("hierarchical_dispatch")
        seconds = np.where(able, network.forwarded(groups.expert, across, sent), seconds)
    collectives: FloatColumn = np.where(cases.expert > 1, 3.0, 0.0)
    return Passes(2 * seconds, 2 * seconds, collectives)
