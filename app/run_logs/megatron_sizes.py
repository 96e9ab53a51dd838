"""Sizes that Megatron-LM works out when training begins, against the command line that a log shows.

A command line in a log may be cut, or be another run's: options may come from a config, a wrapper or another line. What
the program itself counted is of the run. Source: NVIDIA/Megatron-LM `megatron/training/theoretical_memory_usage.py`:
parameters of all transformer layers (two decimals of billions) and of the fullest shard (four), and bytes of its
weights and states, 18 a parameter, with the distributed optimizer 6 + 12 / replicas, over 2^20 in "MB".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.run_logs.facts import Facts
from app.run_logs.patterns import NUMBER

_LINE: Final = re.compile(
    r"(?:parameters in (?:transformer )?(layers|block|embedding|most loaded shard)(?: layers)? in billions:"
    r"|(weight and optimizer)=) {0,8}" + NUMBER
)
_NAMES: Final = {"layers": "layers", "block": "layers", "embedding": "embedding", "most loaded shard": "shard"}
WHOLE_BYTES: Final = 18.0
LEAST_BYTES: Final = 6.0
"""A parameter: the least that the distributed optimizer comes to, with endless replicas."""
TOLERANCE: Final = 0.02
"""Between counts of one model: norms, biases and padding are counted or not, by the version."""
LEAST_BILLIONS: Final = 0.3
"""Below it two decimals are fewer than two digits: nothing is compared."""
_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "gated_mlp": ("swiglu", "gated_linear_unit", "quick_geglu", "glu_activation"),
    "key_value_heads": ("num_query_groups", "num_key_value_heads"),
    "ffn_hidden_size": ("ffn_hidden_size",),
}
"""Dimensions that rest on a default of the program unless one of these options is given."""
_DERIVED: Final = ("data_parallel_size", "virtual_pipeline_size", "pipeline_schedule", "sequence_parallel")
"""They follow from the degrees, and go with them."""


class SizeReport:
    """Goes through the lines of a log."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def read(self, line: str) -> None:
        """Take the sizes that this line tells."""
        if "in billions:" in line or "weight and optimizer=" in line:
            for kind, _, number in _LINE.findall(line):
                self._told[_NAMES.get(kind, "mebibytes")] = float(number)

    def correct(self, arguments: Mapping[str, Any], facts: Facts) -> None:
        """Correct what a command line said: the program's own sizes win, and what they contradict is asked for."""
        if self._contradicts_model(facts):
            reason = (
                f"the program counted {self._told['layers']:g} billion parameters in its layers, which the "
                "command line does not give"
            )
            for name, options in _OPTIONAL.items():
                if not any(option in arguments for option in options):
                    facts.doubt(f"model.architecture.{name}", reason)
        if self._contradicts_degrees(facts):
            reason = (
                f"the program counted {self._told['shard']:g} billion parameters in its fullest shard, which the "
                "degrees of the command line do not give"
            )
            facts.doubt("strategy.tensor_parallel_size", reason)
            facts.doubt("strategy.pipeline_parallel_size", reason)
            for name in _DERIVED:
                facts.sections["strategy"].pop(name, None)
        if self._shards_states() and facts.said("strategy.zero_stage") == 0:
            facts.say("strategy.zero_stage", 1)
            facts.note("zero_stage: by the bytes a parameter that the program worked out, not by the command line")

    def _shards_states(self) -> bool:
        mebibytes, shard = self._told.get("mebibytes"), self._told.get("shard")
        if not mebibytes or not shard:
            return False
        each = mebibytes * 2**20 / (shard * 1e9)
        return LEAST_BYTES * (1 - TOLERANCE) < each < WHOLE_BYTES * (1 - TOLERANCE)

    def _contradicts_model(self, facts: Facts) -> bool:
        told, model = self._told.get("layers", 0.0), facts.sections.get("model", {}).get("architecture", {})
        needed = ("layers", "hidden_size", "attention_heads", "key_value_heads", "ffn_hidden_size")
        if told < LEAST_BILLIONS or "experts" in model or any(model.get(name) is None for name in needed):
            return False
        layers, hidden, heads, groups, ffn = (model[name] for name in needed)
        attention = 2 * hidden * model.get("head_dim", hidden / heads) * (heads + groups)
        counted = layers * (attention + (3 if model["gated_mlp"] else 2) * hidden * ffn)
        return bool(abs(counted / (told * 1e9) - 1) > TOLERANCE)

    def _contradicts_degrees(self, facts: Facts) -> bool:
        layers, embedding, shard = (self._told.get(name) for name in ("layers", "embedding", "shard"))
        tensor, pipeline = (facts.said(f"strategy.{name}_parallel_size") for name in ("tensor", "pipeline"))
        if not layers or not embedding or not shard or layers < LEAST_BILLIONS or not tensor or not pipeline:
            return False
        # One matrix of two where they are untied and lie on different stages.
        possible = [(layers / pipeline + share * embedding) / tensor for share in (0.5, 1.0)]
        return all(abs(expected / shard - 1) > TOLERANCE for expected in possible)
