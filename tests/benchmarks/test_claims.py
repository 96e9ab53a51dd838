"""The claims of the README are answered by estimates, and the README prints what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.claims import checkpointing, half_precision, offload, zero_3

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize("claim", [zero_3, checkpointing, offload, half_precision])
def test_readme_prints_the_figures(claim: Callable[[], Iterator[str]]) -> None:
    title, *lines = claim()
    row = next(line for line in README.splitlines() if line.startswith(f"| {title.split(' (')[0]}"))
    figures = set(re.findall(r"\d+(?:\.\d+)?", " ".join(lines)))
    said = re.findall(r"\d+(?:\.\d+)?", row.split(" | ")[2])
    assert len(said) >= 3
    assert set(said) <= figures
