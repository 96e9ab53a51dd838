"""The layers of the design hold: app -> search -> cost_models, and the core knows no library but NumPy."""

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_import_contracts_hold() -> None:
    assert lint_imports() == EXIT_STATUS_SUCCESS
