"""Checks every rule on a whole table, and says for one row which numbers break which rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cost_models.codes import VIOLATIONS, WARNINGS, CodeColumn, bit, decode
from cost_models.problem import Problem
from cost_models.rules.abilities import ABILITIES
from cost_models.rules.degrees import DEGREES
from cost_models.rules.dimensions import DIMENSIONS
from cost_models.rules.numerics import NUMERICS
from cost_models.rules.pipeline import PIPELINE
from cost_models.rules.placement import PLACEMENT
from cost_models.rules.two_stacks import TWO_STACKS
from cost_models.rules.view import Rule, View
from cost_models.strategy import StrategyTable

RULES: Final[tuple[Rule, ...]] = (*DEGREES, *DIMENSIONS, *PIPELINE, *ABILITIES, *NUMERICS, *TWO_STACKS)


def violations(problem: Problem, table: StrategyTable) -> CodeColumn:
    """(n,) bit mask over VIOLATIONS: every rule that a strategy breaks, 0 where it is valid."""
    return _broken(RULES, VIOLATIONS, problem, table)


def placement_warnings(problem: Problem, table: StrategyTable) -> CodeColumn:
    """(n,) bit mask over WARNINGS, those that follow from sizes and links alone. The strategies must be valid."""
    return _broken(PLACEMENT, WARNINGS, problem, table)


def explain_violations(problem: Problem, table: StrategyTable, row: int, mask: int) -> list[tuple[str, str]]:
    """The broken rules of one row as (code, message), in the order of the contract; `mask` is that of `violations`."""
    return _explain(RULES, VIOLATIONS, problem, table, row, mask)


def explain_warnings(problem: Problem, table: StrategyTable, row: int, mask: int) -> list[tuple[str, str]]:
    """The warnings of one row as (code, message), in the order of the contract; `mask` is `placement_warnings`'."""
    return _explain(PLACEMENT, WARNINGS, problem, table, row, mask)


def _broken(rules: Sequence[Rule], codes: tuple[str, ...], problem: Problem, table: StrategyTable) -> CodeColumn:
    view = View(problem, table)
    mask = np.zeros(len(table), dtype=np.uint64)
    for rule in rules:
        broken = rule.broken(view)
        # Most rules are kept by all rows of a sweep.
        if np.any(broken):
            mask |= np.where(broken, bit(codes, rule.code), np.uint64(0))
    return mask


def _explain(
    rules: Sequence[Rule], codes: tuple[str, ...], problem: Problem, table: StrategyTable, row: int, mask: int
) -> list[tuple[str, str]]:
    if not mask:
        return []
    asked = decode(codes, int(mask))
    view = View(problem, table.take(slice(row, row + 1)))
    said = [(rule.code, rule.says(view)) for rule in rules if rule.code in asked and np.all(rule.broken(view))]
    return sorted(said, key=lambda pair: codes.index(pair[0]))
