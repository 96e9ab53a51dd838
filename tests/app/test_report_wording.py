"""Figures of a report in words."""

from __future__ import annotations

import pytest

from app.report import wording


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "–"),
        (0, "0 s"),
        (1180.4, "1,180 s"),
        (15.83, "15.8 s"),
        (1.0, "1.00 s"),
        (0.0314, "31.4 ms"),
        (0.000002, "2.00 µs"),
        (1e-8, "0.01 µs"),
    ],
)
def test_seconds(value: float | None, written: str) -> None:
    assert wording.seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (0.0, "0 GiB"), (4.788, "4.79 GiB"), (74.46, "74.5 GiB"), (1234.5, "1,234.5 GiB")],
)
def test_gib(value: float | None, written: str) -> None:
    assert wording.gib(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (0.0, "0 %"), (0.0004, "< 0.1 %"), (0.039, "3.9 %"), (0.5037, "50 %"), (1.0, "100 %")],
)
def test_share(value: float | None, written: str) -> None:
    assert wording.share(value) == written


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [(None, "USD", "–"), (8, "", "8"), (522063.2, "", "522,063"), (9.984, "", "9.98"), (12.34, "kWh", "12.3 kWh")],
)
def test_amount(value: float | None, unit: str, written: str) -> None:
    assert wording.amount(value, unit) == written


def test_plain() -> None:
    assert [wording.plain(one) for one in (None, True, [], [1, 2], "bf16")] == ["–", "true", "–", "1, 2", "bf16"]
    assert [wording.yes_no(one) for one in (None, True, False)] == ["–", "yes", "no"]
    assert [wording.change(one) for one in (-0.0442, 0.67, -0.0001, None)] == ["-4.4 %", "+67.0 %", "0.0 %", "–"]
