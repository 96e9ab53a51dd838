"""A version as bytes: plain numbers and one kind of estimator, by skops, which runs nothing when it reads.

    MAGIC  SHA-256 of the rest (32 bytes)  zlib(skops)

Only the types of scikit-learn's gradient boosting and plain containers and arrays are let in. Whatever is wrong with
a blob (cut short, a flipped bit, another format, foreign types, other features, another scikit-learn) is
`ArtifactRefused`.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import sklearn
import skops
import skops.io
from sklearn.ensemble import HistGradientBoostingRegressor

from cost_models.errors import CostModelError
from cost_models.learned.corrections import LearnedCorrections
from cost_models.learned.features import SCHEMA
from cost_models.learned.generic import Generic
from cost_models.learned.own_runs import OwnRuns
from cost_models.learned.peak_memory import Basis, MemoryModel
from cost_models.learned.step_time import TimeFactor, TimeFactors

MAGIC: Final = b"paraplan-learned\x01"
MOST_BYTES: Final = 64 * 2**20
"""Of a blob once unpacked."""
TRUSTED: Final = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)
_DIGEST: Final = hashlib.sha256().digest_size
_ALLOWED: Final = frozenset(TRUSTED)


class ArtifactRefused(CostModelError):
    """A blob that is no artefact of this version of the service."""


def libraries() -> dict[str, str]:
    """Versions that an artefact depends on."""
    return {"scikit-learn": sklearn.__version__, "skops": skops.__version__, "numpy": np.__version__}


def dump(model: LearnedCorrections) -> bytes:
    """The model as bytes; its number is not part of them."""
    packed = zlib.compress(skops.io.dumps(_plain(model)), level=6)
    return MAGIC + hashlib.sha256(packed).digest() + packed


def load(blob: bytes, *, version: int) -> LearnedCorrections:
    """The model of a blob; raises ArtifactRefused and runs nothing of what is in it."""
    content = _read(_unpacked(blob))
    if content.get("schema") != SCHEMA:
        raise ArtifactRefused(f"features are {content.get('schema')}, this version computes {SCHEMA}")
    fitted, here = content.get("scikit-learn"), _minor(sklearn.__version__)
    if fitted != here:
        raise ArtifactRefused(f"fitted with scikit-learn {fitted}, this is {here}")
    try:
        return LearnedCorrections(version, _memory_model(content["memory"]), _times(content["times"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactRefused(f"not the parts of a model: {error!r}") from error


def _unpacked(blob: bytes) -> bytes:
    begin = len(MAGIC) + _DIGEST
    if not blob.startswith(MAGIC):
        raise ArtifactRefused("not an artefact of this service")
    packed = blob[begin:]
    if hashlib.sha256(packed).digest() != blob[len(MAGIC) : begin]:
        raise ArtifactRefused("corrupted: its hash is another")
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise ArtifactRefused(f"corrupted: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ArtifactRefused(f"larger than {MOST_BYTES} bytes, or cut short")
    return content


def _read(content: bytes) -> Mapping[str, Any]:
    try:
        foreign = set(skops.io.get_untrusted_types(data=content)) - _ALLOWED
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ArtifactRefused(f"not readable: {error!r}") from error
    if foreign:
        raise ArtifactRefused(f"foreign types: {', '.join(sorted(foreign))}")
    try:
        found = skops.io.loads(content, trusted=list(TRUSTED))
    except Exception as error:  # of whatever kind the reader of a foreign format makes them
        raise ArtifactRefused(f"not readable: {error!r}") from error
    if not isinstance(found, dict):
        raise ArtifactRefused(f"holds {type(found).__name__}, not a model")
    return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _plain(model: LearnedCorrections) -> dict[str, Any]:
    """Dictionaries, lists, numbers and arrays."""
    memory, times = model.peak_memory, model.times
    return {
        "schema": SCHEMA,
        "scikit-learn": _minor(sklearn.__version__),
        "memory": {
            "clusters": list(memory.clusters),
            "generic": None if memory.generic is None else dict(vars(memory.generic)),
            "own": [{"key": list(key)} | vars(own) for key, own in memory.own.items()],
            "seen": [[*key, *seen] for key, seen in memory.seen.items()],
            "bases": [{"sentence": basis.sentence, "errors": basis.errors} for basis in memory.bases],
            "on_cluster": [[*key, basis] for key, basis in memory.on_cluster.items()],
            "on_framework": [[*key, basis] for key, basis in memory.on_framework.items()],
            "anywhere": [[device, basis] for device, basis in memory.anywhere.items()],
        },
        "times": {
            "between": times.between,
            "within": times.within,
            "by_group": [
                {"cluster": cluster, "framework": framework} | asdict(factor)
                for (cluster, framework), factor in times.by_group.items()
            ],
        },
    }


def _memory_model(plain: Mapping[str, Any]) -> MemoryModel:
    generic = plain["generic"]
    if generic is not None and not isinstance(generic["trees"], HistGradientBoostingRegressor):
        raise TypeError(f"{type(generic['trees']).__name__} in place of trees")
    return MemoryModel(
        clusters=tuple(plain["clusters"]),
        generic=None if generic is None else Generic(**generic),
        own={
            tuple(own["key"]): OwnRuns(**{name: _array(own[name]) for name in own if name != "key"})
            for own in plain["own"]
        },
        seen={(framework, cluster): (float(least), float(most)) for framework, cluster, least, most in plain["seen"]},
        bases=tuple(Basis(str(basis["sentence"]), _array(basis["errors"])) for basis in plain["bases"]),
        on_cluster={(framework, cluster): basis for framework, cluster, basis in plain["on_cluster"]},
        on_framework={(framework, device, eager): basis for framework, device, eager, basis in plain["on_framework"]},
        anywhere=dict(plain["anywhere"]),
    )


def _times(plain: Mapping[str, Any]) -> TimeFactors:
    return TimeFactors(
        by_group={
            (factor["cluster"], factor["framework"]): TimeFactor(
                factor["log_factor"], factor["deviation"], factor["runs"]
            )
            for factor in plain["by_group"]
        },
        between=float(plain["between"]),
        within=float(plain["within"]),
    )


def _array(found: Any) -> Any:
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "if":
        raise TypeError(f"{type(found).__name__} in place of numbers")
    return found
