"""Blobs that are no artefacts are refused, and nothing of them is run."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.preprocessing import FunctionTransformer

from cost_models.learned import ArtifactRefused, dump, load, train, training_runs
from cost_models.learned.artifact import MAGIC
from tests.cost_models.learned.learned_runs import many

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def blob() -> bytes:
    return dump(train(training_runs(many([1.2] * 8)), version=1, now=NOW))


def packed(content: Any) -> bytes:
    return sealed(skops.io.dumps(content))


def sealed(content: bytes) -> bytes:
    compressed = zlib.compress(content)
    return MAGIC + hashlib.sha256(compressed).digest() + compressed


def unpacked(blob: bytes) -> dict[str, Any]:
    content = zlib.decompress(blob[len(MAGIC) + 32 :])
    found: dict[str, Any] = skops.io.loads(content)
    return found


def refused(blob: bytes) -> str:
    with pytest.raises(ArtifactRefused) as error:
        load(blob, version=1)
    return str(error.value)


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("wrap", [lambda data: data, sealed], ids=["as it is", "sealed"])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, wrap: Any) -> None:
    trap = tmp_path / "trap"
    refused(wrap(pickle.dumps(_Hostile(trap))))
    assert not trap.exists()


@pytest.mark.parametrize("length", [0, 5, len(MAGIC), len(MAGIC) + 32, -1, -100])
def test_a_blob_that_is_cut_short_is_refused(blob: bytes, length: int) -> None:
    refused(blob[:length])


def test_any_flipped_bit_is_seen(blob: bytes) -> None:
    for at in range(0, len(blob), 97):
        flipped = bytearray(blob)
        flipped[at] ^= 1
        refused(bytes(flipped))


def test_foreign_types_are_refused_by_name() -> None:
    assert "FunctionTransformer" in refused(packed(FunctionTransformer())) or "holds" in refused(
        packed(FunctionTransformer())
    )
    assert "foreign types" in refused(packed({"schema": datetime(2026, 1, 1)}))


def test_other_features_are_refused(blob: bytes) -> None:
    assert "this version computes" in refused(packed(unpacked(blob) | {"schema": "0123456789abcdef"}))


def test_another_scikit_learn_is_refused(blob: bytes) -> None:
    assert "fitted with scikit-learn 1.2" in refused(packed(unpacked(blob) | {"scikit-learn": "1.2"}))


@pytest.mark.parametrize(
    "memory",
    [None, {}, {"clusters": [], "generic": None, "own": [{"key": [0, 0], "points": "text"}]}],
    ids=["none", "empty", "text for numbers"],
)
def test_a_part_that_is_missing_or_of_another_kind_is_refused(blob: bytes, memory: Any) -> None:
    assert "not the parts of a model" in refused(packed(unpacked(blob) | {"memory": memory}))


def test_something_else_in_place_of_trees_is_refused(blob: bytes) -> None:
    content = unpacked(blob)
    content["memory"]["generic"] = {"trees": [1], "share": 1.0, "least": 0.0, "most": 0.0}
    assert "in place of trees" in refused(packed(content))


def test_a_blob_that_unpacks_to_too_much_is_refused() -> None:
    assert "larger than" in refused(sealed(bytes(65 * 2**20)))


def test_trees_are_kept_bit_by_bit(blob: bytes) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 3))
    trees = HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=5).fit(features, features[:, 0])
    content = unpacked(blob)
    content["memory"]["generic"] = {"trees": trees, "share": 0.5, "least": -1.0, "most": 1.0}
    again = load(packed(content), version=1).peak_memory.generic
    assert again is not None
    assert (again.trees.predict(features) == trees.predict(features)).all()
