"""What is not priced yet is refused by name; everything else passes."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.models import load_model, model_names
from cost_models.errors import InvalidInput
from cost_models.hf_config import read_hf_config
from cost_models.scope import check_model_is_priced


def refused(check: Any, *arguments: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as raised:
        check(*arguments)
    assert raised.value.code == "not_priced_yet"
    return raised.value.loc, raised.value.message


class TestModels:
    @pytest.mark.parametrize("name", sorted(model_names()))
    def test_presets_are_priced(self, name: str) -> None:
        check_model_is_priced(load_model(name))

    def test_encoder_decoders_are_not(self) -> None:
        loc, message = refused(check_model_is_priced, read_hf_config({"model_type": "t5"}))
        assert loc == ("model",)
        assert message == "encoder-decoder models (t5) are not priced yet"
