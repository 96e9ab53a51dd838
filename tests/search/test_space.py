from typing import Any

import pytest

from cost_models.errors import InvalidInput
from search.evaluator import Evaluator
from search.space import allows, check_space
from tests.search.problems import small_search


@pytest.mark.parametrize(
    ("space", "loc", "code"),
    [
        ({"tensor_size": (1,)}, ("space", "tensor_size"), "unknown_field"),
        ({"layouts": (1,)}, ("space", "layouts"), "unknown_field"),
        ({"zero_stage": ()}, ("space", "zero_stage"), "empty"),
        ({"zero_stage": 1}, ("space", "zero_stage"), "wrong_type"),
        ({"framework": "fsdp2"}, ("space", "framework"), "wrong_type"),
        ({"zero_stage": (1, 4)}, ("space", "zero_stage", 1), "wrong_value"),
        ({"tensor_parallel_size": (0,)}, ("space", "tensor_parallel_size", 0), "wrong_value"),
        ({"tensor_parallel_size": (True,)}, ("space", "tensor_parallel_size", 0), "wrong_value"),
        ({"micro_batch_size": (1.5,)}, ("space", "micro_batch_size", 0), "wrong_value"),
        ({"compile": (1,)}, ("space", "compile", 0), "wrong_value"),
        ({"offload": ("disk",)}, ("space", "offload", 0), "wrong_value"),
        ({"offload_fraction": (1.5,)}, ("space", "offload_fraction", 0), "wrong_value"),
        ({"recompute_modules": (("mlp", "head"),)}, ("space", "recompute_modules", 0), "wrong_value"),
        ({"layers_per_stage": (4,)}, ("space", "layers_per_stage", 0), "wrong_value"),
    ],
)
def test_bad_space_is_refused_at_its_field(space: dict[str, Any], loc: tuple[Any, ...], code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_space(space)
    assert (refused.value.loc, refused.value.code) == (loc, code)


def test_allows_compares_the_resolved_value() -> None:
    evaluator = Evaluator(small_search())
    table = evaluator.resolve_strategies(
        0,
        [
            {"framework": "fsdp2"},
            {"framework": "fsdp2", "zero_stage": 2, "pipeline_parallel_size": 2},
            {"framework": "megatron-lm", "activation_checkpointing": "selective", "pipeline_parallel_size": 4},
        ],
    )
    # fsdp2 without a stage is ZeRO-3, megatron-lm ZeRO-0.
    assert allows({"zero_stage": (3,)}, table).tolist() == [True, False, False]
    assert allows({"framework": ("fsdp2",), "zero_stage": (2, 3)}, table).tolist() == [True, True, False]
    assert allows({"layers_per_stage": ((16, 16),)}, table).tolist() == [False, True, False]
    assert allows({"recompute_modules": (("core_attn",),)}, table).tolist() == [False, False, True]
    assert allows({}, table).all()
