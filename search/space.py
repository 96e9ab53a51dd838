"""`space` of a request: strategy fields narrowed to lists of values, checked, encoded and enforced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from cost_models.errors import InvalidInput
from cost_models.strategy import (
    CHOICES,
    COLUMNS,
    FLAGS,
    FLOATS,
    RECOMPUTE_MODULES,
    BoolColumn,
    StrategyTable,
    code,
)

_LEAST: Final = {"zero_stage": 0, "checkpointed_layers": 0}
_MOST: Final = {"zero_stage": 3}


def check_space(space: Mapping[str, Sequence[Any]]) -> None:
    """Raise `InvalidInput` for a field that does not exist, an empty list or a value of the wrong kind."""
    for name, values in space.items():
        if name not in COLUMNS:
            raise InvalidInput(("space", name), "unknown_field", "is not a field of a strategy")
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InvalidInput(("space", name), "wrong_type", "must be a list of values")
        if not values:
            raise InvalidInput(("space", name), "empty", "needs at least one value")
        for index, value in enumerate(values):
            if message := _fault(name, value):
                raise InvalidInput(("space", name, index), "wrong_value", message)


def _fault(name: str, value: Any) -> str | None:
    if name in CHOICES:
        choices = CHOICES[name]
        return None if value in choices else f"must be one of {', '.join(str(choice) for choice in choices)}"
    if name in FLAGS:
        return None if isinstance(value, bool) else "must be true or false"
    if name in FLOATS:
        return None if _is_number(value) and 0 <= value <= 1 else "must be a number between 0 and 1"
    if name == "layers_per_stage":
        whole = isinstance(value, Sequence) and not isinstance(value, str) and all(_is_whole(x, 0) for x in value)
        return None if whole and value else "must be a list of whole numbers of layers"
    if name == "recompute_modules":
        known = isinstance(value, Sequence) and not isinstance(value, str) and set(value) <= set(RECOMPUTE_MODULES)
        return None if known else f"must be a list out of {', '.join(RECOMPUTE_MODULES)}"
    least, most = _LEAST.get(name, 1), _MOST.get(name)
    if _is_whole(value, least) and (most is None or value <= most):
        return None
    return f"must be a whole number from {least}" + (f" to {most}" if most is not None else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def encode(name: str, value: Any) -> int | float:
    """A value of `space` as its column stores it; layouts of layers are told apart by the caller."""
    if name in CHOICES:
        return code(name, value)
    if name in FLOATS:
        return float(value)
    if name == "recompute_modules":
        return sum(1 << RECOMPUTE_MODULES.index(module) for module in set(value))
    return int(value)


def allows(space: Mapping[str, Sequence[Any]], table: StrategyTable) -> BoolColumn:
    """Which resolved strategies have, in every narrowed field, one of the values that were named."""
    result = np.ones(len(table), dtype=np.bool_)
    for name, values in space.items():
        column = getattr(table, name)
        if name == "layers_per_stage":
            named = {tuple(value) for value in values}
            result &= np.array([layout in named for layout in table.layouts], dtype=np.bool_)[column]
        else:
            result &= np.isin(column, [encode(name, value) for value in values])
    return result
