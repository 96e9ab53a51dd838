"""What decoders in the shape of GPT-2 have in common: LayerNorms around every block, no grouped queries."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import Attention, Block, FeedForward, ModelArchitecture
from cost_models.block_builders import PositionKind, Trunk, assemble
from cost_models.hf_config.config_keys import ConfigKeys


@dataclass(frozen=True, slots=True)
class GptTrunk:
    """What these families differ in, besides their blocks."""

    hidden: int
    layers: int
    vocab: int
    positions: PositionKind
    max_positions: int | None
    tied: bool
    norm_vectors: int = 2
    """Vectors of one norm: weight and bias."""
    position_rows: int = 0
    embedding_norm: bool = False
    head_bias: bool = False


def assemble_gpt(keys: ConfigKeys, gpt: GptTrunk, blocks: list[Block]) -> ModelArchitecture:
    """The model with LayerNorms that these families share."""
    norm = gpt.norm_vectors * gpt.hidden
    return assemble(
        Trunk(
            name=keys.model_type,
            model_type=keys.model_type,
            hidden=gpt.hidden,
            vocab=gpt.vocab,
            tied=gpt.tied,
            norm="layernorm",
            positions=gpt.positions,
            max_position_embeddings=gpt.max_positions,
            position_parameters=gpt.position_rows * gpt.hidden,
            input_parameters=norm if gpt.embedding_norm else 0,
            final_norm_parameters=norm,
            output_parameters=gpt.vocab if gpt.head_bias else 0,
            assumptions=keys.assumptions,
        ),
        blocks,
    )


def gpt_block(attention: Attention, part: FeedForward, norm: int, *, norms: int = 2, parallel: bool = False) -> Block:
    """A block; `norm` counts the parameters of one of its norms."""
    return Block(
        attention=attention,
        feed_forward=part,
        norms=norms,
        norm_parameters=norms * norm,
        parallel_residual=parallel,
    )
