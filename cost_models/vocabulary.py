"""The vocabulary as a framework stores it: padded where it does not divide."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import IntColumn, StrategyTable

MULTIPLES: Final = np.array([framework.vocabulary_multiple for framework in FRAMEWORKS], dtype=np.int64)


def padded_vocabulary(model: ModelArchitecture, table: StrategyTable) -> IntColumn:
    """Rows of the embedding matrix over all tensor ranks together, (n,)."""
    multiple = MULTIPLES[table.framework] * table.tensor_parallel_size
    padded: IntColumn = -(-model.vocab_size // multiple) * multiple
    return padded
