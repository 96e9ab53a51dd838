"""The process of a training that learns nothing, and takes until a file says that it may end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from app.jobs.training_process import run_training
from app.services.training import TrainingSet
from tests.app.trainings import FakeTrain

GATE = "PARAPLAN_TEST_TRAINING_GATE"
"""Environment variable: the file."""


def wait(_: TrainingSet) -> None:
    gate = os.environ.get(GATE)
    while gate is not None and not Path(gate).exists():
        time.sleep(0.02)


if __name__ == "__main__":
    run_training(FakeTrain(during=wait))
