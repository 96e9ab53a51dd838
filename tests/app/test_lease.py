"""The lease contract, which both databases must keep."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.db.models import Job, Status
from app.db.session import Database
from app.repositories.jobs import JobRepository

START = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=10)


@pytest.fixture
def job_id(database: Database) -> str:
    job = Job(kind="search", max_attempts=2, created_at=START)
    with database.write() as session:
        JobRepository(session).add(job)
    return job.id


def claim(database: Database, job_id: str, owner: str, now: datetime) -> Job | None:
    with database.write() as session:
        return JobRepository(session).claim(job_id, owner, now=now, lease_until=now + LEASE)


def heartbeat(database: Database, job_id: str, owner: str, now: datetime) -> bool | None:
    with database.write() as session:
        return JobRepository(session).heartbeat(job_id, owner, lease_until=now + LEASE)


def finish(database: Database, job_id: str, owner: str, state: Status = Status.SUCCEEDED) -> bool:
    with database.write() as session:
        return JobRepository(session).finish(job_id, owner, state, finished_at=START)


def stored(database: Database, job_id: str) -> Job:
    with database.read() as session:
        job = session.get(Job, job_id)
    assert job is not None
    return job


class TestClaim:
    def test_takes_a_queued_job(self, database: Database, job_id: str) -> None:
        job = claim(database, job_id, "a", START)
        assert job is not None
        assert (job.state, job.owner, job.attempt, job.lease_until) == (Status.RUNNING, "a", 1, START + LEASE)

    def test_refuses_a_job_that_another_holds(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        assert claim(database, job_id, "b", START + LEASE) is None
        assert stored(database, job_id).owner == "a"

    def test_takes_a_job_whose_lease_ran_out(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        job = claim(database, job_id, "b", START + LEASE + timedelta(microseconds=1))
        assert job is not None
        assert (job.owner, job.attempt) == ("b", 2)

    def test_stops_after_the_last_attempt(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        claim(database, job_id, "b", START + 2 * LEASE)
        assert claim(database, job_id, "c", START + 4 * LEASE) is None

    def test_refuses_a_finished_job(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        finish(database, job_id, "a")
        assert claim(database, job_id, "b", START + 2 * LEASE) is None

    def test_an_unknown_job_is_not_to_be_had(self, database: Database) -> None:
        assert claim(database, "no such job", "a", START) is None


class TestHeartbeat:
    def test_extends_the_lease(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        assert heartbeat(database, job_id, "a", START + LEASE) is False
        assert claim(database, job_id, "b", START + LEASE + timedelta(seconds=1)) is None

    def test_tells_the_owner_that_the_lease_is_lost(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        claim(database, job_id, "b", START + 2 * LEASE)
        assert heartbeat(database, job_id, "a", START + 2 * LEASE) is None
        assert heartbeat(database, job_id, "b", START + 2 * LEASE) is False

    def test_a_late_owner_keeps_a_job_that_nobody_took(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        assert heartbeat(database, job_id, "a", START + 5 * LEASE) is False

    def test_a_job_that_moves_on_is_at_its_first_attempt(self, database: Database, job_id: str) -> None:
        for number in range(4):
            owner, now = f"host:{number}", START + number * 2 * LEASE
            job = claim(database, job_id, owner, now)
            assert job is not None
            assert job.attempt == min(number, 1) + 1
            with database.write() as session:
                JobRepository(session).heartbeat(job_id, owner, lease_until=now + LEASE, has_moved_on=True)
            assert stored(database, job_id).attempt == 1


@pytest.mark.postgres
def test_the_clock_of_leases_is_the_databases(
    postgresql_url: str, open_database: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tools that patch this process's clock must not matter either: the server is another process.
    monkeypatch.setattr("app.repositories.jobs.utc_now", lambda: START - timedelta(days=9999))
    with open_database(postgresql_url).read() as session:
        assert abs(JobRepository(session).now() - datetime.now(UTC)) < timedelta(hours=1)


class TestFinish:
    def test_ends_the_job(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        assert finish(database, job_id, "a")
        job = stored(database, job_id)
        assert (job.state, job.owner, job.lease_until, job.finished_at) == (Status.SUCCEEDED, None, None, START)

    def test_happens_once(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        assert finish(database, job_id, "a")
        assert not finish(database, job_id, "a", Status.FAILED)
        assert stored(database, job_id).state == Status.SUCCEEDED

    def test_is_the_owners_alone(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        claim(database, job_id, "b", START + 2 * LEASE)
        assert not finish(database, job_id, "a")
        assert stored(database, job_id).state == Status.RUNNING


class TestRelease:
    def test_gives_the_attempt_back(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        with database.write() as session:
            assert JobRepository(session).release(job_id, "a")
        job = stored(database, job_id)
        assert (job.state, job.owner, job.attempt) == (Status.QUEUED, None, 0)
        assert claim(database, job_id, "b", START) is not None

    def test_is_the_owners_alone(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        with database.write() as session:
            assert not JobRepository(session).release(job_id, "b")


class TestTakeBack:
    def take_back(self, database: Database, worker: str) -> int:
        with database.write() as session:
            return JobRepository(session).take_back(worker)

    def test_a_dead_workers_job_waits_again(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "host:1:a", START)
        assert self.take_back(database, "host:1") == 1
        job = stored(database, job_id)
        assert (job.state, job.owner, job.lease_until, job.attempt) == (Status.QUEUED, None, None, 1)

    @pytest.mark.parametrize("worker", ["host:2", "host:1", "h_st:11", "host:11:a"])
    def test_other_workers_keep_theirs(self, database: Database, job_id: str, worker: str) -> None:
        claim(database, job_id, "host:11:a", START)
        assert self.take_back(database, worker) == 0

    def test_the_last_attempt_is_left_to_the_sweep(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "host:1:a", START)
        claim(database, job_id, "host:1:b", START + 2 * LEASE)
        assert self.take_back(database, "host:1") == 0


class TestSweep:
    def test_expired_jobs_may_be_tried_again(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        with database.write() as session:
            jobs = JobRepository(session)
            assert jobs.expired(START + LEASE) == []
            assert jobs.expired(START + 2 * LEASE) == [job_id]

    def test_exhausted_jobs_fail_once(self, database: Database, job_id: str) -> None:
        claim(database, job_id, "a", START)
        claim(database, job_id, "b", START + 2 * LEASE)
        with database.write() as session:
            jobs = JobRepository(session)
            assert jobs.expired(START + 4 * LEASE) == []
            assert [job.id for job in jobs.fail_exhausted(START + 4 * LEASE, "lost")] == [job_id]
            assert jobs.fail_exhausted(START + 4 * LEASE, "lost") == []
        job = stored(database, job_id)
        assert (job.state, job.error) == (Status.FAILED, "lost")
        assert not finish(database, job_id, "b")

    def test_queued_jobs_come_oldest_first(self, database: Database, job_id: str) -> None:
        later = Job(kind="search", max_attempts=1, created_at=START)
        with database.write() as session:
            JobRepository(session).add(later)
        with database.read() as session:
            assert JobRepository(session).queued() == [job_id, later.id]


class TestSlot:
    def test_a_slot_of_a_schedule_makes_one_job(self, database: Database) -> None:
        def insert(slot: str) -> bool:
            job = Job(kind="purge", max_attempts=1, created_at=START, schedule="purge", slot=slot)
            with database.write() as session:
                return JobRepository(session).add_once(job)

        assert [insert("03:17"), insert("03:17"), insert("03:18")] == [True, False, True]
        with database.read() as session:
            assert JobRepository(session).count(Status.QUEUED) == 2
