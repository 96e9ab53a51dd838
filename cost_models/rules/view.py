"""What rules look at: a table's sizes within bounds, its frameworks' abilities, and the model's dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.architecture import Attention, FeedForward, MixtureOfExperts, ModelArchitecture
from cost_models.framework import Framework
from cost_models.frameworks import FRAMEWORKS
from cost_models.problem import Problem
from cost_models.resolve import LARGEST_SIZE
from cost_models.strategy import CHOICES, BoolColumn, IntColumn, StrategyTable


@dataclass(frozen=True)
class Rule:
    """One rule and its wording, side by side so that they cannot disagree."""

    code: str
    broken: Callable[[View], BoolColumn | bool]
    """Where it is broken; True or False where that depends on the problem alone."""
    says: Callable[[View], str]
    """The message, for a view of one row that breaks it."""


@dataclass(frozen=True)
class Dimensions:
    """The distinct sizes, over all blocks, that parallelism has to divide."""

    heads: tuple[int, ...]
    key_value_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    ffn_widths: tuple[int, ...]
    """Of dense layers and shared experts."""
    expert_widths: tuple[int, ...]
    experts: tuple[int, ...]
    causal: bool
    latent: bool


def dimensions(model: ModelArchitecture) -> Dimensions:
    """The sizes of one model."""
    attentions: list[Attention] = [block.attention for block in model.blocks]
    attentions += [block.cross_attention for block in model.blocks if block.cross_attention]
    parts = [block.feed_forward for block in model.blocks]
    mixtures = [part for part in parts if isinstance(part, MixtureOfExperts)]
    dense = [part for part in parts if isinstance(part, FeedForward)] + [
        part.shared for part in mixtures if part.shared
    ]
    return Dimensions(
        heads=_distinct(part.heads for part in attentions),
        key_value_heads=_distinct(part.key_value_heads for part in attentions if part.latent is None),
        head_dims=_distinct(part.head_dim for part in attentions),
        ffn_widths=_distinct(part.hidden for part in dense),
        expert_widths=_distinct(part.routed.hidden for part in mixtures),
        experts=_distinct(part.experts for part in mixtures),
        causal=all(block.attention.causal for block in model.blocks),
        latent=any(part.latent for part in attentions),
    )


def _distinct(sizes: Any) -> tuple[int, ...]:
    return tuple(sorted(set(sizes)))


class View:
    """A problem and a table, with the columns that several rules need computed once."""

    def __init__(self, problem: Problem, table: StrategyTable) -> None:
        self.problem, self.table = problem, table
        self.model, self.cluster, self.workload = problem.model, problem.cluster, problem.workload
        self.tensor = self._size("tensor_parallel_size")
        self.context = self._size("context_parallel_size")
        self.data = self._size("data_parallel_size")
        self.pipeline = self._size("pipeline_parallel_size")
        self.virtual = self._size("virtual_pipeline_size")
        self.expert = self._size("expert_parallel_size")
        self.expert_tensor = self._size("expert_tensor_parallel_size")
        self.replicate = self._size("data_parallel_replicate_size")
        self.secondary = self._size("secondary_shard_size")
        self.micro_batch = self._size("micro_batch_size")

    def _size(self, name: str) -> IntColumn:
        column: IntColumn = np.minimum(getattr(self.table, name), LARGEST_SIZE)
        return column

    @cached_property
    def dimensions(self) -> Dimensions:
        """The model's sizes."""
        return dimensions(self.model)

    @cached_property
    def micro_batches(self) -> IntColumn:
        """m: whole micro-batches that each data-parallel rank runs in a step."""
        return self.problem.micro_batches(self.table)

    @cached_property
    def sequence_length(self) -> int:
        """Tokens of a sequence: the model's only length, or the workload's."""
        return self.model.sequence_length or self.workload.sequence_length

    def able(self, ability: Callable[[Framework], bool]) -> BoolColumn:
        """A yes or no of each row's framework."""
        return np.array([ability(framework) for framework in FRAMEWORKS], dtype=np.bool_)[self.table.framework]

    def number(self, value: Callable[[Framework], int]) -> IntColumn:
        """A number of each row's framework."""
        return np.array([value(framework) for framework in FRAMEWORKS], dtype=np.int64)[self.table.framework]

    def allows(self, field: str, allowed: Callable[[Framework], tuple[Any, ...]]) -> BoolColumn:
        """Where a choice (or a ZeRO stage) is among those that each row's framework allows."""
        choices = CHOICES.get(field, range(4))
        able = np.array([[choice in allowed(framework) for choice in choices] for framework in FRAMEWORKS])
        # One index into the flat table: half the time of two into its rows and columns.
        where: BoolColumn = able.ravel().take(self.table.framework * able.shape[1] + getattr(self.table, field))
        return where

    # Of the first row, for messages.

    @property
    def framework(self) -> Framework:
        """The framework of the first row."""
        return FRAMEWORKS[int(self.table.framework[0])]

    def value(self, name: str) -> Any:
        """A field of the first row in the words of the contract."""
        return self.table.value(name, 0)


def divides(sizes: tuple[int, ...], parts: IntColumn) -> BoolColumn:
    """Where `parts` divides every one of the sizes (there may be none)."""
    common = int(np.gcd.reduce(np.array(sizes, dtype=np.int64))) if sizes else 0
    whole: BoolColumn = common % parts == 0
    return whole


def first_undivided(sizes: tuple[int, ...], parts: int) -> int:
    """The first size that `parts` does not divide."""
    return next(size for size in sizes if size % parts)
