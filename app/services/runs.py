"""Measured runs as their clients see them: log, list, read, delete; and all of them, to learn from.

RunNotFound     no run has this id
RunsNotLogged   runs that break rules, or whose keys belong to others (app.services.run_checks)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from app.db.base import new_ids, utc_now
from app.db.models import Run
from app.db.session import Database
from app.repositories.runs import RunRepository
from app.schemas.runs import MOST_RUNS
from app.services.run_checks import CheckedRun, RunKeyConflict, RunsNotLogged, check_runs
from cost_models.errors import InvalidInput

SHARED_PARTS: Final = ("model", "cluster", "workload", "strategy", "software")
"""Parts of a record that many runs have in common."""
RUN_COLUMNS: Final = tuple(field.name for field in fields(CheckedRun))


class RunNotFound(Exception):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")
        self.run_id = run_id


@dataclass(frozen=True)
class RunPage:
    """Some runs, newest first; and where the next page begins, if there is one."""

    items: Sequence[Run]
    next_after: tuple[datetime, str] | None


@dataclass(frozen=True)
class LoggedRuns:
    """Every run that was logged, as one reading of the database has them, oldest first."""

    records: tuple[dict[str, Any], ...]
    """RunRecords, each with `logged_at`, an ISO time. Equal parts are one object: they are to be read only."""
    ids: tuple[str, ...]
    ids_sha256: str


def log_runs(database: Database, records: Sequence[Any], *, most: int = MOST_RUNS) -> list[str]:
    """Log RunRecords as they came in (JSON values); answers their ids, in order. All of them or none.

    A run that was logged before, by key and content, keeps its id. Raises RunsRefused with every bad record,
    RunKeyConflict where keys belong to other content, InvalidInput where there are no records or more than `most`.
    """
    checked = check_runs(records, most=most)
    distinct: dict[str, CheckedRun] = {}
    for run in checked:
        distinct.setdefault(run.key, run)
    _refuse_conflicts(checked, {run.key: run.content_sha256 for run in distinct.values()})
    now, ids = utc_now(), new_ids(len(distinct))
    rows = [_row(run, run_id, now) for run, run_id in zip(distinct.values(), ids, strict=True)]
    with database.write() as session:
        runs = RunRepository(session)
        runs.add_missing(rows)
        stored = runs.by_keys(list(distinct))
        _refuse_conflicts(checked, {key: run.content_sha256 for key, run in stored.items()})
    return [stored[run.key].run_id for run in checked]


def log_single_run(database: Database, record: Any) -> str:
    """Log one RunRecord; answers its id. As `log_runs`, with places of errors inside the record."""
    try:
        return log_runs(database, [record])[0]
    except RunsNotLogged as error:
        raise error.without_index() from None


def _refuse_conflicts(checked: Sequence[CheckedRun], contents: Mapping[str, str]) -> None:
    """Raise RunKeyConflict for the runs that are not what `contents`, hashes by key, has under their key."""
    conflicts = [
        InvalidInput((index, "key"), "key_conflict", f"the key {run.key!r} belongs to a run with other content")
        for index, run in enumerate(checked)
        if contents[run.key] != run.content_sha256
    ]
    if conflicts:
        raise RunKeyConflict(conflicts)


def _row(run: CheckedRun, run_id: str, now: datetime) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RUN_COLUMNS} | {"id": run_id, "created_at": now}


def get_run(database: Database, run_id: str) -> Run:
    """A run; raises RunNotFound."""
    with database.read() as session:
        run = RunRepository(session).get(run_id)
    if run is None:
        raise RunNotFound(run_id)
    return run


def list_runs(
    database: Database, *, limit: int, after: tuple[datetime, str] | None = None, filters: Mapping[str, str]
) -> RunPage:
    """A page of runs, newest first. `after`: `next_after` of the page before; `filters`: source, framework, gpu and
    cluster by name."""
    with database.read() as session:
        found = RunRepository(session).page(limit=limit + 1, after=after, filters=filters)
    items = found[:limit]
    return RunPage(items, (items[-1].created_at, items[-1].id) if len(found) > limit else None)


def delete_run(database: Database, run_id: str) -> None:
    """Forget a run; versions that were trained on it stay. Raises RunNotFound."""
    with database.write() as session:
        if not RunRepository(session).delete(run_id):
            raise RunNotFound(run_id)


def logged_runs(session: Session) -> LoggedRuns:
    """Every run, to train on. 100,000 of them fit in memory because equal parts are kept once."""
    records: list[dict[str, Any]] = []
    ids: list[str] = []
    digest = hashlib.sha256()
    kept: dict[str, Any] = {}
    for run_id, created_at, record in RunRepository(session).stream():
        for name in SHARED_PARTS:
            if name in record:
                record[name] = kept.setdefault(json.dumps(record[name]), record[name])
        records.append(record | {"logged_at": created_at.isoformat()})
        ids.append(run_id)
        digest.update(run_id.encode())
    return LoggedRuns(tuple(records), tuple(ids), digest.hexdigest())
