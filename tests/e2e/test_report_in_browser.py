"""The report of a search in a real browser: served, and opened as a file with no network at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.accessibility import serious_findings
from tests.http_service import Work

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=document.title='caught'>"
SEARCH: dict[str, Any] = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "a100-sxm4-40gb", "usd_per_gpu_hour": 2.0},
    "workload": {"sequence_length": 4096, "global_batch_size": 64, "training_tokens": 1e11},
    "frameworks": ["megatron-lm"],
    "space": {"pipeline_parallel_size": [4], "offload": ["none"]},
    "budget": {"trials": 4, "seconds": 60},
    "labels": {"team": HOSTILE},
}
CHARTS = 4
"""Memory, step, front; and the timeline, which has one or two."""


@pytest.fixture
def report(page: Page, address: str, work: Work) -> str:
    """Address of the report of a search that was run."""
    answer = page.request.post(f"{address}/v1/searches", data=SEARCH)
    assert answer.status == 202, answer.text()
    work()
    return f"{address}{answer.headers['location']}/report"


@pytest.fixture
def plan(page: Page, report: str) -> dict[str, Any]:
    """The first plan, as the API answers it."""
    first: dict[str, Any] = page.request.get(report.removesuffix("/report")).json()["result"]["plans"][0]
    return first


def test_draws_and_asks_nobody(
    page: Page, report: str, plan: dict[str, Any], elsewhere: list[str], complaints: list[str], tmp_path: Path
) -> None:
    page.goto(report)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.reload()
    assert requested == [report]
    assert page.locator("figure svg").count() >= CHARTS
    for svg in page.locator("figure svg").all():
        expect(svg).to_be_visible()
        assert svg.locator("path").count() > 3
    stages = page.locator("#schedule tbody tr")
    assert stages.count() == plan["strategy"]["pipeline_parallel_size"] == 4
    assert page.title().startswith("llama-3-8b")
    assert page.locator("img").count() == 0
    assert serious_findings(page) == []
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert elsewhere == []
    assert complaints == []


def test_tells_a_plan_of_the_front_on_hover(page: Page, report: str, complaints: list[str]) -> None:
    page.goto(report)
    page.locator("#pareto svg [data-told]").last.hover(force=True)
    expect(page.locator(".tip")).to_contain_text("megatron-lm")
    page.mouse.move(1, 1)
    expect(page.locator(".tip")).to_be_hidden()
    assert complaints == []


@pytest.mark.parametrize("clipboard", ["granted", "missing"])
def test_copies_a_command(page: Page, report: str, complaints: list[str], clipboard: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    if clipboard == "missing":
        # As on a page of another host without TLS.
        page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined})")
    page.goto(report)
    button = page.locator("#launch button.copy").first
    command = page.locator("#command-1").text_content()
    assert command
    button.click()
    expect(button).to_have_text("Copied")
    assert _pasted(page) == command
    assert complaints == []


def _pasted(page: Page) -> str:
    """What Ctrl-V gives, typed into a page of nothing else."""
    page.goto("data:text/html,<textarea autofocus></textarea>")
    page.locator("textarea").press("Control+v")
    return page.locator("textarea").input_value()


def test_a_file_without_network_and_scripts_tells_all(
    browser: Browser, page: Page, report: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    kept = tmp_path / "report.html"
    kept.write_text(page.request.get(report).text(), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False, offline=True)
    alone = context.new_page()
    alone.goto(kept.as_uri())
    text = alone.locator("body").inner_text()
    memory = plan["memory"]
    for figure in (memory["peak_gib"], memory["required_upper_gib"], memory["capacity_gib"]):
        assert f"{figure:.1f}" in text
    for stage in memory["stages"]:
        row = alone.locator("#memory tbody tr").nth(stage["stage"])
        expect(row).to_contain_text(f"stage {stage['stage']}")
        expect(row).to_contain_text(f"{stage['breakdown_gib']['activations']:.1f}")
    for alternative in plan["alternatives"]:
        assert alternative["change"] in text
    expect(alone.locator("figure svg").first).to_be_visible()
    # Without scripts nothing can be copied by a button, and none is shown.
    assert alone.locator("button:visible").count() == 0
    # Hovering still works: it is the browser's own.
    assert alone.locator("#pareto svg title").count() > 0
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader(page: Page, report: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(report)
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
    label = page.locator("#memory svg text").first
    assert label.evaluate("node => getComputedStyle(node).fill") == ink
    assert serious_findings(page) == []


def test_paper_is_white_and_everything_unfolded(page: Page, report: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="dark", media="print")
    page.goto(report)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    expect(page.locator("nav")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    page.set_viewport_size({"width": 718, "height": 1000})  # what A4 leaves between margins of 1 cm
    for table in page.locator("table").all():
        assert table.evaluate("node => node.scrollWidth <= document.documentElement.clientWidth")
    written = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert len(written) > 10_000


def test_a_small_screen_scrolls_down_only(page: Page, report: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(report)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert serious_findings(page) == []
