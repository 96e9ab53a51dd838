"""Measured searches on simulated clusters that disagree with the cost models: how far the best plan that was measured
is from the best there is, trial by trial.

A simulated cluster takes the estimate of every plan apart and puts it together with factors of its own: one for the
cluster, one for each framework, one for every kind of communication; runs vary by 1 to 2 %, and plans need 5 to 10 %
more memory than estimated, so that first plans run out of it. The truth is enumerated: every candidate of every lattice
is scored on the simulated cluster. Compared with running the analytical ranking from the top, and with Optuna's TPE
over the fields of the same candidates.

Run with `python -m benchmarks.measured_trials` from the root of the repository; `--clusters N` draws N for each.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import optuna

from cost_models.catalog.models import load_model
from cost_models.cluster_input import load_cluster_preset
from cost_models.frameworks import FRAMEWORKS
from cost_models.memory import memory_needs, others_suffice
from cost_models.results import TIME_PARTS
from cost_models.rules import violations
from cost_models.stages import all_stages
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable
from cost_models.time import estimate_time
from cost_models.units import GIB
from cost_models.workload import Workload
from search import SearchProblem, run_search
from search.evaluator import Evaluator
from search.lattice import BLOCK_ROWS, blocks, build_lattice
from search.measured_candidates import build_pool
from search.measured_model import Told, best_measured, next_candidate
from search.measured_pool import MeasuredPool

TRIALS: Final = 15
SHOWN: Final = (1, 2, 3, 5, 8, 10, 12, 15)
COMMUNICATION: Final = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_communication")
SEARCHED: Final = FRAMEWORKS[:3]


def measured_problem(model: str, preset: str, nodes: int, sequence_length: int, batch: int) -> SearchProblem:
    return SearchProblem(
        model=load_model(model),
        clusters=(load_cluster_preset(preset, nodes),),
        workload=Workload(sequence_length, batch),
        frameworks=tuple(framework.name for framework in SEARCHED),
        seconds=600.0,
    )


PROBLEMS: Final = {
    "dense, 8 GPUs": ("llama-3-8b", "dgx-h100", 1, 8192, 64),
    "dense, 64 GPUs": ("llama-3-70b", "dgx-h100", 8, 8192, 128),
    "MoE, 16 GPUs": ("qwen3-30b-a3b", "dgx-h100", 2, 4096, 128),
}


@dataclass(frozen=True)
class Lattice:
    """Every valid candidate of a problem, as columns."""

    framework: IntColumn
    parts: FloatColumn
    required_gib: FloatColumn
    capacity_gib: float


def whole_lattice(search: SearchProblem) -> Lattice:
    """All rows, scored for themselves: nothing is pruned."""
    evaluator = Evaluator(search)
    parts, required, frameworks = [], [], []
    for table in _tables(evaluator):
        problem = search.problems[0]
        stages = all_stages(problem.model, table)
        needs = memory_needs(problem, table, stages)
        rows = np.flatnonzero(others_suffice(problem, needs))
        time = estimate_time(problem, table, stages)
        parts.append(np.stack([time.parts[name] for name in TIME_PARTS], axis=1)[rows])
        required.append(needs.most_required_bytes[rows] / GIB)
        frameworks.append(table.framework[rows])
    capacity_gib = search.capacity_bytes / GIB
    return Lattice(np.concatenate(frameworks), np.concatenate(parts), np.concatenate(required), capacity_gib)


def _tables(evaluator: Evaluator) -> Iterator[StrategyTable]:
    search = evaluator.search
    for framework in SEARCHED:
        lattice = build_lattice(search, search.clusters[0], framework)
        choices = range(len(lattice.axes.checkpointing))
        for offload in lattice.axes.offload:
            for rows in blocks(lattice.with_micro_batches(lattice.layouts), BLOCK_ROWS // len(choices)):
                able = {name: column[lattice.can_offload(rows, offload[0])] for name, column in rows.items()}
                if not len(able["micro_batch_size"]):
                    continue
                crossed = lattice.with_checkpointing(able, choices)
                table = evaluator.resolve(0, lattice.with_offload(crossed, offload))
                valid = violations(search.problems[0], table) == 0
                if valid.any():
                    yield table.take(np.flatnonzero(valid))


@dataclass(frozen=True)
class SimulatedCluster:
    """Factors on the estimates that no search sees."""

    factors: FloatColumn
    """By TIME_PARTS."""
    of_framework: FloatColumn
    """By FRAMEWORKS."""
    memory: float
    noise: float
    """Deviation of the logarithm of a single run."""

    @classmethod
    def draw(cls, seed: int) -> SimulatedCluster:
        random = np.random.default_rng(seed)
        factors = np.full(len(TIME_PARTS), random.uniform(0.9, 1.5))
        for name in COMMUNICATION:
            factors[TIME_PARTS.index(name)] *= random.uniform(0.7, 2.5)
        factors[TIME_PARTS.index("data_parallel")] *= random.uniform(0.7, 2.0)
        of_framework = random.uniform(0.8, 1.3, size=len(FRAMEWORKS))
        return cls(factors, of_framework, random.uniform(1.05, 1.10), random.uniform(0.01, 0.02))

    def seconds(self, parts: FloatColumn, framework: IntColumn) -> FloatColumn:
        seconds: FloatColumn = (parts @ self.factors) * self.of_framework[framework]
        return seconds

    def best_seconds(self, lattice: Lattice) -> float:
        fits = lattice.required_gib * self.memory <= lattice.capacity_gib
        return float(self.seconds(lattice.parts[fits], lattice.framework[fits]).min())


class Runner:
    """Runs candidates on a simulated cluster."""

    def __init__(self, pool: MeasuredPool, cluster: SimulatedCluster, seed: int) -> None:
        self._pool, self._cluster = pool, cluster
        self._random = np.random.default_rng([seed, 1])
        names = [framework.name for framework in FRAMEWORKS]
        framework = np.array([names.index(strategy["framework"]) for strategy in pool.strategies])
        self.true_seconds = cluster.seconds(pool.parts, framework)
        self.fits = np.array(pool.required_gib) * cluster.memory <= pool.capacity_gib

    def run(self, candidate: int) -> Told:
        if not self.fits[candidate]:
            return Told(candidate, failed="out_of_memory")
        noise = float(np.exp(self._random.normal() * self._cluster.noise))
        allocated = self._pool.peaks_gib[candidate][0] * self._cluster.memory
        seconds = float(self.true_seconds[candidate]) * noise
        return Told(candidate, step_seconds=seconds, peaks_gib=(allocated, None, None))


Choose = Callable[[MeasuredPool, Sequence[Told]], int | None]


def regret_by_trial(runner: Runner, pool: MeasuredPool, choose: Choose, best_seconds: float) -> list[float]:
    """Of the plan that is the best of those measured so far, by its true time; 1 while none has run."""
    told: list[Told] = []
    regrets = []
    for _ in range(TRIALS):
        candidate = choose(pool, told)
        if candidate is not None:
            told.append(runner.run(candidate))
        best = best_measured(pool, told)
        regrets.append(1.0 if best is None else float(runner.true_seconds[best]) / best_seconds - 1.0)
    return regrets


def from_the_top(pool: MeasuredPool, told: Sequence[Told]) -> int | None:
    """The analytical order of the same candidates."""
    order = np.argsort(pool.step_seconds, kind="stable").tolist()
    return order[len(told)] if len(told) < len(order) else None


class PlainTpe:
    """Optuna's default sampler over the fields of a candidate; what is no candidate is mapped to the nearest."""

    FIELDS = ("framework", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
              "expert_parallel_size", "zero_stage", "micro_batch_size", "activation_checkpointing")  # fmt: skip

    def __init__(self, pool: MeasuredPool, seed: int) -> None:
        self._pool = pool
        values = {name: sorted({strategy[name] for strategy in pool.strategies}) for name in self.FIELDS}
        self._distributions = {name: optuna.distributions.CategoricalDistribution(v) for name, v in values.items()}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=5))
        self._study.enqueue_trial({name: pool.strategies[0][name] for name in self.FIELDS})
        self._asked: list[optuna.trial.Trial] = []

    def __call__(self, pool: MeasuredPool, told: Sequence[Told]) -> int | None:
        if told:
            seconds = told[-1].step_seconds
            self._study.tell(self._asked[-1], seconds if seconds is not None else 1e6)
        self._asked.append(self._study.ask(self._distributions))
        params = self._asked[-1].params
        seen = {one.candidate for one in told}
        agree = [
            -1 if index in seen else sum(strategy[name] == params[name] for name in self.FIELDS)
            for index, strategy in enumerate(pool.strategies)
        ]
        return int(np.argmax(agree))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=40)
    clusters = parser.parse_args().clusters
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
    for name, arguments in PROBLEMS.items():
        search = measured_problem(*arguments)
        plans = run_search(search, report=lambda *_: None, cancelled=lambda: False, clock=lambda: 0.0).plans
        pool = build_pool(search, plans, cancelled=lambda: False, clock=lambda: 0.0)
        lattice = whole_lattice(search)
        table: dict[str, list[list[float]]] = {"measured search": [], "analytical order": [], "plain TPE": []}
        reachable = []
        for seed in range(clusters):
            cluster = SimulatedCluster.draw(seed)
            best = cluster.best_seconds(lattice)
            runner = Runner(pool, cluster, seed)
            reachable.append(runner.true_seconds[runner.fits].min() / best - 1.0)
            for method, choose in (
                ("measured search", next_candidate),
                ("analytical order", from_the_top),
                ("plain TPE", PlainTpe(pool, seed)),
            ):
                table[method].append(regret_by_trial(Runner(pool, cluster, seed), pool, choose, best))
        print(f"\n{name}: {len(pool)} candidates of {len(lattice.framework)} valid, {clusters} clusters; "
              f"best candidate {max(reachable):.2%} above the best of all at most")  # fmt: skip
        print("regret, % (median / worst)".ljust(28) + "".join(f"{f'trial {n}':>15}" for n in SHOWN) + "  within 2 %")
        for method, rows in table.items():
            regrets = np.array(rows)[:, [n - 1 for n in SHOWN]] * 100
            cells = "".join(f"{f'{np.median(c):.1f} / {c.max():.1f}':>15}" for c in regrets.T)
            print(method.ljust(28) + cells + f"{(regrets[:, -1] <= 2.0).sum():>8} of {clusters}")


if __name__ == "__main__":
    main()
