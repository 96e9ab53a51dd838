"""The vocabulary as a framework stores it: padded where it does not divide.

A classifier's labels are neither padded nor split: its head is an ordinary linear layer on every tensor rank.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable

MULTIPLES: Final = np.array([framework.vocabulary_multiple for framework in FRAMEWORKS], dtype=np.int64)


def padded_vocabulary(model: ModelArchitecture, table: StrategyTable) -> IntColumn:
    """Rows of the output matrix over all tensor ranks together, (n,)."""
    if model.is_classifier:
        return np.full(len(table), model.vocab_size, dtype=np.int64)
    multiple = MULTIPLES[table.framework] * table.tensor_parallel_size
    padded: IntColumn = -(-model.vocab_size // multiple) * multiple
    return padded


def vocabulary_ranks(model: ModelArchitecture, table: StrategyTable) -> IntColumn:
    """Over how many ranks it is split, (n,)."""
    return np.ones_like(table.tensor_parallel_size) if model.is_classifier else table.tensor_parallel_size


def scored_rows(model: ModelArchitecture, table: StrategyTable, tokens: FloatColumn) -> FloatColumn:
    """Of one micro-batch on one rank, what goes through the head: `tokens`, or one class token a sample, (n,)."""
    return table.micro_batch_size.astype(np.float64) if model.is_classifier else tokens
