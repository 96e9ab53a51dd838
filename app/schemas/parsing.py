"""A launch file or config that somebody has, read back as a Strategy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from app.schemas import examples
from app.schemas.base import RequestModel, ResponseModel, refuse_odd_text
from app.schemas.clusters import ClusterInput

Format = Literal["deepspeed", "megatron-lm", "torchtitan", "accelerate"]
Content = Annotated[str, Field(min_length=1), AfterValidator(refuse_odd_text)]


class ParseRequest(RequestModel):
    """What a framework is started with."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.PARSE_DEEPSPEED, examples.PARSE_MEGATRON]})

    format: Format = Field(
        description="deepspeed: `ds_config.json`; megatron-lm: a shell script, command line or JSON list of arguments; "
        "torchtitan: its config; accelerate: its YAML."
    )
    content: Content = Field(description="The text.")
    cluster: ClusterInput | None = Field(None, description="On which it runs; tells the data-parallel size.")


class Parsed(ResponseModel):
    """What the text says. What it leaves to a default that is not the framework's own is left out."""

    strategy: dict[str, Any] = Field(description="Fields of a Strategy, as `current` of a search or an estimate take.")
    workload: dict[str, Any] = Field(description="Fields of a Workload.")
    unmapped: list[str] = Field(description="Options that no field stands for, though they may matter.")
    model: dict[str, Any] | None = Field(description="A ModelInput, where the text describes one.")
