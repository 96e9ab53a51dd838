"""What is not priced yet: refused by name, so that nothing is priced as something else."""

from __future__ import annotations

from typing import Final

from cost_models.architecture import ModelArchitecture
from cost_models.errors import UnsupportedModel

CODE: Final = "not_priced_yet"


def check_model_is_priced(model: ModelArchitecture) -> None:
    """Encoder-decoder models are read and counted, not priced."""
    if any(block.cross_attention for block in model.blocks):
        raise UnsupportedModel(("model",), CODE, f"encoder-decoder models ({model.model_type}) are not priced yet")
