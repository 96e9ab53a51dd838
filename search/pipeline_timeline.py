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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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


Step = tuple[Kind, int, int]
"""Kind, chunk in model order, micro-batch."""


def timeline(
    schedule: str, stages: Sequence[StageTimes], *, chunks_per_stage: int, micro_batches: int
) -> tuple[Pass, ...]:
    """All passes of one step, by start. `schedule`: as in a strategy; interleaved needs m to be a multiple of P."""
    play = _Play(stages, chunks_per_stage, split=schedule == "zero-bubble")
    if schedule == "zero-bubble":
        play.greedily(micro_batches)
    else:
        orders = {"gpipe": _all_forwards_first, "1f1b": _one_forward_one_backward, "interleaved": _interleaved}
        play.in_order(
            [orders[schedule](stage, len(stages), chunks_per_stage, micro_batches) for stage in range(len(stages))]
        )
    return tuple(sorted(play.passes, key=lambda one: (one.start_seconds, one.stage)))


def makespan_seconds(passes: Sequence[Pass]) -> float:
    """From the first forward to the last pass of all stages."""
    return max(one.end_seconds for one in passes)


def idle_seconds(passes: Sequence[Pass]) -> Mapping[int, float]:
    """By stage: how long it waits within the makespan."""
    idle = dict.fromkeys(sorted({one.stage for one in passes}), makespan_seconds(passes))
    for one in passes:
        idle[one.stage] -= one.end_seconds - one.start_seconds
    return idle


def _all_forwards_first(stage: int, size: int, chunks: int, micro_batches: int) -> Iterator[Step]:
    mine = range(stage, size * chunks, size)
    yield from (("forward", chunk, batch) for chunk in mine for batch in range(micro_batches))
    yield from (("backward", chunk, batch) for chunk in reversed(mine) for batch in range(micro_batches))


def _one_forward_one_backward(stage: int, size: int, _: int, micro_batches: int) -> Iterator[Step]:
    warm = min(size - 1 - stage, micro_batches)
    yield from (("forward", stage, batch) for batch in range(warm))
    for batch in range(warm, micro_batches):
        yield "forward", stage, batch
        yield "backward", stage, batch - warm
    yield from (("backward", stage, batch) for batch in range(micro_batches - warm, micro_batches))


def _interleaved(stage: int, size: int, chunks: int, micro_batches: int) -> Iterator[Step]:
    total = chunks * micro_batches
    warm = min(2 * (size - 1 - stage) + (chunks - 1) * size, total)

    def step(kind: Kind, number: int) -> Step:
        group, within = divmod(number, size * chunks)
        local, batch = divmod(within, size)
        place = local if kind == "forward" else chunks - 1 - local
        return kind, place * size + stage, group * size + batch

    yield from (step("forward", number) for number in range(warm))
    for number in range(warm, total):
        yield step("forward", number)
        yield step("backward", number - warm)
    yield from (step("backward", number) for number in range(total - warm, total))


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
        for _ in range(3 * micro_batches * (self.last_chunk + 1)):
            offers = [
                (max(self.free[stage], ready), queue.rank(step), stage, step)
                for stage, queue in enumerate(queues)
                for step in queue.candidates()
                if (ready := self._ready(step)) is not None
            ]
            _, _, stage, step = min(offers)
            ready = self._ready(step)
            assert ready is not None
            self._do(stage, step, ready)
            queues[stage].took(step)

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
