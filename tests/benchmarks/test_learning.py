from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import learning
from tests.cost_models.learned.learned_runs import many


def test_it_prints_what_own_runs_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        run
        for number, factor in enumerate((1.3, 1.1, 0.9))
        for run in many([factor] * 24, cluster=f"c{number}", family=f"family-{number}", logged=False)
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    monkeypatch.setattr("sys.argv", ["learning", str(path), "--draws", "2"])
    learning.main()
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if line.startswith("family-0"))
    assert line.split()[:4] == ["family-0", "23.08%", "23.08%", "x"]
    with_ten = float(line.split("x")[3].split()[1].rstrip("%")) if line.count("x") > 3 else float(line.split()[8][:-1])
    assert with_ten < 5
    assert "covered" in printed
