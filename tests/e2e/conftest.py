"""The service in a real browser that can reach nothing but it."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from app.main import create_app
from app.settings import Settings
from tests.databases import skip_or_fail

expect.set_options(timeout=60_000)  # a loaded machine is slow, not wrong

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    # As root, in a container, without a screen, and without the browser's own calls home.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def address(sqlite_url: str) -> Iterator[str]:
    """The service on a free port of loopback."""
    app = create_app(Settings(database_url=sqlite_url, rate_limit=""))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def browser() -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        skip_or_fail("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Page:
    return browser.new_page(viewport={"width": 1280, "height": 1600})


@pytest.fixture
def elsewhere(page: Page, address: str) -> list[str]:
    """What the page asks of other hosts; none of it is let through."""
    asked: list[str] = []

    def decide(route: Route) -> None:
        url = route.request.url
        if url.startswith((address, "data:")):
            route.continue_()
        else:
            asked.append(url)
            route.abort()

    page.route("**/*", decide)
    return asked


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """Errors on the page's console, violations of its content security policy among them."""
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: told.append(str(error)))
    return told
