"""Measures every step and writes tests/data/torch_steps.json; needs torch, transformers and deepspeed."""

from __future__ import annotations

import dataclasses
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.torch_steps.cases import cases
from benchmarks.torch_steps.steps import run

OUT = Path(__file__).parents[2] / "tests" / "data" / "torch_steps.json"


def _recorded() -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(OUT.read_text())["steps"] if OUT.exists() else []
    return steps


def main() -> None:
    """`python -m benchmarks.torch_steps [PREFIX]`: the steps that are not recorded yet, and those of that name anew."""
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in _recorded()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions["deepspeed"] = version("deepspeed")
    for step in cases():
        if step.name in rows and not (prefix and step.name.startswith(prefix)):
            continue
        # A process each: process groups do not survive one another.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            measured = pool.submit(run, step).result()
        rows[step.name] = {**dataclasses.asdict(step), **dataclasses.asdict(measured)}
        print(step.name, f"{measured.peak_bytes / 2**30:.2f} GiB", measured.moment, flush=True)
        known = [json.dumps(rows[each.name]) for each in cases() if each.name in rows]
        lines = ",\n".join(known)
        OUT.write_text(f'{{"versions": {json.dumps(versions)}, "steps": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
