"""Made-up runs pass the service's checks, differ from one another, and are the same each time."""

from __future__ import annotations

from itertools import islice

from app.services.run_checks import check_runs
from benchmarks.synthetic_runs import CLUSTERS, synthetic_runs


def test_made_up_runs_can_be_logged() -> None:
    records = list(synthetic_runs(2000))
    checked = check_runs(records, most=2000)
    assert len({run.content_sha256 for run in checked}) > 1800
    assert {run.out_of_memory for run in checked} == {False, True}
    assert len({run.framework for run in checked}) >= 4
    assert {run.cluster.split("-")[1] for run in checked} == {str(number) for number in range(CLUSTERS)}
    assert records[:100] == list(islice(synthetic_runs(2000), 100))
    assert records[0] != next(synthetic_runs(2000, seed=1))
