"""The Optuna study of a measured search: asked by whoever has the cluster free, told what the run gave.

Optuna keeps the trials, numbers them and lets several processes at one study; what to run next is a sampler of our own
(`CandidateSampler`), for a run takes minutes and there are a dozen: TPE would still be drawing its first points at
random. The parameters of a trial are the number of its candidate, and its fields for whoever reads the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from search.measured_model import Told, next_candidate
from search.measured_pool import MeasuredPool

CANDIDATE: Final = "candidate"
SHOWN_FIELDS: Final = (
    "framework",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "zero_stage",
    "micro_batch_size",
    "activation_checkpointing",
)
"""Of a candidate, written beside its number."""
PEAKS, FAILED, WITHDRAWN = "peaks_gib", "failed", "withdrawn"
"""What is known of a trial beside its value."""


class NothingLeft(Exception):
    """Every candidate was given out."""


@dataclass
class CandidateSampler(optuna.samplers.BaseSampler):
    """Chooses the candidate whose run promises most, by what the trials of the study say."""

    pool: MeasuredPool
    distributions: Mapping[str, BaseDistribution] = field(init=False)

    def __post_init__(self) -> None:
        values = {name: sorted({s[name] for s in self.pool.strategies}) for name in SHOWN_FIELDS}
        shown = {name: CategoricalDistribution(choices) for name, choices in values.items()}
        self.distributions = {CANDIDATE: IntDistribution(0, len(self.pool) - 1), **shown}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All parameters are chosen together."""
        return dict(self.distributions)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the next candidate; raises NothingLeft."""
        chosen = next_candidate(self.pool, told(self.pool, study, without=trial.number))
        if chosen is None:
            raise NothingLeft
        strategy = self.pool.strategies[chosen]
        return {CANDIDATE: chosen, **{name: strategy[name] for name in SHOWN_FIELDS}}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Nothing is chosen by itself."""
        raise NotImplementedError(param_name)


def open_study(storage: optuna.storages.BaseStorage, name: str, pool: MeasuredPool) -> Study:
    """The study of a name, made if there is none yet."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # every study is news to Optuna, none is to the service
    return optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=CandidateSampler(pool),
        direction="minimize",
        load_if_exists=True,
    )


@dataclass(frozen=True)
class Asked:
    """A trial that was given out."""

    number: int
    candidate: int


def ask(study: Study) -> Asked:
    """The next trial; raises NothingLeft."""
    sampler = study.sampler
    assert isinstance(sampler, CandidateSampler)
    if next_candidate(sampler.pool, told(sampler.pool, study)) is None:
        raise NothingLeft
    trial = study.ask(dict(sampler.distributions))
    return Asked(trial.number, int(trial.params[CANDIDATE]))


def tell(study: Study, number: int, outcome: Told, price: float) -> None:
    """The outcome of a trial, once: a trial that has ended stays as it is."""
    if outcome.failed is not None:
        _end(study, number, {FAILED: outcome.failed}, None)
    elif outcome.step_seconds is not None:
        _end(study, number, {PEAKS: list(outcome.peaks_gib)}, outcome.step_seconds * price)


def withdraw(study: Study, number: int) -> None:
    """A trial that is not run: another runner was given the same candidate at the same moment."""
    _end(study, number, {WITHDRAWN: True}, None)


def withdraw_unclaimed(study: Study, claimed: Set[int], seconds: float) -> None:
    """Trials that run for longer than this and that nobody knows of: whoever asked died before it was given them."""
    before = datetime.now() - timedelta(seconds=seconds)  # Optuna's clock is local and naive
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if trial.number not in claimed and trial.datetime_start is not None and trial.datetime_start < before:
            withdraw(study, trial.number)


def _end(study: Study, number: int, attributes: Mapping[str, Any], value: float | None) -> None:
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    frozen = next((trial for trial in running if trial.number == number), None)
    if frozen is None:
        return
    trial = optuna.trial.Trial(study, frozen._trial_id)
    try:
        for name, attribute in attributes.items():
            trial.set_user_attr(name, attribute)
    except UpdateFinishedTrialError:
        return  # by another process, meanwhile
    study.tell(trial, value, state=None if value is not None else TrialState.FAIL, skip_if_finished=True)


def told(pool: MeasuredPool, study: Study, *, without: int | None = None) -> list[Told]:
    """What the trials of a study say, in order."""
    known = (_told(pool, trial) for trial in study.get_trials(deepcopy=False) if trial.number != without)
    return [one for one in known if one is not None]


def _told(pool: MeasuredPool, trial: FrozenTrial) -> Told | None:
    candidate: int | None = trial.params.get(CANDIDATE)
    if candidate is None:
        return None  # another process is choosing
    if trial.state is TrialState.RUNNING:
        return Told(candidate)
    if trial.state is TrialState.COMPLETE:
        assert trial.value is not None
        peaks: Sequence[float | None] = trial.user_attrs.get(PEAKS, (None, None, None))
        return Told(candidate, trial.value / pool.price[candidate], (peaks[0], peaks[1], peaks[2]))
    failed = trial.user_attrs.get(FAILED)
    # What was withdrawn says nothing: its candidate is another's.
    return None if failed is None else Told(candidate, failed=failed)
