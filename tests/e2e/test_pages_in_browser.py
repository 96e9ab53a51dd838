"""The pages in a real browser that can reach nothing but the service: with and without scripts, by keyboard alone."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Browser, Page, expect

from app.schemas import examples
from tests.e2e.accessibility import serious_findings
from tests.http_service import Work

pytestmark = pytest.mark.browser

PATHS = ("/", "/searches", "/runs", "/memory-models", "/sign-in")


def fill(page: Page) -> None:
    """A search that takes a second or two."""
    page.get_by_label("Model of the catalog").select_option("llama-3-8b")
    page.get_by_label("Nodes", exact=True).fill("1")


def test_from_the_form_to_the_report(
    page: Page, address: str, elsewhere: list[str], complaints: list[str], work: Work
) -> None:
    page.goto(address)
    fill(page)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Waits for a worker")).to_be_visible()
    work()
    page.wait_for_url("**/report")
    expect(page.get_by_text("Fastest of").first).to_be_visible()
    assert elsewhere == []
    assert complaints == []


def test_by_keyboard_alone(page: Page, address: str, elsewhere: list[str], work: Work) -> None:
    page.goto(address)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Model of the catalog")).to_be_focused()
    page.keyboard.type("llama-3-8b")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.insert_text(json.dumps(examples.HF_MODEL["hf_config"]))
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Nodes", exact=True)).to_be_focused()
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/searches/*")
    work()
    page.wait_for_url("**/report")
    assert elsewhere == []


def test_without_scripts(browser: Browser, address: str, work: Work) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    fill(page)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Waits for a worker")).to_be_visible()
    work()
    page.wait_for_url("**/report")


def test_wrong_input_is_kept_and_said(page: Page, address: str, elsewhere: list[str]) -> None:
    page.goto(address)
    page.get_by_label("Nodes", exact=True).fill("many")
    page.get_by_label("Sequence length, tokens").fill("4096")
    page.get_by_role("button", name="Search", exact=True).click()
    nodes = page.get_by_label("Nodes", exact=True)
    expect(nodes).to_have_value("many")
    expect(nodes).to_have_accessible_description("Input should be a valid integer")
    expect(page.get_by_label("Sequence length, tokens")).to_have_value("4096")
    assert serious_findings(page) == []
    assert elsewhere == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_are_readable(browser: Browser, address: str, scheme: str, width: int) -> None:
    dark = scheme == "dark"
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    for path in PATHS:
        page.goto(f"{address}{path}")
        assert serious_findings(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
