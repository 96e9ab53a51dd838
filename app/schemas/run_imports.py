"""What `POST runs/import` takes and answers."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import Field

from app.run_logs.formats import FORMATS
from app.schemas.base import QueryModel, ResponseModel

CONTEXT: Final[dict[str, Any]] = {
    "model": {"architecture": {"vocab_size": 50257}},
    "cluster": {"name": "prod-a", "gpus_per_node": 4, "gpu": "v100-sxm2-32gb"},
    "source": "prod-a",
}
"""What a log of Megatron-LM with its dump of arguments leaves open."""


class ImportedRuns(ResponseModel):
    """Where the runs of a file are now, and how they were read."""

    ids: list[str] = Field(description="One a record, in order; a run that was logged before keeps its id.")
    format: str = Field(description="As it was asked for, or recognised by the content.")
    runs: int = Field(description="Runs that the file holds.")
    assumptions: list[str] = Field(description="How figures were read, where a log leaves a choice.")


class TemplateQuery(QueryModel):
    """Which template."""

    format: Literal["csv", "jsonl"] = Field("csv", description="Of the file.")


FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "A table of RunRecords or a training log, as it is or as gzip; up to 512 MiB.",
        },
        "format": {
            "type": "string",
            "enum": list(FORMATS),
            "description": "Left out: recognised by the content.",
        },
        "context": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "A RunRecord without what the file says; for a file of several runs also a list of as many.",
            "example": json.dumps(CONTEXT),
        },
        "stages": {
            "type": "string",
            "enum": ["fullest", "each"],
            "description": "Of a log that tells the memory of several pipeline stages: one run with its fullest stage "
            "(left out), or one record for each.",
        },
    },
}
"""The multipart body, as OpenAPI describes it: it is read after the key is checked, not by the framework before."""
