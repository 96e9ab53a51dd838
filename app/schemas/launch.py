"""The files that start a plan."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from app.schemas.base import QueryModel, ResponseModel, refuse_odd_text

TargetName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(refuse_odd_text)]


class LaunchQuery(QueryModel):
    """What to write the files for."""

    target: TargetName | None = Field(
        None,
        description="A launch target of the plan's framework, as `catalog/frameworks` lists them; left out: the first.",
    )


class LaunchFile(ResponseModel):
    """One text file."""

    path: str = Field(description="Its name, in the folder from which `command` is typed.")
    content: str


class Launch(ResponseModel):
    """What starts a plan."""

    target: str
    files: list[LaunchFile]
    command: str = Field(description="What to type, in the folder of the files.")
    environment: dict[str, str] = Field(description="Variables that the files export, or that are to be exported.")
    notes: list[str] = Field(description="What to fill in and to know; the reason of each variable.")
