"""When a training is asked for: at the first start, at slots, after new runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.db.models import Job, ModelState, ModelTrigger
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.jobs.schedule import Scheduler
from app.repositories.memory_models import MemoryModelRepository
from app.services.retraining import Retraining
from app.services.training import Software
from app.settings import Settings
from tests.app.test_training import never_solve
from tests.app.trainings import SOFTWARE, FakeTrain, log_runs, model_of, states, training_jobs

DAY = timedelta(days=1)
EVENING = datetime(2026, 12, 1, 20, 0, tzinfo=UTC)
"""Between two slots of the default schedule, 2:23."""


class Bench:
    """One database over some days, and the scheduler of a worker."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.retraining = Retraining(database, max_attempts=2)

    def scheduler(self, software: Software = SOFTWARE, **settings: object) -> Scheduler:
        return Scheduler(self.database, self.settings.model_copy(update=settings), lambda: software)

    def work(self, jobs: list[str], train: FakeTrain | None = None) -> None:
        executor = JobExecutor(self.database, self.settings, never_solve, train or FakeTrain(), worker="host:1")
        for job_id in jobs:
            executor.execute(job_id)

    def start(self) -> None:
        """A database that has its first version, and whose schedule has begun."""
        self.work([*self.scheduler().at_start(), *self.scheduler().due(EVENING)])

    def slots(self) -> list[tuple[str, str, int | None]]:
        with self.database.read() as session:
            jobs = session.query(Job).filter(Job.schedule == "retrain").order_by(Job.slot).all()
        return [(job.slot or "", job.state, job.memory_model_version) for job in jobs]


@pytest.fixture
def bench(database: Database, database_url: str) -> Bench:
    return Bench(database, Settings(database_url=database_url))


class TestFirstStart:
    def test_version_1_is_asked_for_once(self, bench: Bench) -> None:
        (job_id,) = bench.scheduler().at_start()
        assert bench.scheduler().at_start() == []
        assert model_of(bench.database, 1).trigger == ModelTrigger.FIRST_START
        bench.work([job_id])
        assert bench.scheduler().at_start() == []
        assert states(bench.database) == {1: "serving"}

    def test_a_failed_first_training_is_tried_again_at_the_next_start(self, bench: Bench) -> None:
        def fail(_: object) -> None:
            raise ValueError

        bench.work(bench.scheduler().at_start(), FakeTrain(during=fail))
        bench.work(bench.scheduler().at_start())
        assert states(bench.database) == {1: "failed", 2: "serving"}

    @pytest.mark.parametrize(
        ("software", "is_new"),
        [
            (Software("features-1", {"scikit-learn": "1.9.7"}), False),
            (Software("features-1", {"scikit-learn": "1.10.1"}), True),
            (Software("features-2", {"scikit-learn": "1.9.1"}), True),
        ],
    )
    def test_a_new_version_where_the_software_cannot_read_the_last(
        self, bench: Bench, software: Software, is_new: bool
    ) -> None:
        bench.start()
        assert len(bench.scheduler(software).at_start()) == is_new

    def test_a_worker_that_does_not_train_asks_for_nothing(self, bench: Bench) -> None:
        scheduler = bench.scheduler(worker_trains=False)
        log_runs(bench.database, 99)
        assert (scheduler.at_start(), scheduler.due(EVENING), scheduler.due(EVENING + DAY)[1:]) == ([], [], [])
        assert states(bench.database) == {}


class TestSlots:
    def test_a_new_database_has_missed_nothing(self, bench: Bench) -> None:
        assert bench.scheduler().due(EVENING) == []
        assert bench.slots() == [("2026-12-01T02:23", "succeeded", None)]

    def test_a_slot_is_trained_once_however_many_workers_ask(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 1)
        night = datetime(2026, 12, 2, 2, 23, tzinfo=UTC)
        assert bench.scheduler().due(night - timedelta(seconds=1)) == []
        jobs = [*bench.scheduler().due(night), *bench.scheduler().due(night), *bench.scheduler().due(night + DAY / 2)]
        bench.work(jobs)
        assert states(bench.database) == {1: "archived", 2: "serving"}
        assert model_of(bench.database, 2).trigger == ModelTrigger.SCHEDULE
        assert bench.slots()[1:] == [("2026-12-02T02:23", "succeeded", 2)]

    def test_of_the_slots_that_were_missed_one_is_caught_up(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 1)
        bench.work(bench.scheduler().due(EVENING + 5 * DAY))
        assert bench.scheduler().due(EVENING + 5 * DAY) == []
        assert states(bench.database) == {1: "archived", 2: "serving"}
        assert bench.slots()[1:] == [("2026-12-06T02:23", "succeeded", 2)]

    def test_without_new_runs_the_slot_is_done_by_the_version_that_knows_all(self, bench: Bench) -> None:
        log_runs(bench.database, 3)
        bench.start()
        assert [job for job in bench.scheduler().due(EVENING + DAY) if job in retraining_ids(bench)] == []
        assert bench.slots()[1:] == [("2026-12-02T02:23", "succeeded", 1)]
        assert states(bench.database) == {1: "serving"}

    def test_a_run_that_was_deleted_is_a_change_too(self, bench: Bench) -> None:
        (run_id,) = log_runs(bench.database, 1)
        bench.start()
        from app.services.runs import delete_run

        delete_run(bench.database, run_id)
        bench.work(bench.scheduler().due(EVENING + DAY))
        assert states(bench.database) == {1: "archived", 2: "serving"}

    def test_a_slot_is_done_by_the_training_that_waits(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 1)
        assert bench.retraining.ask(ModelTrigger.REQUEST).version == 2
        bench.scheduler().due(EVENING + DAY)
        assert bench.slots()[1:] == [("2026-12-02T02:23", "succeeded", 2)]
        assert states(bench.database) == {1: "serving", 2: "queued"}

    def test_no_clock(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 1)
        bench.scheduler(retrain_cron="").due(EVENING + DAY)
        assert states(bench.database) == {1: "serving"}

    def test_purges_are_made_once_a_slot_too(self, bench: Bench) -> None:
        bench.start()
        assert len(bench.scheduler().due(EVENING + 3 * DAY)) == 1
        assert bench.scheduler().due(EVENING + 3 * DAY) == []


class TestNewRuns:
    def test_so_many_make_for_a_training(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 9)
        assert bench.scheduler().due(EVENING) == []
        log_runs(bench.database, 1)
        jobs = bench.scheduler().due(EVENING)
        assert bench.scheduler().due(EVENING) == []
        bench.work(jobs)
        assert bench.scheduler().due(EVENING) == []
        assert model_of(bench.database, 2).trigger == ModelTrigger.NEW_RUNS

    def test_those_that_came_during_a_training_are_counted_for_the_next(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 10)
        bench.work(bench.scheduler().due(EVENING), FakeTrain(during=lambda _: log_runs(bench.database, 10) and None))
        bench.work(bench.scheduler().due(EVENING))
        assert states(bench.database) == {1: "archived", 2: "archived", 3: "serving"}

    def test_a_training_that_failed_or_was_refused_is_not_repeated_without_more_of_them(self, bench: Bench) -> None:
        def fail(_: object) -> None:
            raise ValueError

        bench.start()
        log_runs(bench.database, 10)
        bench.work(bench.scheduler().due(EVENING), FakeTrain(during=fail))
        assert bench.scheduler().due(EVENING) == []
        log_runs(bench.database, 10)
        bench.work(bench.scheduler().due(EVENING), FakeTrain(promote=False))
        assert bench.scheduler().due(EVENING) == []
        assert states(bench.database) == {1: "serving", 2: "failed", 3: "kept"}

    def test_of_many_that_are_known_one_in_a_hundred_are_needed(self, bench: Bench) -> None:
        bench.start()
        with bench.database.write() as session:
            MemoryModelRepository(session).change(1, runs=2_000)
        log_runs(bench.database, 19)
        assert bench.scheduler().due(EVENING) == []
        log_runs(bench.database, 1)
        assert len(bench.scheduler().due(EVENING)) == 1

    def test_as_many_are_needed_while_a_training_runs(self, bench: Bench) -> None:
        bench.start()
        with bench.database.write() as session:
            MemoryModelRepository(session).change(1, runs=2_000)
        asked = bench.retraining.ask(ModelTrigger.REQUEST)
        due: list[list[str]] = []

        def look(_: object) -> None:
            for count in (19, 1):
                log_runs(bench.database, count)
                due.append(bench.scheduler().due(EVENING))

        bench.work([asked.job_id], FakeTrain(during=look))
        assert [len(jobs) for jobs in due] == [0, 1]

    def test_none_does(self, bench: Bench) -> None:
        bench.start()
        log_runs(bench.database, 99)
        assert bench.scheduler(retrain_after_runs=0).due(EVENING) == []


def test_old_versions_are_purged_but_for_what_serves_and_what_could(bench: Bench) -> None:
    for _ in range(13):
        bench.work([bench.retraining.ask(ModelTrigger.REQUEST).job_id])
    bench.work([bench.retraining.ask(ModelTrigger.REQUEST).job_id], FakeTrain(promote=False))
    bench.work([bench.retraining.ask(ModelTrigger.REQUEST).job_id], FakeTrain(promote=False))
    with bench.database.write() as session:
        MemoryModelRepository(session).purge(EVENING + 365 * DAY)
    kept = dict.fromkeys(range(3, 13), "archived") | {13: "serving", 15: "kept"}
    assert states(bench.database) == kept
    assert bench.retraining.ask(ModelTrigger.REQUEST).version == 16
    assert states(bench.database)[16] == ModelState.QUEUED


def retraining_ids(bench: Bench) -> set[str]:
    return {job.id for job in training_jobs(bench.database)}
