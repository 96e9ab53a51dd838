"""The command behind `make run`, from an empty directory to the ranked plans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "llama-3-70b-64xh100.json"


def app(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`python -m app` as on a fresh machine: an empty directory, no settings but these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARAPLAN_")}
    return subprocess.Popen(
        [sys.executable, "-m", "app", *arguments],
        cwd=directory,
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(directory: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = app(directory, *arguments, **environment)
    out, err = process.communicate()
    return process.returncode, out, err


def test_the_example_is_answered_with_ranked_plans(tmp_path: Path) -> None:
    code, out, err = output_of(tmp_path, "run-example", str(EXAMPLE), "--port", "0", ONCE="1")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    table = [row for row in rows if row[1] in {"megatron-lm", "deepspeed", "fsdp2", "ddp"} and row[2].isdigit()]
    assert [int(row[0]) for row in table] == list(range(1, 11))
    assert "Why plan 1" in out
    assert "/docs" in out


def test_it_serves_on_until_interrupted(tmp_path: Path) -> None:
    process = app(tmp_path, "run-example", str(EXAMPLE), "--port", "0", PYTHONUNBUFFERED="1")
    assert process.stdout is not None
    for line in process.stdout:
        if "Serving until Ctrl-C" in line:
            break
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_a_refused_request_is_shown(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text("{}")
    code, _, err = output_of(tmp_path, "run-example", str(request), "--port", "0", ONCE="1")
    assert code == 1
    assert "refused the request" in err
    assert "model" in err
