"""Stage rows: which layers lie where, and few stages that stand for all."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.memory import estimate_memory
from cost_models.results import TIME_PARTS
from cost_models.stages import all_stages, bounding_stages
from cost_models.time import estimate_time
from tests.cost_models.problems import h100, make_problem, megatron, resolved

LLAMA = make_problem("llama-3-8b", h100(2), global_batch_size=256)
LAYERS = 32


def layouts(chunks: int) -> st.SearchStrategy[list[int]]:
    """Layers of so many chunks, in runs of equal ones more often than not."""
    cuts = st.lists(st.sampled_from(range(0, LAYERS + 1, 2)), min_size=chunks - 1, max_size=chunks - 1).map(sorted)
    return cuts.map(lambda inner: np.diff([0, *inner, LAYERS]).tolist())


def test_chunks_lie_on_their_rank() -> None:
    table = resolved(LLAMA, megatron(1, 4, virtual_pipeline_size=2, layers_per_stage=[1, 2, 3, 4, 5, 6, 7, 4]))
    stages = all_stages(LLAMA.model, table)
    assert stages.layers[:, 0].tolist() == [1 + 5, 2 + 6, 3 + 7, 4 + 4]
    assert stages.first.tolist() == [True, False, False, False]
    assert stages.last.tolist() == [False, False, False, True]


def test_bounding_stages_lie_beside_every_change() -> None:
    table = resolved(
        LLAMA,
        megatron(1, 8, layers_per_stage=[4, 4, 4, 4, 4, 4, 4, 4]),
        megatron(1, 1),
        megatron(1, 8, layers_per_stage=[3, 4, 4, 4, 5, 5, 4, 3]),
        # Stages 1 to 3 hold as many layers, but their chunks do not.
        megatron(1, 4, virtual_pipeline_size=2, layers_per_stage=[4, 3, 5, 5, 4, 5, 3, 3]),
    )
    stages = bounding_stages(LLAMA.model, table)
    assert [part.tolist() for part in np.split(stages.stage, stages.start[1:])] == [
        [0, 1, 6, 7],
        [0],
        [0, 1, 3, 4, 5, 6, 7],
        [0, 1, 2, 3],
    ]
    assert stages.row.tolist() == [0] * 4 + [1] + [2] * 7 + [3] * 4
    values = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(stages.on_first(values), np.where(stages.first, values[stages.row], 0.0))
    np.testing.assert_array_equal(stages.on_last(values), np.where(stages.last, values[stages.row], 0.0))
    assert stages.last.tolist() == [False] * 3 + [True] + [True] + [False] * 6 + [True] + [False] * 3 + [True]


@settings(deadline=None, max_examples=40)
@given(
    st.one_of(layouts(8).map(lambda layout: (8, 1, layout)), layouts(8).map(lambda layout: (4, 2, layout))),
    st.sampled_from(["1f1b", "gpipe", "zero-bubble", "interleaved"]),
    st.sampled_from(["none", "full"]),
    st.integers(0, 8),
)
def test_bounding_stages_stand_for_all(
    case: tuple[int, int, list[int]], schedule: str, checkpointing: str, checkpointed: int
) -> None:
    pipeline, virtual, layout = case
    table = resolved(
        LLAMA,
        megatron(
            *(1, pipeline),
            virtual_pipeline_size=virtual,
            layers_per_stage=layout,
            pipeline_schedule=schedule,
            activation_checkpointing=checkpointing,
            checkpointed_layers=checkpointed if checkpointing == "full" else 0,
        ),
    )
    every, few = all_stages(LLAMA.model, table), bounding_stages(LLAMA.model, table)
    memory, of_few = estimate_memory(LLAMA, table, every), estimate_memory(LLAMA, table, few)
    assert of_few.most_required_bytes == memory.most_required_bytes
    assert of_few.peak_bytes[of_few.fullest] == memory.peak_bytes[memory.fullest]
    seconds, seconds_of_few = estimate_time(LLAMA, table, every), estimate_time(LLAMA, table, few)
    for name in TIME_PARTS:
        np.testing.assert_allclose(seconds_of_few.parts[name], seconds.parts[name], rtol=1e-12)
    np.testing.assert_allclose(seconds_of_few.hardware_flops, seconds.hardware_flops, rtol=1e-12)
