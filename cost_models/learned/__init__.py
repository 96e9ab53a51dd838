"""What measured runs teach: corrections of memory and step time, fitted, judged, and kept as bytes.

    runs = training_runs(records)              RunRecords, priced
    model = train(runs, version=1, now=now)
    report = evaluate(runs, model, now=now)    errors on groups that were left out
    if decide(report).promote:
        blob = dump(model)
    load(blob, version=1)                      a `cost_models.corrections.Corrections`

Knows no database. The only part of the cost models that uses scikit-learn and skops.
"""

from cost_models.learned.artifact import ArtifactRefused, dump, libraries, load
from cost_models.learned.corrections import LearnedCorrections
from cost_models.learned.evaluation import evaluate
from cost_models.learned.features import SCHEMA
from cost_models.learned.promotion import Decision, decide
from cost_models.learned.runs import Skipped, TrainingRuns, training_runs
from cost_models.learned.training import train

__all__ = [
    "SCHEMA",
    "ArtifactRefused",
    "Decision",
    "LearnedCorrections",
    "Skipped",
    "TrainingRuns",
    "decide",
    "dump",
    "evaluate",
    "libraries",
    "load",
    "train",
    "training_runs",
]
