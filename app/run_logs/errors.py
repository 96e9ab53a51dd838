"""Why a file of runs is refused."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.errors import CostModelError, InvalidInput


class ImportRefused(CostModelError):
    """Everything that is wrong or missing in an upload, each with its place. `errors` is never empty."""

    def __init__(self, errors: Sequence[InvalidInput]) -> None:
        super().__init__("; ".join(map(str, errors[:5])))
        self.errors = tuple(errors)
