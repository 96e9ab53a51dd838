"""Searches as a worker sees them: run one, store what it finds block by block, store how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import structlog

from app.db.base import utc_now
from app.db.models import Status
from app.db.session import DATABASE_AWAY, Database
from app.repositories.searches import BegunWith, SearchRepository
from app.services.held_job import HeldJob, LeaseLost
from app.services.serving_model import Served, ServingModel
from cost_models.errors import InvalidInput
from search.result import Progress, SearchResult, Trial

log = structlog.get_logger(__name__)

Report = Callable[[Progress, Sequence[Trial]], None]


class Solve(Protocol):
    """Runs the search that a stored request asks for. `past`: trials of an earlier attempt, already stored; `served`:
    what was learned when the search began."""

    def __call__(
        self,
        request: Mapping[str, Any],
        *,
        past: Sequence[Trial],
        report: Report,
        cancelled: Callable[[], bool],
        served: Served,
    ) -> SearchResult:
        """Answer the result, also when `cancelled` ended it early."""
        ...


class SearchRunner:
    """Works on the search of a job that this worker holds."""

    def __init__(self, database: Database, solve: Solve) -> None:
        self._database = database
        self._solve = solve
        self._serving = ServingModel(database)

    def prepare(self) -> None:
        """Load what serves now, before the first search asks for it: scikit-learn alone takes a second."""
        self._serving.current()

    def run(self, search_id: str, job: HeldJob) -> None:
        """Run a search to its end, or until the job is no longer ours. Raises LeaseLost and DATABASE_AWAY only: after
        these the lease decides who tries again."""
        started = time.monotonic()

        def report(progress: Progress, trials: Sequence[Trial]) -> None:
            self._store_block(search_id, job, progress, trials)

        try:
            request, served = self._asked(search_id)
            past = self._begin(search_id, job, served)
            result = self._solve(request, past=past, report=report, cancelled=job.should_stop, served=served)
            self._end(search_id, job, result, started)
        except (LeaseLost, *DATABASE_AWAY):
            raise
        except InvalidInput as error:
            self._fail(search_id, job, _invalid_input(error))
        except Exception as error:
            log.exception("search_failed", search_id=search_id)
            self._fail(search_id, job, _unexpected(error))

    def _asked(self, search_id: str) -> tuple[dict[str, Any], Served]:
        """The request, and what it is served with."""
        with self._database.read() as session:
            searches = SearchRepository(session)
            request, begun = searches.request(search_id), searches.begun_with(search_id)
        return request, Served(None) if request.get("learned") is False else self._served(begun)

    def _served(self, begun: BegunWith | None) -> Served:
        """What was learned when the search was first claimed; what serves now if that cannot be loaded any more."""
        if begun is None:
            return self._serving.current()
        if begun.version is None:
            return Served(None)
        corrections = self._serving.version(begun.version)
        return self._serving.current() if corrections is None else Served(corrections)

    def _begin(self, search_id: str, job: HeldJob, served: Served) -> list[Trial]:
        with self._database.write() as session:
            job.renew(session)
            searches = SearchRepository(session)
            searches.mark_running(search_id, memory_model_version=served.version)
            return [Trial.from_dict(body) for body in searches.trials(search_id)]

    def _store_block(self, search_id: str, job: HeldJob, progress: Progress, trials: Sequence[Trial]) -> None:
        with self._database.write() as session:
            job.renew(session, has_moved_on=bool(trials))
            searches = SearchRepository(session)
            searches.add_trials(search_id, [(trial.number, trial.as_dict()) for trial in trials])
            searches.set_progress(search_id, asdict(progress))

    def _end(self, search_id: str, job: HeldJob, result: SearchResult, started: float) -> None:
        with self._database.write() as session:
            job.renew(session)
            if job.should_stop() and not job.is_cancelled:
                # The process is ending: what was found stays, and another worker goes on from there.
                job.release(session)
                return
            status = Status.CANCELLED if job.is_cancelled else Status.SUCCEEDED
            body = result.as_dict() | {"elapsed_seconds": time.monotonic() - started}
            SearchRepository(session).finish(search_id, status, finished_at=utc_now(), result=body)
            job.finish(session, status)
        log.info("search_ended", search_id=search_id, status=status.value, elapsed_seconds=body["elapsed_seconds"])

    def _fail(self, search_id: str, job: HeldJob, error: Mapping[str, Any]) -> None:
        with self._database.write() as session:
            job.finish(session, Status.FAILED, error=error["detail"])
            SearchRepository(session).finish(search_id, Status.FAILED, finished_at=utc_now(), error=error)


def worker_lost(attempts: int) -> dict[str, Any]:
    """The error of work whose workers all fell silent."""
    return {
        "type": "worker-lost",
        "title": "The work could not be finished",
        "status": 500,
        "detail": f"The worker was lost {attempts} times in a row while it worked on this; it is not tried again.",
    }


def _invalid_input(error: InvalidInput) -> dict[str, Any]:
    return {
        "type": "invalid-input",
        "title": "The request breaks a rule",
        "status": 422,
        "detail": str(error),
        "errors": [{"loc": list(error.loc), "code": error.code, "message": error.message}],
    }


def _unexpected(error: Exception) -> dict[str, Any]:
    return {
        "type": "search-failed",
        "title": "The search failed",
        "status": 500,
        "detail": f"An internal error ended the search: {type(error).__name__}. The worker's log tells more.",
    }
