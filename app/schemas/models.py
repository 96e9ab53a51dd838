"""ModelInput, and what `models/inspect` answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.schemas import examples
from app.schemas.base import FreeJson, RequestModel, ResponseModel, Text

Size = Annotated[int, Field(ge=1, le=10**7)]
SOURCES = ("preset", "hf_config", "architecture")


class Architecture(RequestModel):
    """A decoder described by its dimensions."""

    layers: Annotated[int, Field(ge=1, le=10_000, description="Transformer blocks.")]
    hidden_size: Size = Field(description="Width of the residual stream.")
    attention_heads: Size = Field(description="Query heads.")
    key_value_heads: Size = Field(description="Key and value heads; they divide the query heads.")
    ffn_hidden_size: Size = Field(description="Width of the (dense) feed-forward.")
    gated_mlp: bool = Field(description="Three matrices (gate, up, down) instead of two.")
    vocab_size: Size = Field(description="Rows of the embedding matrix.")
    tied_embeddings: bool = Field(description="The head uses the embedding matrix again.")
    head_dim: Size | None = Field(None, description="Of one head; left out: hidden_size / attention_heads.")
    max_position_embeddings: Size | None = Field(None, description="Rows of a learned position embedding.")
    position_embeddings: Literal["learned", "rotary", "alibi", "none"] | None = Field(
        None, description="Left out: rotary."
    )
    biases: bool | None = Field(None, description="Of all linear layers; left out: only with learned positions.")
    norm: Literal["layernorm", "rmsnorm"] | None = Field(
        None, description="Left out: layernorm with learned positions, else rmsnorm."
    )
    experts: Size | None = Field(None, description="Routed experts of a layer; left out: a dense model.")
    experts_per_token: Size | None = Field(None, description="Routed experts that a token uses.")
    expert_ffn_hidden_size: Size | None = Field(None, description="Of one routed expert; left out: ffn_hidden_size.")
    shared_expert_ffn_hidden_size: Size | None = Field(None, description="Of all shared experts together.")
    first_dense_layers: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="Leading layers without experts; left out: 0."
    )


class ModelInput(RequestModel):
    """Exactly one of a preset, a Hugging Face config, or explicit dimensions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [examples.MODEL, examples.HF_MODEL, examples.EXPLICIT_MODEL],
            "oneOf": [{"required": [source], "properties": {source: {"not": {"type": "null"}}}} for source in SOURCES],
        }
    )

    preset: Text | None = Field(None, description="A name of `catalog/models`.")
    hf_config: FreeJson | None = Field(
        None, description="The content of a Hugging Face `config.json`, as it is published."
    )
    architecture: Architecture | None = Field(None, description="The dimensions of a decoder.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "exactly_one",
                "exactly one of preset, hf_config, architecture is needed; given: {given}",
                {"given": ", ".join(given) or "none"},
            )
        return self


class InspectRequest(RequestModel):
    """The model to look at."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": model} for model in (examples.MODEL, examples.HF_MODEL, examples.EXPLICIT_MODEL)]
        }
    )

    model: ModelInput = Field(description="The model to read.")


class Parameters(ResponseModel):
    """Distinct trainable parameters: no buffers, no multi-token-prediction layers, tied weights once."""

    total: int = Field(description="All of them.")
    active: int = Field(description="Total less the routed experts that a token does not use.")
    embedding: int = Field(description="The input embedding matrix (ViT: the patch projection).")
    per_layer: list[int] = Field(description="A number a block, encoder first.")


class ModelInspection(ResponseModel):
    """What was understood of a model."""

    parameters: Parameters
    architecture: dict[str, Any] = Field(description="The model as it will be priced.")
    assumptions: list[str] = Field(description="Every default that was used, every key that was ignored.")
