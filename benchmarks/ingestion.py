"""How fast runs are logged: 100,000 made-up ones over HTTP, in calls of 10,000, into a new SQLite database.

Run with `python -m benchmarks.ingestion` from the root of the repository; `--url` logs into a service that runs
already, `--rows` and `--call` change how many. Printed are rows a second that a client sees, and the most memory that
the server took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from app.db import migrate
from app.db.session import build_engine
from app.logs import configure_logging
from app.serving import serving
from app.settings import Settings
from benchmarks.synthetic_runs import synthetic_runs


def main() -> None:
    """Log runs and print how fast."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--call", type=int, default=10_000, help="rows of a call, 10,000 at most")
    arguments.add_argument("--url", help="a service that runs already")
    given = arguments.parse_args()
    bodies = list(_bodies(given.rows, given.call))
    if given.url is not None:
        _log(given.url, bodies, given.rows)
        return
    with _server() as url:
        _log(url, bodies, given.rows)


def _bodies(rows: int, call: int) -> Iterator[bytes]:
    runs = synthetic_runs(rows)
    for start in range(0, rows, call):
        yield json.dumps([next(runs) for _ in range(min(call, rows - start))]).encode()


def _log(url: str, bodies: list[bytes], rows: int) -> None:
    begin = time.perf_counter()
    for number, body in enumerate(bodies):
        request = urllib.request.Request(f"{url}/v1/runs", body, {"Content-Type": "application/json"})
        start = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            ids = json.load(answer)["ids"]
        seconds = time.perf_counter() - start
        print(f"call {number + 1:3}: {len(ids):6,} rows, {len(body) / 1e6:5.1f} MB, {len(ids) / seconds:7,.0f} rows/s")
    seconds = time.perf_counter() - begin
    print(f"{rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s")


@contextmanager
def _server() -> Iterator[str]:
    """A service of its own process over a new database, without a worker."""
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(directory, theirs))
        process.start()
        yield ours.recv()
        ours.send("stop")
        print(f"most memory of the server: {ours.recv() / 2**10:,.0f} MiB")
        process.join()


def _serve(directory: str, client: Connection) -> None:
    settings = Settings(
        database_url=f"sqlite:///{directory}/paraplan.db",
        port=0,
        embedded_worker=False,
        rate_limit="",
        log_level="error",
    )
    configure_logging(settings)
    engine = build_engine(settings.database_url)
    migrate.upgrade(engine)
    engine.dispose()
    with serving(settings) as url:
        client.send(url)
        client.recv()
        client.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
