"""What a model is made of: every weight and every matrix multiplication of each block.

One description serves parameter counts, FLOP, activations, tensor-parallel shards and LoRA targets alike, so that they
cannot disagree. A model is a few distinct `Block`s and the order in which its layers use them.

Names of linear layers are canonical, whatever a framework calls them: `q k v o qkv` (fused), multi-head latent
attention `q_down q_up kv_down kv_up`, feed-forward `gate up down gate_up` (fused), `router`, `shared_gate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Split = Literal["column", "row", "none"]
"""What tensor parallelism does to a weight: shards the outputs, shards the inputs, or replicates it."""


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x Wᵀ + b, `copies` times (stacked expert matrices)."""

    name: str
    in_features: int
    out_features: int
    bias: bool = False
    split: Split = "none"
    copies: int = 1

    @property
    def parameters(self) -> int:
        """Weights and biases of all copies."""
        return self.copies * (self.in_features + self.bias) * self.out_features


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1): ranks and the rotary share of a head."""

    q_rank: int | None
    """None: queries come straight from the hidden state (linear `q`)."""
    kv_rank: int
    rope_head_dim: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Scaled dot-product attention with its projections."""

    heads: int
    key_value_heads: int
    head_dim: int
    """Of queries and keys (MLA: non-rotary + rotary)."""
    value_head_dim: int
    linears: tuple[Linear, ...]
    window: int | None = None
    """Tokens a query sees at most (sliding window or chunk); None: all."""
    causal: bool = True
    latent: LatentAttention | None = None
    norm_parameters: int = 0
    """Of norms inside attention (q/k norms, latent norms)."""
    norms: int = 0
    """How many such norm operations there are."""
    other_parameters: int = 0
    """Sinks, relative position biases; split over heads by tensor parallelism."""
    soft_cap: bool = False
    """Scores go through tanh before softmax (Gemma 2)."""

    @property
    def parameters(self) -> int:
        """All weights of the attention."""
        return sum(w.parameters for w in self.linears) + self.norm_parameters + self.other_parameters


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A dense multi-layer perceptron, gated (three matrices) or plain (two)."""

    hidden: int
    """ffn_hidden_size: width between the matrices (of one branch)."""
    gated: bool
    activation: str
    """`silu gelu gelu_tanh gelu_new quick_gelu relu relu2`; `gelu_new`: the tanh form, written out in operators."""
    linears: tuple[Linear, ...]

    @property
    def parameters(self) -> int:
        """All weights of the perceptron."""
        return sum(w.parameters for w in self.linears)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Routed experts, of which each token uses some, and shared experts that every token uses."""

    experts: int
    experts_per_token: int
    routed: FeedForward
    """One routed expert's widths; its linears carry `copies = experts`."""
    router: Linear
    shared: FeedForward | None = None
    """All shared experts together."""
    shared_gate: Linear | None = None
    other_parameters: int = 0
    groups: int = 1
    """Of consecutive experts; a token's lie in `groups_per_token` of them (arXiv 2412.19437, section 2.1.2)."""
    groups_per_token: int = 1

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix: router, routed and shared experts, and the gate of those."""
        shared = self.shared.linears if self.shared else ()
        gate = (self.shared_gate,) if self.shared_gate else ()
        return (self.router, *self.routed.linears, *shared, *gate)

    @property
    def parameters(self) -> int:
        """All weights, routed experts included."""
        return (
            self.routed.parameters
            + self.router.parameters
            + (self.shared.parameters if self.shared else 0)
            + (self.shared_gate.parameters if self.shared_gate else 0)
            + self.other_parameters
        )

    @property
    def unused_parameters(self) -> int:
        """Weights of the routed experts that one token does not use."""
        return self.routed.parameters * (self.experts - self.experts_per_token) // self.experts


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer layer."""

    attention: Attention
    feed_forward: FeedForward | MixtureOfExperts
    norms: int
    """Norm operations over the full hidden size."""
    norm_parameters: int
    cross_attention: Attention | None = None
    parallel_residual: bool = False
    """Attention and feed-forward read the same input (GPT-J, GPT-NeoX, Falcon, Phi, Cohere)."""
    encoder: bool = False
    other_parameters: int = 0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix of the block."""
        return (*self.attention_linears, *self.feed_forward.linears)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """To itself, and to the encoder's output in a decoder that has one."""
        return (self.attention, *((self.cross_attention,) if self.cross_attention else ()))

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """Every matrix of its attentions."""
        return tuple(linear for attention in self.attentions for linear in attention.linears)

    @property
    def experts(self) -> MixtureOfExperts | None:
        """The mixture of experts, where the block has one."""
        return self.feed_forward if isinstance(self.feed_forward, MixtureOfExperts) else None

    @property
    def parameters(self) -> int:
        """All weights of the block."""
        return (
            self.attention.parameters
            + (self.cross_attention.parameters if self.cross_attention else 0)
            + self.feed_forward.parameters
            + self.norm_parameters
            + self.other_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses."""
        return self.parameters - (self.experts.unused_parameters if self.experts else 0)


@dataclass(frozen=True)
class ModelArchitecture:
    """A whole model: what comes before the blocks, the blocks in order, and what comes after."""

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[Block, ...]
    """Distinct blocks."""
    layer_blocks: tuple[int, ...]
    """For each layer, encoder first, which of `blocks` it is."""
    embedding_parameters: int
    """The input embedding matrix (ViT: the patch projection)."""
    head: Linear | None
    """Output projection; None: the embedding matrix is used again (`tied_embeddings`) and has no bias of its own."""
    tied_embeddings: bool
    norm: Literal["layernorm", "rmsnorm"]
    position_embeddings: Literal["learned", "rotary", "alibi", "none"]
    max_position_embeddings: int | None = None
    position_parameters: int = 0
    input_parameters: int = 0
    """Token types, class token, embedding norms and projections: on the first stage."""
    output_parameters: int = 0
    """Head transforms, their norms, a bias beside a tied matrix, output projections: on the last stage."""
    final_norm_parameters: int = 0
    logit_soft_cap: bool = False
    sequence_length: int | None = None
    """The only sequence length that there is (ViT); None: the workload's."""
    assumptions: tuple[str, ...] = field(default=())

    @property
    def is_encoder_decoder(self) -> bool:
        """Decoder blocks attend to the encoder's output."""
        return any(block.cross_attention for block in self.blocks)

    @property
    def is_classifier(self) -> bool:
        """Patches of an image come in through a projection, and only the class token goes out through the head."""
        return self.sequence_length is not None

    @property
    def patch_elements(self) -> int:
        """Inputs of the patch projection, which has a bias (ViT)."""
        return self.embedding_parameters // self.hidden_size - 1

    @property
    def layers(self) -> int:
        """How many blocks there are in all."""
        return len(self.layer_blocks)

    @cached_property
    def layers_parameters(self) -> tuple[int, ...]:
        """Parameters of each layer, encoder first."""
        return tuple(self.blocks[kind].parameters for kind in self.layer_blocks)

    @cached_property
    def parameters(self) -> int:
        """Distinct trainable parameters."""
        return (
            self.embedding_parameters
            + self.position_parameters
            + self.input_parameters
            + sum(self.layers_parameters)
            + self.final_norm_parameters
            + self.output_parameters
            + (self.head.parameters if self.head else 0)
        )

    @cached_property
    def active_parameters(self) -> int:
        """Distinct trainable parameters less the routed experts that a token does not use."""
        return self.parameters - sum(
            experts.unused_parameters for kind in self.layer_blocks if (experts := self.blocks[kind].experts)
        )
