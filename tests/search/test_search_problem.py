from typing import Any

import pytest

from cost_models.errors import InvalidInput
from tests.search.problems import cluster, small_search


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"objective": "cost", "clusters": (cluster(usd_per_gpu_hour=None),)}, ("objective",)),
        ({"objective": "speed"}, ("objective",)),
        ({"deadline_days": 30.0}, ("deadline_days",)),
        ({"deadline_days": -1.0}, ("deadline_days",)),
        ({"memory_confidence": 1.0}, ("memory_confidence",)),
        ({"trials": -1}, ("budget", "trials")),
        ({"seconds": 0.0}, ("budget", "seconds")),
        ({"seconds": float("nan")}, ("budget", "seconds")),
        ({"plans": 0}, ("plans",)),
        ({"clusters": ()}, ("nodes_options",)),
        ({"frameworks": ()}, ("frameworks",)),
        ({"frameworks": ("fsdp2", "horovod")}, ("frameworks", 1)),
        ({"space": {"framework": ("ddp",)}}, ("space", "framework")),
    ],
)
def test_contradictions_are_refused_at_their_field(changes: dict[str, Any], loc: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        small_search(**changes)
    assert refused.value.loc == loc


def test_a_price_makes_cost_an_objective() -> None:
    assert small_search(objective="cost", clusters=(cluster(usd_per_gpu_hour=2.5),)).objective == "cost"
