"""Excerpts of logs, and how the tests read them."""

from __future__ import annotations

from pathlib import Path

from app.run_logs.facts import LoggedRun
from app.run_logs.formats import READERS, recognise
from app.run_logs.lines import log_lines, raw_lines

LOGS = Path(__file__).parents[2] / "data" / "logs"


def read_log(name: str) -> tuple[str, list[LoggedRun]]:
    """The format and the runs of an excerpt."""
    with (LOGS / name).open("rb") as file:
        format = recognise(raw_lines(file))
        file.seek(0)
        return format, list(READERS[format](log_lines(raw_lines(file))))
