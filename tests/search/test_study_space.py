import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.strategy import RECOMPUTE_MODULES
from search.evaluator import Evaluator
from search.fitting import fit_finely
from search.prospects import study_seeds
from search.study_space import RELIEF_LAYERS, StudySpace, relieved, study_layouts
from tests.search.problems import Recorder, cluster, run, small_search
from tests.search.test_sweep import swept


def test_a_seed_decodes_to_what_fits_into_the_strategy_that_it_stands_for() -> None:
    search = small_search("llama-3-70b", clusters=(cluster(nodes=4),), frameworks=("megatron-lm", "deepspeed", "fsdp2"))
    evaluator = Evaluator(search)
    seeds = study_seeds(evaluator, swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    proposals = [space.decode(space.encode(int(seeds.cluster[row]), seeds.table.row(row))) for row in range(len(seeds))]
    decoded = evaluator.resolve_strategies(0, [proposal.strategy for proposal in proposals])
    fitted = fit_finely(evaluator, 0, decoded)
    assert len(seeds) >= 12
    assert (fitted.objective <= seeds.objective)[seeds.acceptable].all()
    for row in range(len(seeds)):
        solved = {"checkpointed_layers", "offload_fraction"}
        names = [name for name in seeds.table.row(row) if name not in solved]
        assert [fitted.table.value(name, row) for name in names] == [seeds.table.value(name, row) for name in names]


def test_points_of_the_study_are_nearly_all_valid() -> None:
    search = small_search("llama-2-13b", clusters=(cluster(nodes=2),))
    evaluator = Evaluator(search)
    space = StudySpace(search, study_layouts(search, study_seeds(Evaluator(search), swept(search), None)))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [study.ask(space.distributions).params for _ in range(200)]
    scored = evaluator.evaluate_strategies(0, [space.decode(point).strategy for point in points])
    assert scored.valid.mean() > 0.9


def test_points_of_another_space_are_not_understood() -> None:
    search = small_search("llama-2-13b", clusters=(cluster(nodes=2),))
    seeds = study_seeds(Evaluator(search), swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    point = space.encode(0, seeds.table.row(0))
    assert space.understands(point)
    assert not space.understands({**point, "layout": 10**6})
    assert not space.understands({**point, "checkpointing": "sometimes"})
    assert not space.understands({name: value for name, value in point.items() if name != "layout"})
    assert not space.understands({**point, "unknown": 1})


@given(
    layers=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    pipeline=st.sampled_from([1, 2, 4]),
    first=st.integers(-2, 2),
    last=st.integers(-2, 2),
)
def test_relief_keeps_the_layers_and_empties_no_chunk_but_the_ends(
    layers: list[int], pipeline: int, first: int, last: int
) -> None:
    result = relieved(layers, first, last, pipeline=pipeline, head=1.0)
    assert sum(result) == sum(layers)
    assert len(result) == len(layers)
    assert min(result) >= 0
    assert min(result[1:-1], default=1) >= 1


@pytest.mark.parametrize(
    ("layers", "relief", "pipeline", "expected"),
    [
        ((4, 4, 4, 4), (1, 1), 4, (3, 5, 5, 3)),
        ((4, 4, 4, 4), (0, 2), 4, (4, 5, 5, 2)),
        ((4, 4, 4, 4), (-1, 0), 4, (5, 4, 3, 4)),
        ((8, 8), (0, 1), 2, (9, 7)),
        ((1, 1, 1), (1, 0), 3, (0, 2, 1)),
        ((2, 2, 2, 1), (0, 1), 4, (2, 3, 2, 0)),
        ((1, 1, 1), (2, 0), 3, (1, 1, 1)),
        # two ranks with two chunks each: the first rank has less to do once the head counts
        ((2, 2, 2, 2), (0, 1), 2, (2, 2, 3, 1)),
    ],
)
def test_relief_moves_layers_from_the_ends_to_the_least_busy_rank(
    layers: tuple[int, ...], relief: tuple[int, int], pipeline: int, expected: tuple[int, ...]
) -> None:
    assert relieved(layers, *relief, pipeline=pipeline, head=1.5) == expected


def test_neighbours_move_one_thing() -> None:
    search = small_search(
        "llama-2-13b",
        clusters=(cluster(nodes=2),),
        frameworks=("megatron-lm",),
        space={"pipeline_parallel_size": (4,), "activation_checkpointing": ("none", "selective")},
    )
    space = StudySpace(search, study_layouts(search, study_seeds(Evaluator(search), swept(search), None)))
    middle = {**space.encode(0, study_seeds(Evaluator(search), swept(search), None).table.row(0)), "micro_batch": 1}
    middle |= {"checkpointing": "none", "first_chunk_relief": 0, "last_chunk_relief": 0, "recompute_layernorm": False}
    changes = [{n: v for n, v in point.items() if v != middle[n]} for point in space.neighbours(middle)]
    assert {"first_chunk_relief": 1, "last_chunk_relief": 1} in changes
    assert {"checkpointing": "selective", "recompute_layernorm": True} in changes
    assert {"micro_batch": 0} in changes
    assert {"micro_batch": 2} in changes
    assert not any("layout" in change for change in changes)
    assert {} not in changes
    # at the end of its range a number moves one way only
    edge = {**middle, "first_chunk_relief": RELIEF_LAYERS, "last_chunk_relief": RELIEF_LAYERS}
    ends = [(p["first_chunk_relief"], p["last_chunk_relief"]) for p in space.neighbours(edge)]
    assert set(ends) == {(2, 2), (1, 1), (1, 2), (2, 1)}


def test_one_mode_of_checkpointing_is_no_parameter_and_its_modules_are() -> None:
    search = small_search(space={"activation_checkpointing": ("selective",)}, trials=64, frameworks=("megatron-lm",))
    recorder = Recorder()
    run(search, recorder)
    assert len(recorder.trials) == 64
    assert {trial.strategy["activation_checkpointing"] for trial in recorder.trials} == {"selective"}
    assert ["layernorm"] in [trial.strategy["recompute_modules"] for trial in recorder.trials]


def test_modules_are_recomputed_as_the_point_says() -> None:
    search = small_search("deepseek-v3", clusters=(cluster(nodes=64),), frameworks=("megatron-lm",))
    seeds = study_seeds(Evaluator(search), swept(search), None)
    space = StudySpace(search, study_layouts(search, seeds))
    point = {**space.encode(0, seeds.table.row(0)), "checkpointing": "selective"}
    off = {name: False for name in space.distributions if name.startswith("recompute_")}
    assert set(off) == {f"recompute_{name}" for name in RECOMPUTE_MODULES}
    chosen = {**point, **off, "recompute_mla_up_proj": True, "recompute_moe_act": True}
    assert space.decode(chosen).strategy["recompute_modules"] == ["mla_up_proj", "moe_act"]
    assert space.decode({**chosen, "checkpointing": "none"}).strategy.get("recompute_modules") is None


def test_a_framework_that_splits_layers_by_itself_has_none_moved() -> None:
    for framework, moved in (("nanotron", False), ("megatron-lm", True)):
        search = small_search(
            "llama-2-13b", clusters=(cluster(nodes=2),), frameworks=(framework,), space={"pipeline_parallel_size": (4,)}
        )
        space = StudySpace(search, study_layouts(search, study_seeds(Evaluator(search), swept(search), None)))
        assert ("first_chunk_relief" in space.distributions) is moved
