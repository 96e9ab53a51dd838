"""What logged runs are worth: figures of the learned corrections on whole families of measured runs that are unseen.

usage: python -m benchmarks.learning RUNS.jsonl [--draws 10]

RunRecords of the contract, a line each. Each `family` (sources that share machines, software or runs; its twins are
never split between fit and score) in turn is the reader's own: the model is fitted on the other families as others'
runs, and on k requests of the family, drawn at random, as logged to this service; the family's other rows are scored.
Families of 20 rows and more are judged, all are fitted on. `x` is a median error over that of the formulas alone on
the same rows.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.learned.evaluation import FEWEST_ROWS, OWN_RUNS, learning_curve, time_errors
from cost_models.learned.peak_memory import fit_memory
from cost_models.learned.runs import TrainingRuns, training_runs
from cost_models.learned.scores import RISKS, Scored, joined, score, stated_bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--draws", type=int, default=10, help="random choices of own runs")
    given = parser.parse_args()
    records = [json.loads(line) for line in given.runs.read_text().splitlines()]
    runs = training_runs(records)
    now = datetime.now(UTC).timestamp()
    print(f"{len(runs)} runs, {len(runs.memory)} peaks, {len(runs.skipped)} records skipped")
    _print_curve(learning_curve(runs, now_seconds=now, draws=given.draws))
    unseen = _unseen_families(runs, now)
    _print_bounds(unseen)
    _print_reliability(unseen)
    _print_time(time_errors(runs, now_seconds=now))


def _print_curve(lines: Sequence[dict[str, Any]]) -> None:
    by_family: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        by_family[line["family"]][line["own_runs"]] = line
    print("\nmedian memory error with k own runs (x: over that of the formulas alone on the same rows)")
    print(f"{'':18}{'formulas':>9}" + "".join(f"{'k=' + str(count):>15}" for count in OWN_RUNS))
    for family, found in sorted(by_family.items()):
        cells = "".join(
            f"{found[count]['median_error']:8.2%} x{_times(found[count]):5.2f}" if count in found else f"{'-':>15}"
            for count in OWN_RUNS
        )
        print(f"{family:18}{found[0]['analytical_median_error']:9.2%}{cells}")
    print(f"{'mean':27}" + "".join(_mean_cell(by_family.values(), count) for count in OWN_RUNS))
    print("each against the same families with k=0: " + ", ".join(_against_none(by_family.values())))
    print("bound at 95 %: share of rows above it, mean overshoot")
    for family, found in sorted(by_family.items()):
        cells = "".join(
            f"{found[count]['under_rate']:8.1%} {found[count]['overshoot']:6.0%}" if count in found else f"{'-':>15}"
            for count in OWN_RUNS
        )
        print(f"{family:27}{cells}")


def _mean_cell(families: Iterable[dict[int, dict[str, Any]]], count: int) -> str:
    have = [found[count] for found in families if count in found]
    if not have:
        return f"{'-':>15}"
    return f"{np.mean([line['median_error'] for line in have]):8.2%} x{np.mean([_times(line) for line in have]):5.2f}"


def _against_none(families: Iterable[dict[int, dict[str, Any]]]) -> list[str]:
    """Mean errors over the families that have as many runs, with k and with none."""
    texts = []
    for count in OWN_RUNS:
        if have := [found for found in families if count in found]:
            with_own, without = (np.mean([found[k]["median_error"] for found in have]) for k in (count, 0))
            texts.append(f"k={count} {with_own:.2%} of {without:.2%} ({len(have)} families)")
    return texts


def _times(line: dict[str, Any]) -> float:
    return float(line["median_error"] / line["analytical_median_error"])


def _unseen_families(runs: TrainingRuns, now: float) -> dict[str, Scored]:
    """All rows of each family by a model that has seen none of it."""
    rows, found = runs.memory, {}
    for number, family in enumerate(runs.families):
        mine = rows.origin.family == number
        if mine.any():
            found[family] = score(fit_memory(rows.take(~mine), runs.clusters, now_seconds=now), rows.take(mine))
    return found


def _print_bounds(unseen: dict[str, Scored]) -> None:
    print(
        "\nunseen families, bound at 95 % (families weigh the same; fixed: one margin of equal coverage, in hindsight)"
    )
    judged = {name: scored for name, scored in unseen.items() if (~scored.rows.censored).sum() >= FEWEST_ROWS}
    print(
        f"{'':18}{'rows':>6}{'above':>8}{'overshoot':>11}{'framework known':>17}"
        f"{'formulas: above':>17}{'overshoot':>11}"
    )
    above, over, known_above, known_over, ratios = [], [], [], [], []
    for name, scored in sorted(judged.items()):
        ran = ~scored.rows.censored
        miss, bound, known = scored.miss[ran], scored.bound(0.95)[ran], scored.known[ran]
        overshoot, missed = np.expm1(bound - miss), miss > bound
        above.append(missed.mean())
        over.append(overshoot.mean())
        ratios.append(scored.rows.log_ratio[ran])
        if known.any():
            known_above.append(missed[known].mean())
            known_over.append(overshoot[known].mean())
        stated = _stated(scored)[ran]
        alone = scored.rows.log_ratio[ran]
        print(
            f"{name:18}{ran.sum():6}{above[-1]:8.1%}{over[-1]:11.0%}{known.mean():17.0%}"
            f"{np.mean(alone > stated):17.1%}{np.mean(np.expm1(stated - alone)):11.0%}"
        )
    margin, fixed_over = _fixed_margin(ratios, float(np.mean(above)))
    print(f"covered {1 - np.mean(above):.1%}, overshoot {np.mean(over):.0%}; fixed x{margin:.2f}: {fixed_over:.0%}")
    if known_over:
        known = [s.rows.log_ratio[~s.rows.censored & s.known] for s in judged.values() if s.known.any()]
        margin, fixed_over = _fixed_margin(known, float(np.mean(known_above)))
        print(
            f"framework known: covered {1 - np.mean(known_above):.1%}, overshoot {np.mean(known_over):.0%}; "
            f"fixed x{margin:.2f}: {fixed_over:.0%}"
        )
    out = [(name, scored) for name, scored in unseen.items() if scored.rows.censored.any()]
    for name, scored in out:
        at = scored.rows.censored
        contradicted = int((scored.miss > scored.bound(0.95))[at].sum())
        print(f"{name}: {int(at.sum())} ran out of memory, {contradicted} of them above the bound")


def _fixed_margin(ratios: Sequence[Any], above: float) -> tuple[float, float]:
    """(factor on the formulas that as large a share of the rows is above, its mean overshoot)."""
    grid = np.linspace(-0.5, 2.0, 2501)
    shares = np.mean([[np.mean(ratio > level) for level in grid] for ratio in ratios], axis=0)
    level = grid[int(np.argmax(shares <= above + 1e-9))]
    return float(np.exp(level)), float(np.mean([np.mean(np.expm1(level - ratio)) for ratio in ratios]))


def _stated(scored: Scored) -> Any:
    return stated_bound(scored.rows, 0.95)


def _print_reliability(unseen: dict[str, Scored]) -> None:
    """P(measured > room) for rooms all around the prediction, against how often it was."""
    together = joined(list(unseen.values()))
    ran = ~together.rows.censored
    family = together.rows.origin.family[ran]
    names = np.unique(family)
    print("\nreliability on unseen families (families weigh the same): chance that a peak is above a room, share seen")
    for risk in RISKS:
        above = (together.miss > together.bound(1.0 - risk))[ran]
        print(f"{risk:8.1%}{np.mean([above[family == name].mean() for name in names]):8.1%}")


def _print_time(found: dict[str, Any]) -> None:
    print(f"\nmedian step-time error without and with {found['own_runs']} own runs, families unseen by the factors")
    for family, line in sorted(found["by_family"].items()):
        print(f"{family:18}{line['rows']:6}{line['median_error']:9.2%}{line['median_error_with_own_runs']:9.2%}")


if __name__ == "__main__":
    main()
