"""Measured searches: which strategy to run next, what its run gave, and where the search stands.

SearchTrialError
├── NotMeasured       the search is analytical
├── NotAnswered       its analytical part has not ended, or not with an answer
├── NothingToAsk      the budget is used up, or no candidate is left
├── TrialNotFound     no trial of the search has this number
└── TrialTold         the trial was told something else

Our table is the truth about the trials; Optuna's study of the same trials follows it. Each ask first tells the study
what a process that died could not: nothing is lost between an ask and its tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from optuna.exceptions import StorageInternalError
from optuna.study import Study
from sqlalchemy.exc import IntegrityError

from app.db.base import utc_now
from app.db.models import MeasuredTrial, Search, Status
from app.db.session import Database
from app.db.study_storage import StudyStorage
from app.repositories.measured_trials import MeasuredTrialRepository
from app.repositories.searches import SearchRepository
from app.schemas.search_trials import TrialOutcome
from app.schemas.searches import SearchRequest
from app.services.measured_section import measured_section, ratio, told_of
from app.services.problems import search_problem
from app.services.run_checks import RunKeyConflict
from app.services.runs import log_single_run
from app.services.searches import SearchNotFound
from app.services.serving_model import ServingModel
from search.evaluator import Evaluator
from search.measured_pool import MeasuredPool
from search.measured_study import Asked, NothingLeft, ask, open_study, tell, withdraw, withdraw_unclaimed

MOST_TIMES_ASKED: Final = 2
"""A run that nobody tells of twice has probably taken its runner down: it is given to no other."""
UNCLAIMED_SECONDS: Final = 60.0
"""After which a trial of the study that is none of ours is withdrawn: its process died between the two."""
MOST_COLLISIONS: Final = 20
"""With runners that ask at the same moment, before an ask gives up; each loses to one that was given a trial."""


class SearchTrialError(Exception):
    """Root of the errors of this service."""


class NotMeasured(SearchTrialError):
    """The search is analytical."""

    def __init__(self, search_id: str) -> None:
        super().__init__(f"search {search_id!r} is analytical: it has no trials to run; ask for mode measured")


class NotAnswered(SearchTrialError):
    """The analytical part of the search has not ended, or not with an answer."""

    def __init__(self, search_id: str, status: Status) -> None:
        waits = "its trials begin when it has succeeded" if not status.is_final else "there is nothing to try"
        super().__init__(f"the analytical part of search {search_id!r} is {status.value}: {waits}")


class NothingToAsk(SearchTrialError):
    """The budget is used up, or no candidate is left."""


class TrialNotFound(SearchTrialError):
    """No trial of the search has this number."""

    def __init__(self, search_id: str, number: int) -> None:
        super().__init__(f"search {search_id!r} has given out no trial {number}")


class TrialTold(SearchTrialError):
    """The trial was told something else."""

    def __init__(self, number: int) -> None:
        super().__init__(f"trial {number} was told another outcome before")


@dataclass(frozen=True)
class _Measured:
    """A measured search whose analytical answer is there."""

    id: str
    request: Mapping[str, Any]
    memory_model_version: int | None
    pool: MeasuredPool
    budget_trials: int


class SearchTrialService:
    """Use cases on the trials of measured searches."""

    def __init__(
        self, database: Database, storage: StudyStorage, serving: ServingModel, *, lease_seconds: float
    ) -> None:
        self._database = database
        self._storage = storage
        self._serving = serving
        self._lease = timedelta(seconds=lease_seconds)

    def ask(self, search_id: str) -> dict[str, Any]:
        """The next trial to run. Raises SearchNotFound, NotMeasured, NotAnswered, NothingToAsk."""
        search = self._search(search_id)
        if not len(search.pool):
            raise NothingToAsk("nothing fits the memory: the search's verdict says what would make it fit")
        found = self._asked_again(search)
        if found is None:
            with _database_errors():
                study = open_study(self._storage.open(), search_id, search.pool)
                self._follow(search, study)
                found = self._asked_first(search, study)
        strategy = search.pool.strategies[found.candidate]
        return {
            "trial": found.number,
            "strategy": strategy,
            "estimate": found.estimate,
            "nodes": search.pool.nodes[found.candidate],
            "times_asked": found.times_asked,
            "lease_until": found.lease_until,
        }

    def tell(self, search_id: str, number: int, outcome: TrialOutcome) -> dict[str, Any]:
        """What the run of a trial gave; the same again is the same. The run is logged. Raises SearchNotFound,
        NotMeasured, NotAnswered, TrialNotFound, TrialTold, and what `log_single_run` raises."""
        search = self._search(search_id)
        body = outcome.model_dump(mode="json", exclude_none=True)
        trial = self._trial(search_id, number)
        if trial.told_at is None:
            run_id = self._log(search, trial, outcome)
            with self._database.write() as session:
                MeasuredTrialRepository(session).tell(search_id, number, body, told_at=utc_now(), run_id=run_id)
            trial = self._trial(search_id, number)
        if trial.outcome != body:
            raise TrialTold(number)
        told, estimated = told_of(trial), float(search.pool.step_seconds[trial.candidate])
        with _database_errors():
            study = open_study(self._storage.open(), search_id, search.pool)
            tell(study, number, told, search.pool.price[trial.candidate])
        return {
            "trial": number,
            "state": outcome.state,
            "run": trial.run_id,
            "estimated_step_seconds": estimated,
            "measured_step_seconds": told.step_seconds,
            "ratio": ratio(told.step_seconds, estimated),
        }

    def section(self, search: Search) -> dict[str, Any] | None:
        """Where a search stands with its trials; None: it is analytical, or has no answer yet."""
        stored = None if search.result is None else search.result.get("measured")
        if stored is None:
            return None
        with self._database.read() as session:
            trials = MeasuredTrialRepository(session).all(search.id)
        pool = MeasuredPool.from_dict(stored["pool"])
        return measured_section(pool, trials, stored["budget_trials"])

    def _search(self, search_id: str) -> _Measured:
        with self._database.read() as session:
            search = SearchRepository(session).get(search_id)
        if search is None:
            raise SearchNotFound(search_id)
        if search.request.get("mode") != "measured":
            raise NotMeasured(search_id)
        if search.status != Status.SUCCEEDED or search.result is None:
            raise NotAnswered(search_id, Status(search.status))
        stored = search.result["measured"]
        return _Measured(
            search_id,
            search.request,
            search.memory_model_version,
            MeasuredPool.from_dict(stored["pool"]),
            stored["budget_trials"],
        )

    def _trial(self, search_id: str, number: int) -> MeasuredTrial:
        with self._database.read() as session:
            trial = MeasuredTrialRepository(session).get(search_id, number)
        if trial is None:
            raise TrialNotFound(search_id, number)
        return trial

    def _asked_again(self, search: _Measured) -> MeasuredTrial | None:
        """A trial whose lease has ended without its outcome."""
        now = utc_now()
        with self._database.write() as session:
            trials = MeasuredTrialRepository(session)
            trials.lock(search.id)
            for trial in trials.all(search.id):
                late = trial.told_at is None and trial.lease_until <= now
                if late and trial.times_asked < MOST_TIMES_ASKED:
                    trials.ask_again(trial, now=now, lease_until=now + self._lease)
                    return trial
        return None

    def _follow(self, search: _Measured, study: Study) -> None:
        """Bring the study up to what is known: of trials that were told to us only, and of those that we never had."""
        with self._database.read() as session:
            trials = MeasuredTrialRepository(session).all(search.id)
        for trial in trials:
            if trial.told_at is not None:
                tell(study, trial.number, told_of(trial), search.pool.price[trial.candidate])
        withdraw_unclaimed(study, {trial.number for trial in trials}, UNCLAIMED_SECONDS)

    def _asked_first(self, search: _Measured, study: Study) -> MeasuredTrial:
        """A trial that was not given out yet."""
        with self._database.read() as session:
            self._check_budget(search, MeasuredTrialRepository(session))
        for _ in range(MOST_COLLISIONS):
            try:
                asked = ask(study)
            except NothingLeft:
                raise NothingToAsk(f"each of the {len(search.pool)} candidates was given out") from None
            try:
                return self._claim(search, asked)
            except IntegrityError:
                withdraw(study, asked.number)
            except NothingToAsk:
                withdraw(study, asked.number)
                raise
        raise NothingToAsk("too many runners ask at this moment; ask again")

    def _claim(self, search: _Measured, asked: Asked) -> MeasuredTrial:
        """Store a trial; raises IntegrityError where another runner has its candidate."""
        estimate, now = self._estimate(search, asked.candidate), utc_now()
        trial = MeasuredTrial(
            search_id=search.id,
            number=asked.number,
            candidate=asked.candidate,
            estimate=estimate,
            asked_at=now,
            lease_until=now + self._lease,
            times_asked=1,
            outcome=None,
            told_at=None,
            run_id=None,
        )
        with self._database.write() as session:
            trials = MeasuredTrialRepository(session)
            trials.lock(search.id)
            self._check_budget(search, trials)
            trials.add(trial)
        return trial

    def _check_budget(self, search: _Measured, trials: MeasuredTrialRepository) -> None:
        """Raise NothingToAsk where the budget is used up: by trials that were told, and those that still run."""
        now = utc_now()
        used = [trial for trial in trials.all(search.id) if trial.told_at is not None or trial.lease_until > now]
        if len(used) >= search.budget_trials:
            running = sum(trial.told_at is None for trial in used)
            raise NothingToAsk(
                f"the budget of {search.budget_trials} trials is used up"
                + (f"; {running} of them were not told yet" if running else "")
            )

    def _estimate(self, search: _Measured, candidate: int) -> dict[str, Any]:
        """The contract's Estimate, with what was learned when the search began."""
        request = SearchRequest.model_validate_json(json.dumps(search.request))
        version = None if request.learned is False else search.memory_model_version
        corrections = None if version is None else self._serving.version(version)
        evaluator = Evaluator(replace(search_problem(request).problem, corrections=corrections))
        nodes = [cluster.nodes for cluster in evaluator.search.clusters]
        cluster = nodes.index(search.pool.nodes[candidate])
        table = evaluator.resolve_strategies(cluster, [search.pool.strategies[candidate]])
        return evaluator.answers(cluster, table)[0]

    def _log(self, search: _Measured, trial: MeasuredTrial, outcome: TrialOutcome) -> str | None:
        """Log the run as any other, so that what is learned has it; an error measures nothing."""
        if outcome.failed == "error":
            return None
        figures = {"out_of_memory": True}
        if outcome.measured is not None:
            figures = outcome.measured.model_dump(mode="json", exclude_none=True)
        request, name = search.request, f"search:{search.id}"
        record = {
            "key": f"{name}:trial:{trial.number}",
            "model": request["model"],
            "cluster": {**request["cluster"], "nodes": search.pool.nodes[trial.candidate]},
            "workload": request["workload"],
            "strategy": search.pool.strategies[trial.candidate],
            "measured": figures,
            "source": name,
            "family": name,
        }
        try:
            return log_single_run(self._database, record)
        except RunKeyConflict:
            raise TrialTold(trial.number) from None


@contextmanager
def _database_errors() -> Iterator[None]:
    """What Optuna's storage raises when the database is away or busy, as the database's own error."""
    try:
        yield
    except StorageInternalError as error:
        raise error.__cause__ or error from None
