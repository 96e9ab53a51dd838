"""A model's dimensions as Megatron-LM's arguments for `pretrain_gpt.py`.

Source: as `megatron_words`. What a ModelArchitecture does not hold (rotary base and scaling, norm epsilon, how a router
scores) changes neither memory nor time, and is left to whoever starts the job: see the notes of the launch files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cost_models.architecture import Block, FeedForward, MixtureOfExperts, ModelArchitecture
from search.launch.job import LaunchJob
from search.launch.megatron_words import ACTIVATIONS, PADDED_TO, Options, flag, option, pattern

ATTENTION_INPUTS: Final = ({"q", "k", "v"}, {"qkv"})
ROUTER: Final = "router"
GPT_OSS: Final = "gpt_oss"
"""Its gated activation is a clamped quick GELU with an offset: NVIDIA-NeMo/Megatron-Bridge
`models/gpt_oss/gpt_oss_provider.py`."""

_ShapeRule = tuple[Callable[[ModelArchitecture], bool], str]
_UNKNOWN_SHAPES: Final[tuple[_ShapeRule, ...]] = (
    (lambda model: model.is_encoder_decoder or model.is_classifier, "it is not a decoder-only language model"),
    (lambda model: any(block.encoder for block in model.blocks), "it has encoder blocks"),
    (lambda model: not all(block.attention.causal for block in model.blocks), "it attends in both directions"),
    (lambda model: any(block.parallel_residual for block in model.blocks), "its residual branches are parallel"),
    (lambda model: any(block.norms != 2 for block in model.blocks), "its blocks do not have two norms"),
    (lambda model: any(block.attention.soft_cap for block in model.blocks), "its attention scores are capped"),
    (lambda model: model.logit_soft_cap, "its logits are capped"),
    (lambda model: model.position_embeddings == "alibi", "it has ALiBi position biases"),
    (lambda model: bool(model.input_parameters or model.output_parameters), "it has layers beside the embeddings"),
    (lambda model: bool(model.head and model.head.bias), "its head has a bias"),
)


def unexpressible(model: ModelArchitecture) -> str | None:
    """Why no arguments make this model; None: they do."""
    for broken, why in _UNKNOWN_SHAPES:
        if broken(model):
            return why
    experts = [block.experts for block in model.blocks if block.experts]
    if any(part.shared_gate for part in experts):
        return "its shared expert has a gate"
    if len({_attention_shape(block) for block in model.blocks}) > 1:
        return "its blocks differ in heads or latent ranks"
    dense = {_shape(block.feed_forward) for block in model.blocks if block.experts is None}
    if len(dense) > 1 or len({_mixture_shape(part) for part in experts}) > 1:
        return "its blocks differ in feed-forward widths"
    if len({block.attention.window for block in model.blocks} - {None}) > 1:
        return "its blocks have windows of several sizes"
    if any((part.activation, part.gated) not in ACTIVATIONS for part in _parts(model)):
        return "there is no option for its activation"
    return _unknown_biases(model)


def model_arguments(job: LaunchJob) -> Options:
    """Every dimension of the model, the vocabulary padded as the plan's tensor parallelism needs."""
    model = job.model
    block = model.blocks[model.layer_blocks[0]]
    attention = block.attention
    arguments = {
        **option("--num-layers", model.layers),
        **option("--hidden-size", model.hidden_size),
        **option("--ffn-hidden-size", _dense_width(model)),
        **option("--num-attention-heads", attention.heads),
        **_attention(block),
        **_feed_forward(model),
        **option("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        **_biases(model),
        **_positions(job),
        **_windows(model),
        **_vocabulary(job),
    }
    return {**arguments, **_experts(model)}


def _parts(model: ModelArchitecture) -> list[FeedForward]:
    return [
        part.routed if isinstance(part, MixtureOfExperts) else part
        for part in (block.feed_forward for block in model.blocks)
    ]


def _shape(part: FeedForward | MixtureOfExperts) -> tuple[object, ...]:
    return (part.hidden, part.gated, part.activation) if isinstance(part, FeedForward) else _mixture_shape(part)


def _mixture_shape(part: MixtureOfExperts) -> tuple[object, ...]:
    shared = part.shared.hidden if part.shared else None
    return (part.experts, part.experts_per_token, part.routed.hidden, shared)


def _attention_shape(block: Block) -> tuple[object, ...]:
    part = block.attention
    ranks = part.latent
    return (part.heads, part.key_value_heads, part.head_dim, part.value_head_dim, ranks, part.norms)


def _bias_names(model: ModelArchitecture) -> set[str]:
    return {linear.name for block in model.blocks for linear in block.linears if linear.bias}


def _unknown_biases(model: ModelArchitecture) -> str | None:
    biased = _bias_names(model)
    unbiased = {linear.name for block in model.blocks for linear in block.linears if not linear.bias}
    everywhere = not (unbiased - {ROUTER})
    if not biased or everywhere or biased in ATTENTION_INPUTS:
        return None
    return f"biases only in {', '.join(sorted(biased))}"


def _biases(model: ModelArchitecture) -> Options:
    biased = _bias_names(model)
    if biased in ATTENTION_INPUTS:
        return {**flag("--disable-bias-linear"), **flag("--add-qkv-bias")}
    return {} if biased else flag("--disable-bias-linear")


def _dense_width(model: ModelArchitecture) -> int:
    """Of the dense blocks; without any, of an expert, which is what Megatron-LM would take it for."""
    dense = [block.feed_forward.hidden for block in model.blocks if isinstance(block.feed_forward, FeedForward)]
    return dense[0] if dense else _parts(model)[0].hidden


def _attention(block: Block) -> Options:
    part = block.attention
    arguments: Options = {}
    if part.latent is not None:
        rotary = part.latent.rope_head_dim
        ranks = {} if part.latent.q_rank is None else option("--q-lora-rank", part.latent.q_rank)
        arguments = {
            **flag("--multi-latent-attention"),
            **ranks,
            **option("--kv-lora-rank", part.latent.kv_rank),
            **option("--qk-head-dim", part.head_dim - rotary),
            **option("--qk-pos-emb-head-dim", rotary),
            **option("--v-head-dim", part.value_head_dim),
        }
    else:
        arguments = option("--kv-channels", part.head_dim)
        if part.key_value_heads != part.heads:
            groups = option("--num-query-groups", part.key_value_heads)
            arguments = {**arguments, **flag("--group-query-attention"), **groups}
    if part.norms:
        arguments = {**arguments, **flag("--qk-layernorm")}
    if part.other_parameters:
        arguments = {**arguments, **option("--softmax-type", "learnable")}
    return arguments


def _feed_forward(model: ModelArchitecture) -> Options:
    if model.model_type == GPT_OSS:
        offset = option("--glu-linear-offset", 1.0)
        return {**flag("--quick-geglu"), **offset, **option("--activation-func-clamp-value", 7.0)}
    part = _parts(model)[0]
    return dict.fromkeys(ACTIVATIONS[part.activation, part.gated], ())


def _positions(job: LaunchJob) -> Options:
    model = job.model
    kind = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}[model.position_embeddings]
    positions = model.max_position_embeddings or job.workload.sequence_length
    if model.position_embeddings != "learned":
        positions = max(positions, job.workload.sequence_length)
    return {**option("--position-embedding-type", kind), **option("--max-position-embeddings", positions)}


def _windows(model: ModelArchitecture) -> Options:
    windows = {block.attention.window for block in model.blocks} - {None}
    if not windows:
        return {}
    (window,) = windows
    assert window is not None  # else there are no windows
    sliding = [int(model.blocks[kind].attention.window is not None) for kind in model.layer_blocks]
    size = option("--window-size", f"{window - 1},0")
    return size if all(sliding) else {**size, **option("--window-attn-skip-freq", pattern(sliding))}


def _vocabulary(job: LaunchJob) -> Options:
    multiple = PADDED_TO * int(job.strategy["tensor_parallel_size"])
    padded = -(-job.model.vocab_size // multiple) * multiple
    tied = {} if job.model.tied_embeddings else flag("--untie-embeddings-and-output-weights")
    return {
        **tied,
        **option("--vocab-size", job.model.vocab_size),
        **option("--make-vocab-size-divisible-by", PADDED_TO),
        **option("--padded-vocab-size", padded),
    }


def _experts(model: ModelArchitecture) -> Options:
    mixtures = [block.experts for block in model.blocks if block.experts]
    if not mixtures:
        return {}
    part = mixtures[0]
    routed = [int(model.blocks[kind].experts is not None) for kind in model.layer_blocks]
    shared = option("--moe-shared-expert-intermediate-size", part.shared.hidden) if part.shared else {}
    return {
        **option("--num-experts", part.experts),
        **option("--moe-router-topk", part.experts_per_token),
        **option("--moe-ffn-hidden-size", part.routed.hidden),
        **shared,
        **({} if all(routed) else option("--moe-layer-freq", pattern(routed))),
    }
