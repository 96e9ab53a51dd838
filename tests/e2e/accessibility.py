"""What axe-core says of a page, in the words of an assertion."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SERIOUS = ("serious", "critical")


def serious_findings(page: Page) -> list[str]:
    """Findings that keep somebody from using the page: the rule, what is wrong, and where."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {' | '.join(node['html'][:160] for node in one['nodes'][:5])}"
        for one in found
        if one["impact"] in SERIOUS
    ]
