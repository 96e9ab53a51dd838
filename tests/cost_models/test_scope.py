"""What is not priced yet is refused by name; everything else passes."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.models import load_model, model_names
from cost_models.errors import InvalidInput
from cost_models.scope import check_model_is_priced


def refused(check: Any, *arguments: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as raised:
        check(*arguments)
    assert raised.value.code == "not_priced_yet"
    return raised.value.loc, raised.value.message


class TestModels:
    @pytest.mark.parametrize("name", sorted(set(model_names()) - {"vit-h"}))
    def test_language_models_are_priced(self, name: str) -> None:
        check_model_is_priced(load_model(name))

    def test_vision_transformers_are_not(self) -> None:
        loc, message = refused(check_model_is_priced, load_model("vit-h"))
        assert loc == ("model",)
        assert message == "vision transformers (vit) are not priced yet"
