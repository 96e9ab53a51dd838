"""What a worker does with a job: every way it can end, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.db.base import utc_now
from app.db.models import Job, Search, Status
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.jobs.lease import Lease
from app.repositories.jobs import JobRepository
from app.repositories.searches import SearchRepository
from app.services.search_runs import Report, Solve
from app.services.searches import SearchService
from app.services.serving_model import Served
from app.services.training import Trained, TrainingSet
from app.settings import Settings
from cost_models.errors import InvalidInput
from search.result import Progress, SearchResult, Trial
from tests.app.learned_versions import store_version, version_of


def learn_nothing(runs: TrainingSet, *, version: int, now: datetime) -> Trained:
    raise AssertionError


Body = Callable[[Sequence[Trial], Report, Callable[[], bool]], None]


def trial(number: int) -> Trial:
    return Trial(
        number=number,
        parameters={"tp": 4},
        nodes=8,
        strategy={"framework": "megatron-lm"},
        valid=True,
        fits=True,
        values=(12.5,),
        constraints={"memory_gib": -3.0},
        step_seconds=12.5,
        peak_bytes=6.0e10,
        required_upper_bytes=6.2e10,
    )


def progress(trials: int) -> Progress:
    return Progress(phase="study", done=trials, total=9, trials=trials, best_step_seconds=12.5)


RESULT = SearchResult(
    plans=(),
    tight=(),
    pareto=(),
    current=None,
    space_size=10,
    evaluated=5,
    trials=2,
    stopped_by="trials",
    elapsed_seconds=0.0,
    memory_model_version=None,
    rejected={"heads_not_divisible": 5},
    verdict="nothing fits",
    assumptions=("a",),
)


def solver(body: Body) -> Solve:
    def solve(
        request: Mapping[str, Any],
        *,
        past: Sequence[Trial],
        report: Report,
        cancelled: Callable[[], bool],
        served: Served,
    ) -> SearchResult:
        assert request == {"seed": 7}
        assert served == Served(None)
        body(past, report, cancelled)
        return RESULT

    return solve


class Bench:
    """One database with one search, and workers for it."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.job_ids: list[str] = []
        self.service = SearchService(database, wake=self.job_ids.append, max_attempts=2)
        self.search_id = self.service.create({"seed": 7}, labels={}).id

    @property
    def job_id(self) -> str:
        return self.job_ids[0]

    def executor(self, body: Body) -> JobExecutor:
        return JobExecutor(self.database, self.settings, solver(body), learn_nothing, worker="host:1")

    def search(self) -> Search:
        return self.service.get(self.search_id)

    def job(self) -> Job:
        with self.database.read() as session:
            job = session.get(Job, self.job_id)
        assert job is not None
        return job

    def trial_numbers(self) -> list[int]:
        with self.database.read() as session:
            return [body["number"] for body in SearchRepository(session).trials(self.search_id)]

    def take_over(self, owner: str = "another") -> None:
        """Another worker claims the job, as after a lease that ran out."""
        long_after = utc_now() + timedelta(days=1)
        with self.database.write() as session:
            assert JobRepository(session).claim(self.job_id, owner, now=long_after, lease_until=long_after)


@pytest.fixture
def bench(database: Database, database_url: str) -> Bench:
    return Bench(database, Settings(database_url=database_url, lease_seconds=5.0, heartbeat_seconds=0.02))


def test_what_serves_is_loaded_before_the_first_search(bench: Bench) -> None:
    store_version(bench.database, 3, version_of(version=3))
    used: list[int | None] = []

    def solve(
        request: Mapping[str, Any],
        *,
        past: Sequence[Trial],
        report: Report,
        cancelled: Callable[[], bool],
        served: Served,
    ) -> SearchResult:
        used.append(served.version)
        return RESULT

    executor = JobExecutor(bench.database, bench.settings, solve, learn_nothing, worker="host:1")
    with capture_logs() as logs:
        executor.prepare()
        loaded = [entry["event"] for entry in logs]
        executor.execute(bench.job_id)
    assert loaded == ["memory_model_loaded"]
    assert [entry["event"] for entry in logs].count("memory_model_loaded") == 1
    assert used == [3]


def test_a_search_runs_to_its_result(bench: Bench) -> None:
    states: list[tuple[str, int]] = []

    def body(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        assert past == []
        report(progress(0), [])
        report(progress(2), [trial(0), trial(1)])
        states.append((bench.search().status, bench.service.state(bench.search_id).revision))

    bench.executor(body).execute(bench.job_id)
    search, job = bench.search(), bench.job()
    assert states == [("running", 3)]
    assert search.status == job.state == "succeeded"
    assert search.progress == {"phase": "study", "done": 2, "total": 9, "trials": 2, "best_step_seconds": 12.5}
    assert search.result is not None
    assert search.result.pop("elapsed_seconds") > 0
    assert search.result == {key: value for key, value in RESULT.as_dict().items() if key != "elapsed_seconds"}
    assert (search.error, bench.trial_numbers(), job.attempt) == (None, [0, 1], 1)
    assert search.finished_at is not None


def test_a_repeated_message_does_nothing(bench: Bench) -> None:
    runs: list[None] = []
    executor = bench.executor(lambda *_: runs.append(None))
    executor.execute(bench.job_id)
    executor.execute(bench.job_id)
    executor.execute("unknown")
    assert len(runs) == 1


def test_a_rule_that_is_broken_at_run_time_is_named(bench: Bench) -> None:
    def body(*_: object) -> None:
        raise InvalidInput(("space", "zero_stage"), "empty", "needs at least one value")

    bench.executor(body).execute(bench.job_id)
    search = bench.search()
    assert (search.status, bench.job().state) == ("failed", "failed")
    assert search.error == {
        "type": "invalid-input",
        "title": "The request breaks a rule",
        "status": 422,
        "detail": "space.zero_stage: needs at least one value",
        "errors": [{"loc": ["space", "zero_stage"], "code": "empty", "message": "needs at least one value"}],
    }


@pytest.mark.parametrize("fault", [ZeroDivisionError("secret"), ValueError("secret")])
def test_a_fault_fails_the_search_and_is_not_tried_again(bench: Bench, fault: Exception) -> None:
    def body(*_: object) -> None:
        raise fault

    bench.executor(body).execute(bench.job_id)
    search = bench.search()
    assert (search.status, bench.job().state, bench.job().attempt) == ("failed", "failed", 1)
    assert search.error is not None
    assert search.error["status"] == 500
    assert type(fault).__name__ in search.error["detail"]
    assert "secret" not in search.error["detail"]


def test_a_result_that_is_not_json_fails_the_search(bench: Bench) -> None:
    def body(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        report(Progress(phase="study", done=1, total=1, trials=1, best_step_seconds=float("nan")), [])

    bench.executor(body).execute(bench.job_id)
    assert bench.search().status == "failed"


def test_cancelling_keeps_what_was_found(bench: Bench) -> None:
    def body(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        report(progress(1), [trial(0)])
        bench.service.cancel(bench.search_id)
        until(cancelled)

    bench.executor(body).execute(bench.job_id)
    search = bench.search()
    assert (search.status, bench.job().state) == ("cancelled", "cancelled")
    assert search.result is not None
    assert search.result["plans"] == []
    assert bench.trial_numbers() == [0]


def test_a_worker_that_ends_gives_the_search_back(bench: Bench) -> None:
    def first(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        report(progress(2), [trial(0), trial(1)])
        executor.stop()
        until(cancelled)

    executor = bench.executor(first)
    executor.execute(bench.job_id)
    assert (bench.job().state, bench.job().attempt, bench.search().result) == ("queued", 0, None)
    executor.execute(bench.job_id)
    assert bench.job().state == "queued"

    resumed: list[Sequence[Trial]] = []

    def second(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        resumed.append(past)
        report(progress(3), [trial(2)])

    bench.executor(second).execute(bench.job_id)
    assert resumed == [[trial(0), trial(1)]]
    assert bench.trial_numbers() == [0, 1, 2]
    assert bench.search().status == "succeeded"


def test_a_worker_that_was_replaced_writes_nothing(bench: Bench) -> None:
    def body(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        bench.take_over()
        report(progress(1), [trial(0)])

    bench.executor(body).execute(bench.job_id)
    assert (bench.trial_numbers(), bench.search().progress, bench.search().status) == ([], None, "running")
    assert (bench.job().owner, bench.job().state) == ("another", "running")


def test_a_worker_that_was_replaced_is_told_by_its_heartbeat_and_does_not_end_the_search(bench: Bench) -> None:
    def body(past: Sequence[Trial], report: Report, cancelled: Callable[[], bool]) -> None:
        bench.take_over()
        until(cancelled)

    bench.executor(body).execute(bench.job_id)
    assert (bench.job().owner, bench.search().status, bench.search().result) == ("another", "running", None)


def test_a_replaced_worker_does_not_report_its_own_failure(bench: Bench) -> None:
    def body(*_: object) -> None:
        bench.take_over()
        raise ZeroDivisionError

    bench.executor(body).execute(bench.job_id)
    assert (bench.search().status, bench.search().error) == ("running", None)


def test_a_search_whose_workers_are_all_lost_fails_with_the_reason(bench: Bench) -> None:
    idle = bench.executor(lambda *_: None)
    assert idle.sweep() == [bench.job_id]
    long_ago = utc_now() - timedelta(days=1)
    for owner in ("a", "b"):
        with bench.database.write() as session:
            job = JobRepository(session).claim(
                bench.job_id, owner, now=long_ago, lease_until=long_ago - timedelta(hours=1)
            )
        assert job is not None
        assert idle.sweep() == ([bench.job_id] if owner == "a" else [])
    search = bench.search()
    assert (search.status, bench.job().state) == ("failed", "failed")
    assert search.error is not None
    assert (search.error["type"], search.finished_at is not None) == ("worker-lost", True)
    assert "2 times" in search.error["detail"]


def test_the_lease_is_kept_while_the_search_computes(bench: Bench) -> None:
    lease = Lease.claim(bench.database, bench.job_id, "host:1", bench.settings, threading.Event())
    assert lease is not None
    claimed_until = bench.job().lease_until
    assert claimed_until is not None
    with lease.kept():
        until(lambda: (bench.job().lease_until or claimed_until) > claimed_until)
    assert not lease.should_stop()


def test_old_searches_are_purged(bench: Bench) -> None:
    executor = bench.executor(lambda *_: None)
    recent = bench.service.create({"seed": 8}, labels={}).id
    executor.execute(bench.job_id)
    with bench.database.write() as session:
        old = utc_now() - timedelta(days=91)
        SearchRepository(session).finish(bench.search_id, Status.SUCCEEDED, finished_at=old)
        SearchRepository(session).add_trials(bench.search_id, [(0, {})])
        job = Job(kind="purge", max_attempts=1, created_at=old, schedule="purge", slot="2026-12-01T03:17")
        JobRepository(session).add(job)
    executor.execute(job.id)
    assert [search.id for search in bench.service.list(limit=9).items] == [recent]
    assert bench.trial_numbers() == []
    with bench.database.read() as session:
        assert session.get(Job, bench.job_id) is None
        purge = session.get(Job, job.id)
    assert purge is not None
    assert purge.state == "succeeded"


def until(condition: Callable[[], bool]) -> None:
    """Wait for what a heartbeat brings."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)
