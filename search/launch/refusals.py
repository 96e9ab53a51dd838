"""What a target's files cannot say, gathered field by field before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from search.launch.job import LaunchJob, NotExpressible


class Only(NamedTuple):
    """The target has a field for these values and no other."""

    field: str
    values: Collection[Any]
    reason: str


def outside(job: LaunchJob, limits: Iterable[Only]) -> dict[str, str]:
    """Strategy field → why not, of every limit that the plan does not keep."""
    return {
        limit.field: f"{limit.reason} (it is {job.strategy[limit.field]!r})"
        for limit in limits
        if job.strategy[limit.field] not in limit.values
    }


def refuse(target: str, *found: Mapping[str, str]) -> None:
    """Raises NotExpressible with every field found, the first reason of each; nothing found: nothing raised."""
    reasons: dict[str, str] = {}
    for each in found:
        reasons = {**each, **reasons}
    if reasons:
        raise NotExpressible(target, reasons)
