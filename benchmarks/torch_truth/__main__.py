"""Records all cases: `python -m benchmarks.torch_truth`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import megatron.core
import peft
import torch
import transformers

from benchmarks.torch_truth.adapted_blocks import RANK, AdaptedCase, adapted_cases, record_adapted
from benchmarks.torch_truth.cases import CONFIGS, transformers_cases
from benchmarks.torch_truth.compiled_layers import compiled_cases, record_compiled
from benchmarks.torch_truth.megatron_blocks import MegatronCase, megatron_cases, record_megatron, set_up
from benchmarks.torch_truth.recorder import Left
from benchmarks.torch_truth.torchtitan_blocks import TitanCase, record_titan, titan_cases
from benchmarks.torch_truth.transformers_blocks import Case, record

DATA = Path(__file__).parent.parent.parent / "tests" / "data" / "torch_saved_bytes.json"
FIELDS = ("attention", "weights", "checkpointing", "dropout", "batch", "sequence_length")


def _row(kernels: str, case: Case | TitanCase | MegatronCase | AdaptedCase, left: Left) -> str:
    # Hooks see what an operator saves and another lets go of again (router weights that are normalised in place).
    if case.checkpointing == "none" and abs(left.hooked - left.alive) > 0.002 * left.alive:
        raise AssertionError(f"{case}: hooks saw {left.hooked}, alive are {left.alive}")
    fields: dict[str, Any] = {name: getattr(case, name) for name in FIELDS}
    fields["compile"] = getattr(case, "compile", False)
    target = getattr(case, "target", None)
    fields["fine_tuning"] = {"method": "lora", "rank": RANK, "target": target} if target else None
    return json.dumps({"model": case.model, "kernels": kernels, **fields, "bytes": left.alive})


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    configs = {model: {"model_type": model.split()[0], **fields} for model, fields in CONFIGS.items()}
    rows = [_row("eager", case, record(case)) for case in transformers_cases(configs)]
    rows += [_row("partly-fused", case, record_titan(case)) for case in titan_cases(configs)]
    rows += [_row("eager", case, record_adapted(case)) for case in adapted_cases(configs)]
    rows += [_row("eager", case, record_compiled(case)) for case in compiled_cases(configs)]
    set_up()
    rows += [_row("fused", case, record_megatron(case)) for case in megatron_cases(configs)]
    head = {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "megatron-core": megatron.core.__version__,
        "configs": configs,
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    lines.append('"rows": [\n' + ",\n".join(rows) + "\n]")
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
