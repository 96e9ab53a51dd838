"""When each stage of a pipeline works on which micro-batch: the schedules, played out pass by pass.

Orders are those of the schedules' papers and of Megatron-Core's schedules.py: GPipe all forwards, then all backwards
(arXiv 1811.06965); 1F1B and its interleaved form (arXiv 2104.04473 section 2.2 and figure 4); ZB-H1 splits backward
into input and weight gradients and puts the latter where a stage would wait, with no more micro-batches in flight than
1F1B (arXiv 2401.10241 section 3), ZB-V with two chunks a stage, the second laid out in reverse (section 6). The two
zero-bubble schedules are played greedily: backward before forward before weight gradients.

Passing activations between stages costs nothing here, and neither does what follows the last backward.

Legend: P stages, v chunks a stage, m micro-batches. A chunk's pass takes 1/v of its stage's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

MOST_PLAYED: Final = 8192
"""Micro-batches times chunks: more of them are not played one by one."""
LEAST_ROUNDS: Final = 3
"""Of as many micro-batches as there are stages: one fills the pipeline, one drains it, one is the steady state."""
LEAST_MICRO_BATCHES: Final = 48
Kind = Literal["forward", "backward", "weight_gradient"]


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one micro-batch on one stage, all its chunks together."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def whole(self) -> float:
        """Forward and backward together."""
        return self.forward + self.input_gradient + self.weight_gradient

    def of(self, kind: Kind, *, split: bool) -> float:
        """Of one kind of pass; `split`: backward has its weight gradients apart."""
        if kind == "forward":
            return self.forward
        if kind == "weight_gradient":
            return self.weight_gradient
        return self.input_gradient + (0.0 if split else self.weight_gradient)


@dataclass(frozen=True)
class Pass:
    """One pass of one micro-batch through one chunk."""

    stage: int
    chunk: int
    """In model order, 0 to v P - 1."""
    micro_batch: int
    kind: Kind
    start_seconds: float
    end_seconds: float

    def later(self, seconds: float, micro_batches: int) -> Pass:
        """The same pass of a later micro-batch."""
        return replace(
            self,
            micro_batch=self.micro_batch + micro_batches,
            start_seconds=self.start_seconds + seconds,
            end_seconds=self.end_seconds + seconds,
        )


Step = tuple[Kind, int, int]
"""Kind, chunk in model order, micro-batch."""


@dataclass(frozen=True)
class Timeline:
    """A step, with the middle of its steady state left out where it is long."""

    passes: tuple[Pass, ...]
    """By start; those after what is left out have the times and numbers that they have in the whole step."""
    stages: tuple[StageTimes, ...]
    micro_batches: int
    left_out: int
    """Micro-batches that are not among `passes`."""

    @property
    def makespan_seconds(self) -> float:
        """From the first forward to the last pass of all stages."""
        return max(one.end_seconds for one in self.passes)

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """By stage: how long it waits within the makespan."""
        return tuple(self.makespan_seconds - self.micro_batches * times.whole for times in self.stages)


def timeline(
    schedule: str, stages: Sequence[StageTimes], *, chunks_per_stage: int, micro_batches: int, group: int | None = None
) -> Timeline:
    """One step. `schedule`: as in a strategy; `group`: micro-batches that a chunk takes in a row under interleaving, at
    least P, and the rest of m too; None: P.

    In the steady state each further micro-batch takes as long as the slowest stage does for it (arXiv 2104.04473
    section 2.2): of a long step only its beginning and its end are played.
    """
    size = len(stages)
    together = group or size
    played = micro_batches
    if micro_batches * size * chunks_per_stage > MOST_PLAYED:
        groups = math.ceil(max(LEAST_ROUNDS * size, LEAST_MICRO_BATCHES) / together)
        played = min(micro_batches, groups * together + micro_batches % together)
    orders = _orders(schedule, size, chunks_per_stage, played, together)
    play = _Play(stages, chunks_per_stage, split=orders is None)
    if orders is None:
        play.greedily(played)
    else:
        play.in_order(orders)
    passes, left_out = play.passes, micro_batches - played
    if left_out:
        middle = max(one.end_seconds for one in passes) / 2
        gap = left_out * max(times.whole for times in stages)
        passes = [one if one.start_seconds < middle else one.later(gap, left_out) for one in passes]
    return Timeline(
        tuple(sorted(passes, key=lambda one: (one.start_seconds, one.stage))), tuple(stages), micro_batches, left_out
    )


def _orders(schedule: str, size: int, chunks: int, micro_batches: int, group: int) -> list[Iterator[Step]] | None:
    """Of each stage; None: the schedule has none, a stage does what is most urgent."""
    if schedule == "zero-bubble":
        return None
    if schedule == "interleaved":
        groups = [range(first, min(first + group, micro_batches)) for first in range(0, micro_batches, group)]
        return [_interleaved(stage, size, chunks, groups) for stage in range(size)]
    order = {"gpipe": _all_forwards_first, "1f1b": _one_forward_one_backward}[schedule]
    return [order(stage, size, micro_batches) for stage in range(size)]


def _all_forwards_first(stage: int, _: int, micro_batches: int) -> Iterator[Step]:
    yield from (("forward", stage, batch) for batch in range(micro_batches))
    yield from (("backward", stage, batch) for batch in range(micro_batches))


def _one_forward_one_backward(stage: int, size: int, micro_batches: int) -> Iterator[Step]:
    warm = min(size - 1 - stage, micro_batches)
    yield from (("forward", stage, batch) for batch in range(warm))
    for batch in range(warm, micro_batches):
        yield "forward", stage, batch
        yield "backward", stage, batch - warm
    yield from (("backward", stage, batch) for batch in range(micro_batches - warm, micro_batches))


def _interleaved(stage: int, size: int, chunks: int, groups: Sequence[range]) -> Iterator[Step]:
    """`groups`: of micro-batches that a chunk takes in a row."""
    mine = range(stage, size * chunks, size)
    forwards = [(chunk, batch) for group in groups for chunk in mine for batch in group]
    backwards = [(chunk, batch) for group in groups for chunk in reversed(mine) for batch in group]
    warm = min(2 * (size - 1 - stage) + (chunks - 1) * len(groups[0]), len(forwards))
    yield from (("forward", *one) for one in forwards[:warm])
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        yield "forward", *forward
        yield "backward", *backward
    yield from (("backward", *one) for one in backwards[len(forwards) - warm :])


class _Play:
    """What has been done, and until when each stage is busy."""

    def __init__(self, stages: Sequence[StageTimes], chunks_per_stage: int, *, split: bool) -> None:
        self.stages, self.chunks, self.split = stages, chunks_per_stage, split
        self.last_chunk = len(stages) * chunks_per_stage - 1
        self.done: dict[Step, float] = {}
        self.free = [0.0] * len(stages)
        self.passes: list[Pass] = []

    def in_order(self, orders: Sequence[Iterator[Step]]) -> None:
        """Every stage does its passes in its own order, each as soon as what it needs is there."""
        waiting = [next(order, None) for order in orders]
        while any(step is not None for step in waiting):
            moved = False
            for stage, step in enumerate(waiting):
                while step is not None and (ready := self._ready(step)) is not None:
                    self._do(stage, step, ready)
                    waiting[stage] = step = next(orders[stage], None)
                    moved = True
            if not moved:
                raise ValueError(f"the schedule cannot go on from {waiting}")

    def greedily(self, micro_batches: int) -> None:
        """At each moment the stage that is free first does the most urgent pass that is ready then."""
        size = len(self.stages)
        queues = [_Greedy(self._placed(stage), micro_batches, size, stage) for stage in range(size)]
        offers = [self._offer(stage, queue) for stage, queue in enumerate(queues)]
        for _ in range(3 * micro_batches * (self.last_chunk + 1)):
            start, _, stage, step = min(offer for offer in offers if offer is not None)
            self._do(stage, step, start)
            queues[stage].took(step)
            # What was done changes what this stage and its neighbours can do, and nothing else.
            for near in range(max(0, stage - 1), min(size, stage + 2)):
                offers[near] = self._offer(near, queues[near])

    def _offer(self, stage: int, queue: _Greedy) -> tuple[float, tuple[int, int], int, Step] | None:
        """What a stage would do next: when, how urgent, and what; None: it must wait for others."""
        return min(
            (
                (max(self.free[stage], ready), queue.rank(step), stage, step)
                for step in queue.candidates()
                if (ready := self._ready(step)) is not None
            ),
            default=None,
        )

    def _placed(self, stage: int) -> tuple[int, ...]:
        """Chunks of a stage: with two of them in the form of a V."""
        return (stage,) if self.chunks == 1 else (stage, self.last_chunk - stage)

    def _ready(self, step: Step) -> float | None:
        """When what a pass needs is there; None: not done yet."""
        kind, chunk, batch = step
        if kind == "forward":
            return 0.0 if chunk == 0 else self.done.get(("forward", chunk - 1, batch))
        if kind == "weight_gradient":
            return self.done.get(("backward", chunk, batch))
        own = self.done.get(("forward", chunk, batch))
        if chunk == self.last_chunk or own is None:
            return own
        return self.done.get(("backward", chunk + 1, batch))

    def _do(self, stage: int, step: Step, ready_seconds: float) -> None:
        kind, chunk, batch = step
        start = max(self.free[stage], ready_seconds)
        end = start + self.stages[stage].of(kind, split=self.split) / self.chunks
        self.free[stage] = self.done[step] = end
        self.passes.append(Pass(stage, chunk, batch, kind, start, end))


class _Greedy:
    """What one stage of a zero-bubble schedule has left."""

    def __init__(self, chunks: Sequence[int], micro_batches: int, size: int, stage: int) -> None:
        self.chunks, self.micro_batches = chunks, micro_batches
        # As many forwards ahead of their backward as 1F1B has on this stage; activations, which stay until the weight
        # gradients are done, as 1F1B has on its first stage (section 3). Halves of them with two chunks (section 6).
        self.in_flight = size - stage if len(chunks) == 1 else 2 * size
        self.kept = size * len(chunks)
        self.next: dict[tuple[Kind, int], int] = {
            (kind, chunk): 0 for kind in ("forward", "backward", "weight_gradient") for chunk in chunks
        }

    def candidates(self) -> Iterator[Step]:
        """The next pass of each kind and chunk."""
        # A micro-batch that enters takes the room of all its chunks, or none of those inside could go on.
        entered = self.next["forward", self.chunks[0]] * len(self.chunks)
        returned, freed = (
            sum(self.next[kind, chunk] for chunk in self.chunks) for kind in ("backward", "weight_gradient")
        )
        may_enter = entered - returned < self.in_flight and entered - freed < self.kept
        for (kind, chunk), batch in self.next.items():
            enters = kind == "forward" and chunk == self.chunks[0]
            if batch < self.micro_batches and (may_enter or not enters):
                yield kind, chunk, batch

    def rank(self, step: Step) -> tuple[int, int]:
        """Lower is more urgent: backward, then forward of the later chunk, then weight gradients."""
        return ("backward", "forward", "weight_gradient").index(step[0]), -step[1]

    def took(self, step: Step) -> None:
        """It does this pass."""
        self.next[step[0], step[1]] += 1
