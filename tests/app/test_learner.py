"""A real training of a few runs: its report is what the API and the terminal show, its model is what can be loaded."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from app.db.base import utc_now
from app.repositories.memory_models import Artifact
from app.schemas.memory_models import Figures
from app.services.learner import load_artifact, software, train_on_runs, why_refused
from app.services.training import Champion, Trained, TrainingSet
from app.training_table import show_training
from cost_models.published_runs import published_runs

RUNS = TrainingSet(
    records=[
        run
        for run in published_runs()
        if run["family"] in {"qwen", "torchtitan"} and any("gib" in name for name in run["measured"])
    ][:40],
    known=0,
    champion=None,
    last_run_id=None,
    sha256="",
)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train_on_runs(RUNS, version=3, now=utc_now())


def artifact_of(trained: Trained) -> Artifact:
    return Artifact(trained.blob, hashlib.sha256(trained.blob).hexdigest())


def test_the_model_can_be_loaded_by_its_version(trained: Trained) -> None:
    assert load_artifact(artifact_of(trained), version=3).version == 3
    assert trained.software == software()
    assert trained.runs == len(RUNS.records) > 20


def test_a_model_that_was_changed_is_refused(trained: Trained) -> None:
    artifact = artifact_of(trained)
    assert why_refused(artifact, version=3) is None
    cut = artifact.blob[:-1]
    assert "hash" in (why_refused(replace(artifact, blob=cut), version=3) or "")
    assert why_refused(Artifact(cut, hashlib.sha256(cut).hexdigest()), version=3) is not None


def test_the_report_is_what_is_shown(trained: Trained) -> None:
    report = json.loads(json.dumps(trained.report, allow_nan=False)) | {"seconds": 1.0}
    figures = Figures.model_validate(report["candidate"])
    assert figures.source is not None
    assert figures.source.groups == 2
    console = Console(file=io.StringIO(), width=120)
    show_training(report, console)
    assert isinstance(console.file, io.StringIO)
    assert "Peak memory, unseen sources" in console.file.getvalue()


def test_a_champion_is_compared_with_on_what_it_knows(trained: Trained) -> None:
    champion = Champion(2, artifact_of(trained), None)
    runs = replace(RUNS, known=30, champion=champion)
    assert train_on_runs(runs, version=4, now=utc_now()).report["serving"] is not None


def test_a_champion_that_is_refused_is_none(trained: Trained) -> None:
    champion = Champion(2, Artifact(b"no model", hashlib.sha256(b"no model").hexdigest()), None)
    runs = replace(RUNS, known=30, champion=champion)
    assert train_on_runs(runs, version=4, now=utc_now()).report["serving"] is None
