"""Every field of a plan has a fate with every target: it changes what is written, it is refused by name, or it has no
meaning there, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from cost_models.strategy import COLUMNS
from cost_models.workload import Workload
from search.launch.job import LaunchFiles, LaunchJob, NotExpressible

FIELDS = frozenset(COLUMNS) | {field.name for field in fields(Workload)}
Write = Callable[[LaunchJob], LaunchFiles]


def with_strategy(job: LaunchJob, **changes: Any) -> LaunchJob:
    """The job with these fields, whatever they would resolve to."""
    return replace(job, strategy={**job.strategy, **changes})


def with_workload(job: LaunchJob, **changes: Any) -> LaunchJob:
    return replace(job, workload=replace(job.workload, **changes))


def check_every_field_has_a_fate(
    write: Write,
    written: Mapping[str, tuple[LaunchJob, LaunchJob]],
    refused: Mapping[str, LaunchJob],
    without_meaning: Mapping[str, str],
) -> None:
    """`written`: two jobs whose files differ. A field may be written at some values and refused at others."""
    assert set(written) | set(refused) | set(without_meaning) == FIELDS
    assert not set(without_meaning) & (set(written) | set(refused))
    assert all(len(reason) > 20 for reason in without_meaning.values())
    for field, (one, other) in written.items():
        assert write(one) != write(other), field
    for field, job in refused.items():
        with pytest.raises(NotExpressible) as caught:
            write(job)
        assert field in caught.value.reasons, field
        assert len(caught.value.reasons[field]) > 20
