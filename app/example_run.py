"""`make run`: a first answer from a fresh clone, as a client of the service gets it."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from app.db.migrate import upgrade
from app.db.session import Database
from app.plan_table import show_result
from app.services import api_keys
from app.serving import serving
from app.settings import Settings

POLL_SECONDS = 0.2
KEY_LIFE = timedelta(hours=1)
PIPE_WIDTH = 160
"""Columns where the output is not a terminal, so that a log keeps its rows whole."""


class ExampleFailed(Exception):
    """The service did not answer the example with plans."""


def run(settings: Settings, request_file: Path, *, once: bool) -> None:
    """Migrate, serve, send the request, show the answer; then serve on until Ctrl-C, unless `once`."""
    request = json.loads(request_file.read_text())
    database = Database(settings.database_url)
    upgrade(database.engine)
    # A key of its own where keys are asked for, valid long enough for one answer.
    key = (
        api_keys.create_key(database, "run-example", ["read", "write"], KEY_LIFE) if api_keys.any_key(database) else ""
    )
    database.dispose()
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    try:
        with serving(settings) as address, _client(address, key) as client:
            _await_ready(client)
            console.print(f"Searching plans for [bold]{request_file.name}[/] at {address}/v1/searches")
            search = _follow(client, _send(client, request), console)
            show_result(search["result"], console)
            console.print(f"This search      {address}/v1/searches/{search['id']}")
            console.print(f"Its report       {address}{search['report']}")
            console.print(f"Try it yourself  {address}/docs")
            if not once:
                console.print("Serving until Ctrl-C.")
                Event().wait()
    except KeyboardInterrupt:
        console.print("Stopped.")


def _client(address: str, key: str | None) -> httpx2.Client:
    return httpx2.Client(base_url=address, timeout=30.0, headers={"X-API-Key": key} if key else {}, trust_env=False)


def _await_ready(client: httpx2.Client) -> None:
    deadline = time.monotonic() + 30.0
    while True:
        try:
            if client.get("/readyz").is_success:
                return
        except httpx2.TransportError:
            pass
        if time.monotonic() > deadline:
            raise ExampleFailed("The service did not become ready within 30 seconds.")
        time.sleep(POLL_SECONDS)


def _send(client: httpx2.Client, request: dict[str, Any]) -> str:
    response = client.post("/v1/searches", json=request)
    if not response.is_success:
        raise ExampleFailed(f"The service refused the request: {response.text}")
    return response.headers["Location"]


def _follow(client: httpx2.Client, location: str, console: Console) -> dict[str, Any]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TextColumn("{task.fields[best]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("queued", total=1, best="")
        while True:
            search: dict[str, Any] = client.get(location).raise_for_status().json()
            if search["finished_at"] is not None:
                break
            if progress := search["progress"]:
                best = progress["best_step_seconds"]
                display.update(
                    task,
                    description=progress["phase"],
                    completed=progress["done"],
                    total=progress["total"] or 1,
                    best="" if best is None else f"best {best:.2f} s a step",
                )
            time.sleep(POLL_SECONDS)
    if search["status"] != "succeeded":
        raise ExampleFailed(f"The search ended as {search['status']}: {search['error']}")
    return search
