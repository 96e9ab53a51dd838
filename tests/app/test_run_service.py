"""Logging and reading of runs without HTTP: equal keys at the same moment, and what a training reads."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from app.db.base import new_ids, utc_now
from app.db.models import Job, MemoryModel, ModelState, ModelTrigger, Status
from app.db.session import Database
from app.repositories.runs import RunRepository
from app.schemas.examples import RUN, RUN_OUT_OF_MEMORY
from app.services.run_checks import RunKeyConflict
from app.services.runs import delete_run, log_runs, logged_runs


def runs(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [RUN | {"key": f"run-{number}"} | changes for number in range(count)]


def count_after(database: Database, run_id: str | None) -> int:
    with database.read() as session:
        return RunRepository(session).count_after(run_id)


def test_ids_of_one_moment_are_in_order() -> None:
    ids = new_ids(5000)
    assert len(set(ids)) == 5000
    assert ids == sorted(ids)
    assert {identifier[14] for identifier in ids} == {"7"}
    assert {identifier[19] for identifier in ids} <= set("89ab")


class TestEqualKeysAtTheSameMoment:
    def test_are_one_run(self, database: Database) -> None:
        start = Barrier(4)
        records = runs(300)

        def log(caller: int) -> list[str]:
            start.wait()
            # Forwards and backwards: whoever waits for one key must not hold another that is waited for.
            return log_runs(database, records) if caller % 2 else log_runs(database, records[::-1])[::-1]

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(log, range(4)))
        assert answers[0] == answers[1] == answers[2] == answers[3]
        assert count_after(database, None) == 300

    def test_with_other_content_are_a_conflict_of_all_but_one(self, database: Database) -> None:
        start = Barrier(4)

        def log(caller: int) -> list[tuple[str | int, ...]]:
            start.wait()
            try:
                log_runs(database, [*runs(50, model_name=f"of {caller}"), RUN | {"key": f"own-{caller}"}])
            except RunKeyConflict as conflict:
                return [error.loc for error in conflict.errors]
            return []

        with ThreadPoolExecutor(4) as pool:
            refused = sorted(pool.map(log, range(4)))
        assert refused == [[], *[[(index, "key") for index in range(50)]] * 3]
        assert count_after(database, None) == 51


class TestWhatATrainingReads:
    def test_every_run_with_the_time_of_its_logging(self, database: Database) -> None:
        before = utc_now()
        first, second = log_runs(database, [RUN_OUT_OF_MEMORY, RUN | {"key": "b"}])
        (third,) = log_runs(database, [RUN | {"key": "a"}])
        with database.read() as session:
            read = logged_runs(session)
            digest = RunRepository(session).ids_sha256()
        logged_at = [record["logged_at"] for record in read.records]
        assert read.records == (
            RUN_OUT_OF_MEMORY | {"logged_at": logged_at[0]},
            RUN | {"key": "b", "logged_at": logged_at[1]},
            RUN | {"key": "a", "logged_at": logged_at[2]},
        )
        assert before.isoformat() <= logged_at[0] == logged_at[1] < logged_at[2]
        assert logged_at[0].endswith("+00:00")
        assert read.ids == (first, second, third)
        assert read.ids_sha256 == digest == hashlib.sha256(f"{first}{second}{third}".encode()).hexdigest()

    def test_equal_parts_are_kept_once(self, database: Database) -> None:
        log_runs(database, runs(3))
        with database.read() as session:
            records = logged_runs(session).records
        for part in ("model", "cluster", "workload", "strategy", "software"):
            assert len({id(record[part]) for record in records}) == 1

    def test_no_runs(self, database: Database) -> None:
        with database.read() as session:
            read = logged_runs(session)
        assert (read.records, read.ids) == ((), ())
        assert read.ids_sha256 == hashlib.sha256().hexdigest()

    def test_new_runs_are_counted(self, database: Database) -> None:
        assert count_after(database, None) == 0
        ids = log_runs(database, runs(4))
        assert count_after(database, None) == 4
        assert count_after(database, ids[1]) == 2
        delete_run(database, ids[1])
        assert count_after(database, ids[1]) == 2
        delete_run(database, ids[2])
        assert count_after(database, ids[1]) == 1


class TestTrainingsAreSingle:
    def test_one_waits_and_one_runs(self, database: Database) -> None:
        for state in (Status.QUEUED, Status.RUNNING):
            _add(database, _training(state))
            with pytest.raises(IntegrityError):
                _add(database, _training(state))
        for state in (Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED):
            _add(database, _training(state))
        for state in (Status.QUEUED, Status.QUEUED, Status.RUNNING, Status.RUNNING):
            _add(database, Job(kind="search", state=state, max_attempts=1, created_at=utc_now()))

    def test_one_version_serves(self, database: Database) -> None:
        _add(database, _version(1, ModelState.ARCHIVED))
        _add(database, _version(2, ModelState.SERVING))
        _add(database, _version(3, ModelState.ARCHIVED))
        with pytest.raises(IntegrityError):
            _add(database, _version(4, ModelState.SERVING))


def _training(state: Status) -> Job:
    return Job(kind="retrain", state=state, max_attempts=1, created_at=utc_now())


def _version(version: int, state: ModelState) -> MemoryModel:
    return MemoryModel(version=version, state=state, trigger=ModelTrigger.REQUEST, created_at=utc_now())


def _add(database: Database, row: Any) -> None:
    with database.write() as session:
        session.add(row)
