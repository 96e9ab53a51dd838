"""Whether a new version serves: a pure function of its report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

BOUND_AT: Final = "0.95"
RISK: Final = 0.05
SLACK: Final = 0.03
"""By which the bound's share of misses may be above its risk, or above what it would replace, however many groups."""
NO_WORSE: Final = 1.02
"""Times the compared median error."""
GROUP_NO_WORSE: Final = 1.2
"""Times the compared median error of any group that is listed."""
LEAST_ERROR: Final = 0.01
"""Below which errors are not told apart."""
DEEPEST_FALL: Final = 0.01
"""Of what is required, at twice the micro-batch."""
_WORDS: Final = {
    "own_run": "next runs of clusters that have logged",
    "model_shape": "unseen model shapes",
    "source": "unseen sources",
}


@dataclass(frozen=True)
class Decision:
    """What the gate says."""

    promote: bool
    reasons: tuple[str, ...]
    """In words, with the figures: what stood against it, or what spoke for it."""


def decide(report: Mapping[str, Any]) -> Decision:
    """Promote a candidate whose bound holds and that is no worse than the version that serves (without one: than the
    formulas alone), on folds of the same runs. Whatever is new counts: ten runs of a new cluster are enough."""
    against: list[str] = []
    spoken: list[str] = []
    leeway = NO_WORSE
    for grouping, words in _WORDS.items():
        found = report["candidate"][grouping]
        if found is None:
            continue
        serving = (report.get("serving") or {}).get(grouping)
        _judge_bound(words, found, serving, against, spoken)
        ratio = _judge_errors(words, found, serving, leeway, against, spoken)
        if grouping == "own_run":
            # What the next runs gain may be set against what other models lose: the next run is most often of a model
            # that has run before.
            leeway = min(max(NO_WORSE, 1.0 / ratio), GROUP_NO_WORSE)
    if not spoken and not against:
        against.append("fewer than two groups of runs with a measured peak: nothing to judge it by")
    if (fall := report["monotonicity"]["deepest_fall"]) > DEEPEST_FALL:
        against.append(f"memory falls by up to {fall:.1%} where the micro-batch is doubled")
    return Decision(not against, tuple(against or spoken))


def _judge_bound(
    words: str, found: Mapping[str, Any], serving: Mapping[str, Any] | None, against: list[str], spoken: list[str]
) -> None:
    rate = found["under_rate"][BOUND_AT]
    text = f"{words}: {rate:.1%} of the peaks are above the bound at 95 %"
    # Misses of one group come together, so that a few groups show a rate only roughly: one standard error of it. So
    # much more than before is allowed too while it is so little beside the formulas alone, which do not drift: the runs
    # that deviate most are those to learn from. And where what serves misses as many, keeping that would not help.
    slack = max(SLACK, math.sqrt(RISK * (1.0 - RISK) / found["groups"]))
    alone = found["analytical_under_rate"][BOUND_AT]
    replaced = alone if serving is None else serving["under_rate"][BOUND_AT]
    allowed = max(RISK + slack, replaced, min(replaced, alone) + slack)
    if rate > allowed:
        against.append(f"{text}, and no more than {allowed:.1%} may be")
    else:
        spoken.append(text)


def _judge_errors(
    words: str,
    found: Mapping[str, Any],
    serving: Mapping[str, Any] | None,
    leeway: float,
    against: list[str],
    spoken: list[str],
) -> float:
    """The median error over the compared one, which may be `leeway`."""
    than = "by the formulas alone" if serving is None else "by the version that serves"
    of_reference = "analytical_median_error" if serving is None else "median_error"
    error, reference = found["median_error"], (serving or found)[of_reference]
    text = f"{words}: median error {error:.2%}, {reference:.2%} {than}"
    if _worse(error, reference, leeway):
        against.append(text)
    else:
        spoken.append(text)
    groups = (serving or found)["by_group"]
    for name, group in found["by_group"].items():
        before = groups.get(name)
        if before is not None and _worse(group["median_error"], before[of_reference], GROUP_NO_WORSE):
            against.append(f"{words}: {name} {group['median_error']:.2%}, {before[of_reference]:.2%} {than}")
    return float(max(error, LEAST_ERROR) / max(reference, LEAST_ERROR))


def _worse(error: float, reference: float, times: float) -> bool:
    return error > max(times * reference, reference + LEAST_ERROR * (times - 1.0))
