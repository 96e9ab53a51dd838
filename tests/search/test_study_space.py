from typing import Any

import optuna
from hypothesis import given
from hypothesis import strategies as st

from cost_models.layouts import balanced_layout
from search.evaluator import Evaluator
from search.run import _seeds
from search.study_space import StudySpace, relieved, study_layouts
from tests.search.problems import cluster, small_search
from tests.search.test_sweep import swept


def test_a_seed_decodes_to_the_strategy_that_it_stands_for() -> None:
    search = small_search("llama-3-70b", clusters=(cluster(nodes=4),), frameworks=("megatron-lm", "deepspeed", "fsdp2"))
    evaluator = Evaluator(search)
    seeds = _seeds(search, swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    proposals = [space.decode(space.encode(int(seeds.cluster[row]), seeds.table.row(row))) for row in range(len(seeds))]
    decoded = evaluator.resolve_strategies(0, [proposal.strategy for proposal in proposals])
    assert len(seeds) >= 12
    for row in range(len(seeds)):
        expected = seeds.table.row(row)
        sizes = (expected["pipeline_parallel_size"], expected["virtual_pipeline_size"])
        if tuple(expected["layers_per_stage"]) == balanced_layout(search.model, *sizes):
            # Balanced layers are the lattice's: the study starts from the default ones and moves those of the ends.
            expected["layers_per_stage"] = decoded.value("layers_per_stage", row)
        assert decoded.row(row) == expected


def test_points_of_the_study_are_nearly_all_valid() -> None:
    search = small_search("llama-2-13b", clusters=(cluster(nodes=2),))
    evaluator = Evaluator(search)
    space = StudySpace(search, study_layouts(search, _seeds(search, swept(search), None)))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [study.ask(space.distributions).params for _ in range(200)]
    scored = evaluator.evaluate_strategies(0, [space.decode(point).strategy for point in points])
    assert scored.valid.mean() > 0.9


def test_points_of_another_space_are_not_understood() -> None:
    search = small_search("llama-2-13b", clusters=(cluster(nodes=2),))
    seeds = _seeds(search, swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    point = space.encode(0, seeds.table.row(0))
    assert space.understands(point)
    assert not space.understands({**point, "layout": 10**6})
    assert not space.understands({**point, "checkpointing": "sometimes"})
    assert not space.understands({name: value for name, value in point.items() if name != "layout"})
    assert not space.understands({**point, "unknown": 1})


@given(
    layers=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    first=st.integers(-2, 2),
    last=st.integers(-2, 2),
)
def test_relief_keeps_the_layers_and_leaves_no_chunk_empty(layers: list[int], first: int, last: int) -> None:
    result = relieved(layers, first, last)
    assert sum(result) == sum(layers)
    assert len(result) == len(layers)
    assert min(result) >= 1


def test_relief_moves_layers_from_the_ends_to_the_middle() -> None:
    assert relieved((4, 4, 4, 4), 1, 1) == (3, 5, 5, 3)
    assert relieved((4, 4, 4, 4), 0, 2) == (4, 5, 5, 2)
    assert relieved((4, 4, 4, 4), -1, 0) == (5, 3, 4, 4)
    assert relieved((8, 8), 0, 1) == (9, 7)
    assert relieved((1, 1, 1), 1, 0) == (1, 1, 1)


def test_between_points_recompute_and_offload_less() -> None:
    space, point = _halfway("deepspeed")
    offload = "optimizer-and-parameters"
    lower, less = space.between({**point, "offload": offload, "offload_steps": 20}, 0.5)
    assert (lower["checkpointed_share"], lower["offload_steps"]) == (0.375, 20)
    assert (less["checkpointed_share"], less["offload_steps"]) == (0.5, 15)
    assert space.between({**point, "checkpointing": "none", "offload": "none"}, 0.5) == []
    decoded = space.decode({**point, "offload": offload, "offload_steps": 15}).strategy
    assert (decoded["checkpointed_layers"], decoded["offload_fraction"]) == (40, 0.75)


def test_what_a_framework_offloads_as_a_whole_is_not_divided() -> None:
    space, point = _halfway("fsdp2")
    decoded = space.decode({**point, "offload": "optimizer-and-parameters", "offload_steps": 15}).strategy
    assert decoded["offload_fraction"] == 1.0


def test_a_framework_that_splits_layers_by_itself_has_none_moved() -> None:
    for framework, moved in (("nanotron", False), ("megatron-lm", True)):
        search = small_search(
            "llama-2-13b", clusters=(cluster(nodes=2),), frameworks=(framework,), space={"pipeline_parallel_size": (4,)}
        )
        space = StudySpace(search, study_layouts(search, _seeds(search, swept(search), None)))
        assert ("first_chunk_relief" in space.distributions) is moved


def _halfway(framework: str) -> tuple[StudySpace, dict[str, Any]]:
    """A point of the study that shards everything and recomputes half of its layers."""
    search = small_search(
        "llama-3-70b", clusters=(cluster("dgx-a100"),), frameworks=(framework,), space={"zero_stage": (3,)}
    )
    seeds = _seeds(search, swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    return space, {**space.encode(0, seeds.table.row(0)), "checkpointing": "full", "checkpointed_share": 0.5}
