"""A training in a worker: every way it can end, on both databases; and never two at once, nor two that serve."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from app.db.base import utc_now
from app.db.models import ModelState, ModelTrigger
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.repositories.jobs import JobRepository
from app.repositories.memory_models import MemoryModelRepository
from app.services.retraining import Asked, Retraining
from app.services.training import NOT_COMPARED, Train, TrainingSet
from app.settings import Settings
from cost_models.published_runs import published_runs
from tests.app.trainings import FakeTrain, log_runs, model_of, states, training_jobs, waiting_jobs

PUBLISHED = len(published_runs())


def never_solve(*_: object, **__: object) -> None:
    raise AssertionError


class Bench:
    """One database, and workers for its trainings."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.retraining = Retraining(database, max_attempts=2)

    def ask(self) -> Asked:
        return self.retraining.ask(ModelTrigger.REQUEST)

    def executor(self, train: Train, worker: str = "host:1") -> JobExecutor:
        return JobExecutor(self.database, self.settings, never_solve, train, worker=worker)

    def train(self, train: Train) -> int:
        asked = self.ask()
        self.executor(train).execute(asked.job_id)
        return asked.version

    def serving(self) -> int | None:
        with self.database.read() as session:
            return MemoryModelRepository(session).serving_version()

    def promote(self, version: int) -> None:
        with self.database.write() as session:
            models = MemoryModelRepository(session)
            models.lock()
            models.promote(version, at=utc_now())


@pytest.fixture
def bench(database: Database, database_url: str) -> Bench:
    return Bench(database, Settings(database_url=database_url, lease_seconds=5.0, heartbeat_seconds=0.02))


class TestOutcome:
    def test_a_model_that_passes_the_gate_serves(self, bench: Bench) -> None:
        first, last = log_runs(bench.database, 2)
        train = FakeTrain(blob=b"one")
        assert bench.train(train) == 1
        model = model_of(bench.database, 1)
        assert (model.state, model.trigger, model.error) == ("serving", "request", None)
        assert (model.runs, model.last_run_id, model.runs_sha256) == (PUBLISHED + 2, last, train.sets[0].sha256)
        assert (model.schema, model.libraries) == ("features-1", {"scikit-learn": "1.9.1"})
        assert model.decision == {"promote": True, "reasons": ["as told"], "compared_with": None}
        assert model.report is not None
        assert model.report["seconds"] >= 0
        assert model.promoted_at == model.trained_at is not None
        with bench.database.read() as session:
            artifact = MemoryModelRepository(session).artifact(1)
        assert artifact is not None
        assert (artifact.blob, artifact.sha256) == (b"one", hashlib.sha256(b"one").hexdigest())
        assert [job.state for job in training_jobs(bench.database)] == ["succeeded"]
        assert [record["key"] for record in train.sets[0].records[PUBLISHED:]] == [first, last]
        assert all(record["logged_at"] for record in train.sets[0].records[PUBLISHED:])

    def test_the_one_before_is_archived(self, bench: Bench) -> None:
        bench.train(FakeTrain())
        bench.train(FakeTrain())
        assert states(bench.database) == {1: "archived", 2: "serving"}

    def test_the_gate_keeps_the_champion(self, bench: Bench) -> None:
        bench.train(FakeTrain())
        bench.train(FakeTrain(promote=False, blob=b"worse"))
        assert states(bench.database) == {1: "serving", 2: "kept"}
        decision = model_of(bench.database, 2).decision
        assert decision == {"promote": False, "reasons": ["as told"], "compared_with": 1}

    def test_what_the_champion_knows_is_told(self, bench: Bench) -> None:
        log_runs(bench.database, 3)
        bench.train(FakeTrain())
        log_runs(bench.database, 2)
        second = FakeTrain()
        bench.train(second)
        given = second.sets[0]
        assert (len(given.records), given.known) == (PUBLISHED + 5, PUBLISHED + 3)
        assert given.champion is not None
        assert given.champion.version == 1

    def test_a_failure_is_told_without_internals_and_the_champion_serves_on(self, bench: Bench) -> None:
        bench.train(FakeTrain())

        def fail(_: TrainingSet) -> None:
            raise ValueError("secret")

        bench.train(FakeTrain(during=fail))
        model = model_of(bench.database, 2)
        assert states(bench.database) == {1: "serving", 2: "failed"}
        assert model.error == "An internal error ended the training: ValueError."
        assert [job.state for job in training_jobs(bench.database)] == ["succeeded", "failed"]

    def test_a_report_that_is_not_json_fails_the_training_as_a_whole(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.app.trainings.REPORT", {"median_error": float("nan")})
        bench.train(FakeTrain())
        model = model_of(bench.database, 1)
        assert (model.state, model.report, model.blob_sha256) == ("failed", None, None)

    def test_one_that_was_not_compared_with_what_serves_now_is_kept(self, bench: Bench) -> None:
        bench.train(FakeTrain())
        bench.train(FakeTrain())
        bench.train(FakeTrain(during=lambda _: bench.promote(1)))
        decision = model_of(bench.database, 3).decision
        assert states(bench.database) == {1: "serving", 2: "archived", 3: "kept"}
        assert decision == {"promote": False, "reasons": ["as told", NOT_COMPARED], "compared_with": None}


class TestInterruption:
    def test_an_interrupt_gives_the_training_back_and_the_next_worker_ends_it(self, bench: Bench) -> None:
        def interrupt(_: TrainingSet) -> None:
            raise KeyboardInterrupt

        asked = bench.ask()
        with pytest.raises(KeyboardInterrupt):
            bench.executor(FakeTrain(during=interrupt)).execute(asked.job_id)
        (job,) = training_jobs(bench.database)
        assert (job.state, job.owner, job.attempt) == ("running", None, 0)
        assert states(bench.database) == {1: "running"}
        assert waiting_jobs(bench.database) == [asked.job_id]
        bench.executor(FakeTrain(), worker="host:2").execute(asked.job_id)
        assert states(bench.database) == {1: "serving"}

    def test_one_that_is_given_back_keeps_its_turn(self, bench: Bench) -> None:
        executor = bench.executor(FakeTrain(during=lambda _: executor.stop()))
        first = bench.ask()
        executor.execute(first.job_id)
        second = bench.ask()
        assert (first.version, second.version, second.is_new) == (1, 2, True)
        assert waiting_jobs(bench.database) == [first.job_id, second.job_id]
        other = bench.executor(FakeTrain())
        assert not other.may_train(second.job_id)
        other.execute(second.job_id)
        assert states(bench.database) == {1: "running", 2: "queued"}
        other.execute(first.job_id)
        assert other.may_train(second.job_id)
        other.execute(second.job_id)
        assert states(bench.database) == {1: "archived", 2: "serving"}

    def test_a_dead_workers_training_is_taken_back_while_another_waits(self, bench: Bench) -> None:
        first = bench.ask()
        now = utc_now()
        with bench.database.write() as session:
            JobRepository(session).claim(first.job_id, "host:9:training:a", now=now, lease_until=now)
            MemoryModelRepository(session).change(1, state=ModelState.RUNNING)
        bench.ask()
        with bench.database.write() as session:
            assert JobRepository(session).take_back("host:9") == 1
        bench.executor(FakeTrain()).execute(first.job_id)
        assert states(bench.database) == {1: "serving", 2: "queued"}

    def test_a_worker_that_was_replaced_writes_nothing(self, bench: Bench) -> None:
        asked = bench.ask()

        def take_over(_: TrainingSet) -> None:
            later = utc_now() + timedelta(days=1)
            with bench.database.write() as session:
                assert JobRepository(session).claim(asked.job_id, "another", now=later, lease_until=later)

        bench.executor(FakeTrain(during=take_over)).execute(asked.job_id)
        (job,) = training_jobs(bench.database)
        assert (job.owner, states(bench.database)) == ("another", {1: "running"})

    def test_one_whose_workers_were_all_lost_fails_and_the_next_gets_its_turn(self, bench: Bench) -> None:
        first = bench.ask()
        long_ago = utc_now() - timedelta(days=1)
        for owner in ("a", "b"):
            with bench.database.write() as session:
                JobRepository(session).claim(
                    first.job_id, owner, now=long_ago, lease_until=long_ago - timedelta(hours=1)
                )
                MemoryModelRepository(session).change(1, state=ModelState.RUNNING)
        second = bench.ask()
        executor = bench.executor(FakeTrain())
        assert executor.sweep() == [second.job_id]
        error = model_of(bench.database, 1).error
        assert error is not None
        assert "2 times" in error
        executor.execute(second.job_id)
        assert states(bench.database) == {1: "failed", 2: "serving"}


class TestRace:
    def test_two_workers_and_one_training(self, bench: Bench) -> None:
        asked, start, train = bench.ask(), Barrier(2), FakeTrain()

        def work(worker: str) -> None:
            executor = bench.executor(train, worker)
            start.wait()
            executor.execute(asked.job_id)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, ["host:1", "host:2"]))
        assert len(train.sets) == 1
        assert states(bench.database) == {1: "serving"}

    def test_one_trains_and_one_waits(self, bench: Bench) -> None:
        first = bench.ask()
        is_training, may_end = threading.Event(), threading.Event()

        def hold(_: TrainingSet) -> None:
            is_training.set()
            may_end.wait()

        with ThreadPoolExecutor(1) as threads:
            held = threads.submit(bench.executor(FakeTrain(during=hold)).execute, first.job_id)
            is_training.wait()
            second = bench.ask()
            other = bench.executor(FakeTrain(), "host:2")
            assert not other.may_train(second.job_id)
            other.execute(second.job_id)
            assert states(bench.database) == {1: "running", 2: "queued"}
            assert bench.ask() == Asked(2, second.job_id, is_new=False)
            may_end.set()
            held.result()
        other.execute(second.job_id)
        assert states(bench.database) == {1: "archived", 2: "serving"}

    def test_many_ask_at_once_and_one_training_waits(self, bench: Bench) -> None:
        start = Barrier(8)

        def ask(_: int) -> Asked:
            start.wait()
            return bench.ask()

        with ThreadPoolExecutor(start.parties) as threads:
            asked = list(threads.map(ask, range(start.parties)))
        assert {one.version for one in asked} == {1}
        assert sum(one.is_new for one in asked) == 1
        assert len(training_jobs(bench.database)) == 1

    def test_many_promote_at_once_and_one_serves(self, bench: Bench, in_turn: Callable[[int], None]) -> None:
        for _ in range(4):
            bench.train(FakeTrain())
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(in_turn, range(1, 5)))
        standing = list(states(bench.database).values())
        assert (standing.count("serving"), standing.count("archived")) == (1, 3)


@pytest.fixture
def in_turn(bench: Bench) -> Callable[[int], None]:
    """Promote a version as the service does, all at the same moment."""
    from app.services.memory_models import MemoryModelService

    service = MemoryModelService(bench.database, bench.settings, wake=lambda _: None, why_refused=lambda *_, **__: None)
    start = Barrier(4)

    def promote(version: int) -> None:
        start.wait()
        service.promote(version)

    return promote
