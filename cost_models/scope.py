"""What is not priced yet: refused by name, so that nothing is priced as something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cost_models.architecture import ModelArchitecture
from cost_models.errors import InvalidInput, UnsupportedModel

UNPRICED_OFFLOADS: Final = ("activations",)
CODE: Final = "not_priced_yet"

_STRATEGY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "offload": UNPRICED_OFFLOADS,
}


def check_model_is_priced(model: ModelArchitecture) -> None:
    """Encoder-decoder models and vision transformers are read and counted, not priced."""
    if any(block.cross_attention for block in model.blocks):
        raise UnsupportedModel(("model",), CODE, f"encoder-decoder models ({model.model_type}) are not priced yet")
    if model.sequence_length is not None:
        raise UnsupportedModel(("model",), CODE, f"vision transformers ({model.model_type}) are not priced yet")


def check_strategies_are_priced(
    strategies: Iterable[Mapping[str, Any]], loc: tuple[str | int, ...] = ("strategies",)
) -> None:
    """Every strategy in the words of the contract; `loc` is the place of the list."""
    for index, strategy in enumerate(strategies):
        check_strategy_is_priced(strategy, (*loc, index))


def check_strategy_is_priced(strategy: Mapping[str, Any], loc: tuple[str | int, ...]) -> None:
    """One strategy."""
    for field, unpriced in _STRATEGY_FIELDS.items():
        _check((*loc, field), strategy.get(field), unpriced)


def check_space_is_priced(space: Mapping[str, Iterable[Any]]) -> None:
    """The values that a search may try."""
    for field, unpriced in _STRATEGY_FIELDS.items():
        for index, value in enumerate(space.get(field, ())):
            _check(("space", field, index), value, unpriced)


def _check(loc: tuple[str | int, ...], value: str | None, unpriced: tuple[str, ...]) -> None:
    if value in unpriced:
        raise InvalidInput(loc, CODE, f"{loc[-1] if isinstance(loc[-1], str) else loc[-2]} {value} is not priced yet")
