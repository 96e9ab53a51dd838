"""What a running job should move to, from its observed memory: micro-batch, checkpointing and split, and in what order.

The observation corrects the prediction of the job and of its neighbours (`observed_memory`); all of them are scored in
one call; `safe_choice` takes the fastest that fits at the confidence asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.answer import score_answers
from cost_models.corrections import EstimateCorrections
from cost_models.estimate import Score, score
from cost_models.memory import others_suffice
from cost_models.problem import Problem
from cost_models.provenance import NOT_CORRECTED
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, partial_columns
from search.advice_steps import NOTABLE_IDLE, Step, remarks, steps_between
from search.neighbourhood import FREE, GROUPS, neighbours
from search.observed_memory import Observation, ObservedCorrections, observe, unseen_deviation
from search.safe_choice import choose

LEAST_GAIN: Final = 0.005
"""Of the step, for each group of fields that changes: no job is restarted with other settings for less, and the order
of two strategies that are nearer than this is beyond the time model."""
OBSERVED_NOTE: Final = "Memory: corrected by the observed curve of this job; its bound rests on {basis}."


@dataclass(frozen=True)
class Advice:
    """Where to go from a job."""

    strategy: dict[str, Any]
    current: dict[str, Any]
    """Estimate of the job, the observation included."""
    estimate: dict[str, Any]
    """Estimate of what is proposed, the observation included."""
    throughput_gain: float
    """Tokens a second over the job's, less one."""
    steps: list[Step]
    corrections: ObservedCorrections


def advise(
    problem: Problem,
    job: StrategyTable,
    observation: Observation,
    *,
    memory_confidence: float,
    corrections: EstimateCorrections | None,
) -> Advice:
    """Advice on a valid strategy: a table of one row, every field filled."""
    observed = observe(problem, job, observation, corrections)
    resolved = resolve_strategies(problem, partial_columns(neighbours(problem, job))).table
    table = resolved.take(np.flatnonzero(violations(problem, resolved) == 0))
    scored = score(problem, table, memory_confidence=memory_confidence, corrections=observed)
    thresholds = _thresholds(problem, scored, observed)
    chosen = choose(
        thresholds,
        _worth(scored),
        table.micro_batch_size,
        ratio=observed.required,
        deviation=_deviation_before(problem, job, corrections),
    )
    safe = chosen is not None
    row = int(np.argmax(thresholds)) if chosen is None else chosen
    fitting = thresholds >= observed.required
    if observation.idle_share <= NOTABLE_IDLE:
        row = _with_own_settings(table, row, fitting)
    pair = [_at(problem, one, memory_confidence, observed) for one in (job, table.take(np.array([row])))]
    current, proposed = (_answer(problem, one, corrections, memory_confidence) for one in pair)
    gain = float(pair[0].step_seconds[0] / pair[1].step_seconds[0]) - 1.0
    steps = steps_between(problem, job, pair[1].table, memory_confidence, observed)
    larger = _larger_micro_batch(scored, row, fitting)
    notes = remarks(
        observation,
        current,
        proposed,
        safe=safe,
        changed=bool(steps),
        gain=gain,
        larger=larger,
        ratio=observed.required,
    )
    return Advice(proposed["strategy"], current, proposed, gain, [*steps, *notes], observed)


def _thresholds(problem: Problem, scored: Score, observed: ObservedCorrections) -> FloatColumn:
    """(n,) observed over predicted at which the bound meets the capacity; 0 where something else does not fit."""
    limit = observed.required * scored.fit.capacity_bytes / scored.fit.required_upper_bytes
    thresholds: FloatColumn = np.where(others_suffice(problem, scored.memory), limit, 0.0)
    return thresholds


def _worth(scored: Score) -> FloatColumn:
    """(n,) logarithm of the speed, less what the changes from the first row, the job itself, must gain."""
    changes = sum(
        (_differs(scored.table, 0, group) for group in GROUPS if group not in FREE),
        np.zeros(len(scored), dtype=np.int64),
    )
    worth: FloatColumn = -np.log(scored.step_seconds) - LEAST_GAIN * changes
    return worth


def _differs(table: StrategyTable, row: int, group: str) -> IntColumn:
    """(n,) 1 where a strategy differs from that of a row in some field of the group."""
    columns = [getattr(table, field) for field in GROUPS[group]]
    differs: IntColumn = np.any([column != column[row] for column in columns], axis=0).astype(np.int64)
    return differs


def _with_own_settings(table: StrategyTable, row: int, fitting: BoolColumn) -> int:
    """The same strategy with the allocator's and the buckets' settings as the job has them, where that is safe too."""
    same = fitting.copy()
    for group in GROUPS:
        same &= _differs(table, 0 if group in FREE else row, group) == 0
    found = np.flatnonzero(same)
    return int(found[0]) if len(found) else row


def _larger_micro_batch(scored: Score, row: int, fitting: BoolColumn) -> tuple[int, float] | None:
    """The largest safe micro-batch of the same strategy, and what it adds to the step; None: it is the strategy's."""
    same = fitting.copy()
    for group in GROUPS:
        if group != "micro_batch_size":
            same &= _differs(scored.table, row, group) == 0
    sizes = np.where(same, scored.table.micro_batch_size, 0)
    largest = int(np.argmax(sizes))
    if sizes[largest] <= scored.table.micro_batch_size[row]:
        return None
    return int(sizes[largest]), float(scored.step_seconds[largest] / scored.step_seconds[row]) - 1.0


def _deviation_before(problem: Problem, job: StrategyTable, corrections: EstimateCorrections | None) -> float:
    before = score(problem, job, memory_confidence=0.5, corrections=corrections)
    return float(unseen_deviation(before.fit.error)[0])


def _at(problem: Problem, table: StrategyTable, confidence: float, observed: ObservedCorrections) -> Score:
    return score(problem, table, memory_confidence=confidence, corrections=observed)


def _answer(
    problem: Problem,
    scored: Score,
    corrections: EstimateCorrections | None,
    confidence: float,
) -> dict[str, Any]:
    """The contract's Estimate; its provenance is that without the observation, with a note of it."""
    [answer] = score_answers(problem, scored)
    without = score(problem, scored.table, memory_confidence=confidence, corrections=corrections)
    provenance: Mapping[str, Any] = score_answers(problem, without)[0]["provenance"]
    assert scored.learned is not None
    note = OBSERVED_NOTE.format(basis=scored.learned.memory.bases[0])
    notes = [kept for kept in provenance["notes"] if kept != NOT_CORRECTED]
    return answer | {"provenance": {**provenance, "memory": "learned", "notes": [*notes, note]}}
