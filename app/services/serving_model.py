"""The version of what was learned that serves: its number read from the database, the model itself kept in the process.

A stored model that is refused (corrupted, foreign, of other features) is said once in the log and remembered; what
served last goes on serving, or the formulas alone where nothing has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from app.db.session import Database
from app.repositories.memory_models import Artifact, MemoryModelRepository
from app.services.learner import load_artifact
from cost_models.corrections import Corrections
from cost_models.errors import CostModelError

log = structlog.get_logger(__name__)

KEPT_VERSIONS: Final = 3
"""Models kept in memory: while one is promoted and rolled back, requests of all of them are under way."""


class Load(Protocol):
    """Reads a stored model; raises CostModelError for one that it refuses."""

    def __call__(self, artifact: Artifact, *, version: int) -> Corrections:
        """Answer the model."""
        ...


@dataclass(frozen=True)
class Served:
    """What one request or search uses from beginning to end."""

    corrections: Corrections | None
    """None: the formulas alone."""
    refused: int | None = None
    """The version that should serve, and cannot."""

    @property
    def version(self) -> int | None:
        """Of the corrections."""
        return None if self.corrections is None else self.corrections.version

    def assumptions(self, learned: bool | None) -> list[str]:
        """Of a request that asks for learned corrections, or leaves that out; none of one that does without."""
        if learned is False:
            return []
        return [f"learned {'left out: true' if learned is None else 'true'}; {self.sentence}"]

    @property
    def sentence(self) -> str:
        """What corrects the figures, in words."""
        if self.corrections is not None:
            used = f"version {self.version} of what was learned from measured runs corrects memory and step time"
        elif self.refused is not None:
            used = "no correction is applied"
        else:
            used = "there is no learned memory model yet, so that no correction is applied"
        refused = f"version {self.refused}, which should serve, was refused when it was loaded: "
        return used if self.refused is None else refused + used


class ServingModel:
    """Versions as requests and searches ask for them, from any thread; each is loaded once."""

    def __init__(
        self, database: Database, *, load: Load = load_artifact, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._load = load
        self._on_refusal = on_refusal
        self._lock = threading.Lock()
        self._loaded: dict[int, Corrections] = {}
        """In the order of their loading."""
        self._refused: set[int] = set()
        self._last_good: Corrections | None = None

    def current(self) -> Served:
        """The version that serves now."""
        with self._database.read() as session:
            number = MemoryModelRepository(session).serving_version()
        if number is None:
            return Served(None)
        corrections = self.version(number)
        if corrections is None:
            if self._last_good is None:
                self._last_good = self._served_before()
            return Served(self._last_good, refused=number)
        self._last_good = corrections
        return Served(corrections)

    def version(self, number: int) -> Corrections | None:
        """A version by its number; None if it is refused, or gone."""
        found = self._loaded.get(number)
        if found is not None or number in self._refused:
            return found
        with self._lock:
            # Another thread may have loaded it meanwhile.
            if number not in self._loaded and number not in self._refused:
                self._read(number)
            return self._loaded.get(number)

    def _served_before(self) -> Corrections | None:
        """What served last, for a process that was not there then."""
        with self._database.read() as session:
            archived = MemoryModelRepository(session).archived_versions()
        return next((found for number in archived if (found := self.version(number)) is not None), None)

    def _read(self, number: int) -> None:
        with self._database.read() as session:
            artifact = MemoryModelRepository(session).artifact(number)
        if artifact is None:
            self._refuse(number, "there is no stored model of it")
            return
        try:
            corrections = self._load(artifact, version=number)
        except CostModelError as refusal:
            self._refuse(number, str(refusal))
            return
        self._loaded[number] = corrections
        for old in list(self._loaded)[:-KEPT_VERSIONS]:
            del self._loaded[old]
        log.info("memory_model_loaded", memory_model_version=number)

    def _refuse(self, number: int, reason: str) -> None:
        self._refused.add(number)
        self._on_refusal()
        log.error("memory_model_refused", memory_model_version=number, reason=reason)
