"""How fast: strategies scored a second in process, and seconds a search takes at 64, 1,024 and 16,384 GPUs.

Run with `python -m benchmarks.search` from the root of the repository. Wall seconds are what a user waits, CPU seconds
what one unshared core would take.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from cost_models.catalog.models import load_model
from cost_models.cluster_input import load_cluster_preset
from cost_models.frameworks import FRAMEWORKS
from cost_models.memory import memory_needs
from cost_models.rules import violations
from cost_models.stages import bounding_stages
from cost_models.strategy import PartialColumns, StrategyTable, concatenate
from cost_models.time import estimate_time
from cost_models.workload import Workload
from search import SearchProblem, run_search
from search.evaluator import Evaluator
from search.lattice import BLOCK_ROWS, blocks, build_lattice

REPEATS = 5


@dataclass
class Elapsed:
    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def timed() -> Iterator[Elapsed]:
    elapsed = Elapsed()
    wall, cpu = time.perf_counter(), time.process_time()
    yield elapsed
    elapsed.wall, elapsed.cpu = time.perf_counter() - wall, time.process_time() - cpu


def problem(model: str, nodes: int, sequence_length: int, global_batch_size: int) -> SearchProblem:
    return SearchProblem(
        model=load_model(model),
        clusters=(load_cluster_preset("dgx-h100", nodes),),
        workload=Workload(sequence_length, global_batch_size),
        seconds=120.0,
    )


def plain_blocks(evaluator: Evaluator) -> Iterator[PartialColumns]:
    """The candidates of a lattice without offload, as they are before their defaults are filled in."""
    search = evaluator.search
    for framework in FRAMEWORKS[:3]:
        lattice = build_lattice(search, search.clusters[0], framework)
        choices = range(len(lattice.axes.checkpointing))
        for rows in blocks(lattice.with_micro_batches(lattice.layouts), BLOCK_ROWS // len(choices)):
            yield lattice.with_offload(lattice.with_checkpointing(rows, choices), ("none", 1.0))


def best_of(action: Callable[[], object]) -> Elapsed:
    results = []
    for _ in range(REPEATS):
        with timed() as elapsed:
            action()
        results.append(elapsed)
    return min(results, key=lambda elapsed: elapsed.cpu)


def print_scoring() -> None:
    search = problem("llama-3-70b", 8, 8192, 128)
    evaluator = Evaluator(search)
    partials = list(plain_blocks(evaluator))
    resolved = concatenate([evaluator.resolve(0, partial) for partial in partials])
    valid = np.flatnonzero(evaluator.screen(0, resolved).violations == 0)
    rows = np.resize(valid, BLOCK_ROWS)
    table: StrategyTable = resolved.take(np.sort(rows))
    model, stages = search.problems[0], bounding_stages(search.model, table)
    for name, action in (
        ("rules", lambda: violations(model, table)),
        ("memory", lambda: memory_needs(model, table, stages)),
        ("time", lambda: estimate_time(model, table, stages)),
        ("rules, memory and time", lambda: evaluator.evaluate(0, table)),
        ("the same as in a sweep", lambda: evaluator.with_time(evaluator.judge(0, table))),
    ):
        print(f"{len(table):,} valid strategies, {name}: {len(table) / best_of(action).cpu:,.0f} /s of CPU")
    total = sum(len(partial) for partial in partials)

    def resolve_and_score() -> None:
        for partial in partials:
            evaluator.with_time(evaluator.judge(0, evaluator.resolve(0, partial)))

    everything = best_of(resolve_and_score)
    print(f"resolving and scoring a lattice of {total:,}, invalid ones too: {total / everything.cpu:,.0f} /s of CPU")


def print_searches() -> None:
    cases = (
        ("llama-3-70b", 8, 8192, 128),
        ("llama-3.1-405b", 128, 8192, 1024),
        ("llama-3.1-405b", 2048, 8192, 2048),
        ("deepseek-v3", 128, 4096, 8192),
        ("deepseek-v3", 2048, 4096, 16384),
    )
    for model, nodes, sequence_length, global_batch_size in cases:
        search = problem(model, nodes, sequence_length, global_batch_size)
        with timed() as elapsed:
            result = run_search(search, report=lambda *_: None, cancelled=lambda: False, clock=time.monotonic)
        best = result.plans[0]["time"]["step_seconds"] if result.plans else float("nan")
        print(
            f"{model} on {nodes * 8:,} GPUs: {elapsed.wall:.2f} s ({elapsed.cpu:.2f} s CPU), {result.evaluated:,} of "
            f"{result.space_size:,} scored, {result.trials} trials, best step {best:.2f} s"
        )
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    print_scoring()
    print_searches()
