"""Errors of the cost models.

CostModelError
├── UnknownPreset        a catalog name that does not exist
└── InvalidInput         a value that breaks a rule; carries the place of the field
    └── UnsupportedModel a config that is not understood
"""

from __future__ import annotations


class CostModelError(Exception):
    """Root of every error raised by `cost_models`."""


class InvalidInput(CostModelError):
    """A value that breaks a rule. `loc` is the path of the field, `code` a stable slug, `message` the rule in words."""

    def __init__(self, loc: tuple[str | int, ...], code: str, message: str) -> None:
        super().__init__(f"{'.'.join(map(str, loc))}: {message}")
        self.loc = loc
        self.code = code
        self.message = message


class UnsupportedModel(InvalidInput):
    """A Hugging Face config that the reader does not understand."""


class UnknownPreset(InvalidInput):
    """A name that is not in the catalog."""
