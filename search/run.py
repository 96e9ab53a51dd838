"""One search from request to result: sweep of the lattice, study, ranking, explanation, verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from search.candidates import Candidates, join
from search.cluster_sizes import choose_sizes, compare_sizes, sentences, with_choices
from search.current import Current, compare, score_current
from search.evaluator import Evaluator
from search.explain import Background, explain, explain_briefly
from search.optuna_engine import Report, StudyOutcome, run_study
from search.problem import DEFAULT_FRAMEWORKS, SearchProblem
from search.prospects import study_seeds
from search.rank import answers, rank, rank_front, rescore, with_explanations
from search.result import Progress, SearchResult, Trial
from search.shifting import shift_layers
from search.study_space import KNOB_FREE_FIELDS, Parameters, StudySpace, study_layouts
from search.sweep import sweep
from search.swept import Sweep, front_of, rejections
from search.verdict import Findings, verdict
from search.watch import Watch

SHIFTED_PLANS: Final = 6
"""Best plans, of different layouts, whose layers are moved between stages at last."""
PARETO_POINTS: Final = 32
"""Points of the front that are written out."""


def run_search(
    search: SearchProblem,
    *,
    past: Sequence[Trial] = (),
    report: Report,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
) -> SearchResult:
    """Search until the budget ends or someone cancels; what was found by then is the result.

    `report` is called after every block with the trials that the block added. `past` are the trials of an earlier run
    of the same search that was interrupted, in order: they count, are not reported again, and the search goes on as if
    it had not been.
    """
    watch = Watch(clock, cancelled, clock(), search.seconds)
    evaluator = Evaluator(search)
    frameworks = _frameworks(evaluator)
    current = score_current(evaluator, frameworks)
    swept = sweep(evaluator, frameworks, watch, lambda progress: report(progress, ()))
    study = _study(evaluator, swept, current, past, watch, report)
    shifted = shift_layers(evaluator, _best(swept, study), watch)
    report(Progress("ranking", 0, search.plans, len(study.trials), study.best_step_seconds), ())
    result = _result(evaluator, swept, study, shifted, current, watch)
    found = (study.best_step_seconds, *shifted.step_seconds.tolist())
    best_seconds = min((seconds for seconds in found if seconds is not None), default=None)
    report(Progress("ranking", search.plans, search.plans, len(study.trials), best_seconds), ())
    return result


def _frameworks(evaluator: Evaluator) -> tuple[str, ...]:
    """Those asked for; left out: the default three, and ddp where a replica fits one GPU."""
    search = evaluator.search
    named = search.space.get("framework")
    if search.frameworks is None and named is not None:
        return tuple(dict.fromkeys(named))
    frameworks = search.frameworks or DEFAULT_FRAMEWORKS + (("ddp",) if _replica_fits(evaluator) else ())
    return tuple(name for name in frameworks if named is None or name in named)


def _replica_fits(evaluator: Evaluator) -> bool:
    leanest = {"framework": "ddp", "activation_checkpointing": "full"}
    probe = Evaluator(evaluator.search)
    return any(bool(probe.evaluate_strategies(index, [leanest]).fits[0]) for index in range(len(probe.search.clusters)))


def _study(
    evaluator: Evaluator,
    swept: Sweep,
    current: Current | None,
    past: Sequence[Trial],
    watch: Watch,
    report: Report,
) -> StudyOutcome:
    start = study_start(evaluator, swept, current)
    if start is None:
        return StudyOutcome(swept.best_step_seconds)
    space, points = start
    return run_study(evaluator, space, points, past, watch, report, swept.best_step_seconds)


def study_start(
    evaluator: Evaluator, swept: Sweep, current: Current | None
) -> tuple[StudySpace, list[Parameters]] | None:
    """What the study searches, and the points that it tries first; None: there is nothing to start from."""
    own = current.candidates if current is not None and current.searched else None
    seeds = study_seeds(evaluator, swept, own)
    if not len(seeds):
        return None
    space = StudySpace(evaluator.search, study_layouts(evaluator.search, seeds))
    points: list[Parameters] = [
        space.encode(int(seeds.cluster[row]), seeds.table.row(row)) for row in range(len(seeds))
    ]
    if own is not None and own.acceptable[0]:
        points.insert(0, space.encode(int(own.cluster[0]), own.table.row(0)))
    return space, points[: max(evaluator.search.trials // 2, 1)]


def _best(swept: Sweep, study: StudyOutcome) -> Candidates:
    """The plans of the most layouts that are worth a last look."""
    tried = [study.candidates.take(study.candidates.acceptable)] if study.candidates else []
    plans = join([swept.best, *tried])
    plans = plans.take(plans.order())
    return plans.take(plans.first_of_each(KNOB_FREE_FIELDS)[:SHIFTED_PLANS])


def _result(
    evaluator: Evaluator,
    swept: Sweep,
    study: StudyOutcome,
    shifted: Candidates,
    current: Current | None,
    watch: Watch,
) -> SearchResult:
    search = evaluator.search
    tried = [study.candidates, shifted] if study.candidates else [shifted]
    own = [current.candidates] if current is not None and current.searched else []
    acceptable = [part.take(part.acceptable) for part in (*own, *tried)]
    edge = [front_of(part) for part in (swept.front, *acceptable)]
    front = rank_front(evaluator, join(edge), PARETO_POINTS)
    choices = choose_sizes(evaluator, swept, (*own, *tried))
    if search.objective == "pareto":
        plans = rank_front(evaluator, join(edge), search.plans)
    else:
        plans = rank(evaluator, join([swept.best, *acceptable]), search.plans)
        plans = with_choices(evaluator, plans, choices, search.plans)
    tight = rank(evaluator, join([swept.tight, *(part.take(part.tight) for part in tried)]), search.plans, tight=True)
    evaluated = swept.evaluated + sum(int(part.valid.sum()) for part in tried)
    written = answers(evaluator, plans)
    compared = None if current is None else compare(evaluator, current, written)
    sizes = compare_sizes(evaluator, swept, choices, written)
    rejected = sum((rejections(part, search.capacity_bytes) for part in tried), swept.rejected)
    # Of what surely does not fit the sweep knows the least that it can need only.
    nearest = swept.nearest if search.corrections is None or len(plans) else rescore(evaluator, swept.nearest)
    findings = Findings(written, evaluated, rejected, join([nearest, *(p.take(p.valid & ~p.fits) for p in tried)]))
    return SearchResult(
        plans=with_explanations(
            written, explain(plans, written, Background(evaluator, swept.families, evaluated, compared))
        ),
        tight=_briefly(evaluator, tight, f"Tight: fits at even odds, not at confidence {search.memory_confidence:g}."),
        pareto=_briefly(evaluator, front, "On the front of step time against peak memory."),
        current=compared,
        sizes=sizes,
        space_size=swept.space_size,
        evaluated=evaluated,
        trials=len(study.trials),
        stopped_by=swept.stopped_by or study.stopped_by,
        elapsed_seconds=watch.elapsed_seconds(),
        memory_model_version=None if search.corrections is None else search.corrections.version,
        rejected={reason: rejected[reason] for reason in sorted(rejected)},
        verdict=" ".join([verdict(evaluator, swept, findings, watch), *sentences(search, sizes)]),
        assumptions=tuple(evaluator.assumptions),
    )


def _briefly(evaluator: Evaluator, candidates: Candidates, mark: str) -> tuple[Mapping[str, Any], ...]:
    written = answers(evaluator, candidates)
    return with_explanations(written, explain_briefly(evaluator, written, candidates.cluster.tolist(), mark))
