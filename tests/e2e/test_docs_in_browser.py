"""`/docs` in a real browser that can reach nothing but the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_operations_render_without_a_network(
    page: Page, address: str, elsewhere: list[str], complaints: list[str], tmp_path: Path
) -> None:
    page.goto(f"{address}/docs")
    described = json.loads(page.request.get(f"{address}/openapi.json").text())
    expect(page.locator(".opblock")).to_have_count(sum(len(operations) for operations in described["paths"].values()))
    assert page.locator(".opblock-tag").count() == len(described["tags"])
    page.screenshot(path=tmp_path / "docs.png")
    assert elsewhere == []
    assert complaints == []


@pytest.mark.parametrize(
    ("operation", "status"),
    [("create_estimates", "200"), ("inspect", "200"), ("create_search", "202"), ("create_memory_model", "202")],
)
def test_examples_execute_as_they_stand(
    page: Page, address: str, elsewhere: list[str], complaints: list[str], operation: str, status: str
) -> None:
    page.goto(f"{address}/docs")
    block = page.locator(f".opblock[id$='-{operation}']")
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    expect(block.locator(".live-responses-table .response .response-col_status")).to_contain_text(status)
    assert elsewhere == []
    assert complaints == []
