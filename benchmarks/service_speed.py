"""How fast the service is: default searches over HTTP, and where the worker's time goes.

Run with `python -m benchmarks.service_speed` from the root of the repository (Linux). A service of its own runs on one
core, with SQLite and the version that it learns from the published runs. `elapsed` is the result's own
`elapsed_seconds`, claim to stored result; CPU is the worker's, which is what one unshared core would take.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.logs import configure_logging
from app.services.learner import train_on_runs
from app.services.search_solver import solve_request
from app.services.searches import SearchService
from app.settings import Settings
from benchmarks.phases import Phases

REPEATS: Final = 5
GROWTH_NODES: Final = (8, 32, 128, 512, 2048, 8192)
START_SECONDS: Final = 120.0
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """A request with nothing but what must be given, on nodes of 8 H100."""

    model: str
    nodes: int
    sequence_length: int
    global_batch_size: int

    @property
    def title(self) -> str:
        """Model and GPUs."""
        return f"{self.model} on {self.nodes * 8:,} GPUs"

    @property
    def request(self) -> dict[str, Any]:
        """The default budget of trials; time enough that a busy machine does not end them."""
        return {
            "model": {"preset": self.model},
            "cluster": {"preset": "dgx-h100", "nodes": self.nodes},
            "workload": {"sequence_length": self.sequence_length, "global_batch_size": self.global_batch_size},
            "budget": {"trials": 128, "seconds": 60},
        }


CASES: Final = (
    Case("llama-3-70b", 8, 8192, 128),
    Case("llama-3.1-405b", 128, 8192, 1024),
    Case("llama-3.1-405b", 2048, 8192, 2048),
    Case("qwen3-235b-a22b", 32, 4096, 8192),
    Case("deepseek-v3", 128, 4096, 8192),
    Case("deepseek-v3", 2048, 4096, 16384),
)


@dataclass(frozen=True)
class Run:
    """One search."""

    elapsed_seconds: float
    cpu_seconds: float
    result: Mapping[str, Any]


class Service:
    """A running service and its worker process."""

    def __init__(self, client: httpx2.Client, server: int) -> None:
        self._client = client
        self._server = server

    def search(self, case: Case) -> Run:
        """Send a request and wait for its result."""
        worker = self._worker()
        before = _cpu_seconds(worker)
        location = self._client.post("/v1/searches", json=case.request).raise_for_status().headers["Location"]
        while (search := self._client.get(location).raise_for_status().json())["finished_at"] is None:
            time.sleep(0.2)
        if search["status"] != "succeeded":
            raise SystemExit(f"{case.title}: the search ended as {search['status']}: {search['error']}")
        return Run(search["result"]["elapsed_seconds"], _cpu_seconds(worker) - before, search["result"])

    def wait_for_version(self) -> None:
        """Until what the service learned from the published runs serves."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if self._client.get("/v1/memory-models").raise_for_status().json()["serving"] is not None:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
        raise SystemExit("no version serves; see the service's log")

    def peak_gib(self) -> tuple[float, float]:
        """Most resident memory so far of the server and of the worker."""
        server, worker = (_peak_kib(pid) / 2**20 for pid in (self._server, self._worker()))
        return server, worker

    def _worker(self) -> int:
        for child in Path(f"/proc/{self._server}/task/{self._server}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise SystemExit("the service has no worker process")


def _cpu_seconds(pid: int) -> float:
    # proc(5): the name, in parentheses, may hold spaces; utime and stime are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _settings(folder: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{folder}/speed.db", rate_limit="", log_level="warning", retrain_cron="")


@contextmanager
def running(settings: Settings) -> Iterator[Service]:
    """A fresh service on one core, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PARAPLAN_DATABASE_URL": settings.database_url,
        "PARAPLAN_RATE_LIMIT": settings.rate_limit,
        "PARAPLAN_LOG_LEVEL": settings.log_level,
        "PARAPLAN_RETRAIN_CRON": settings.retrain_cron,
    }
    app = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), sys.executable, "-m", "app"]
    subprocess.run([*app, "migrate"], env=environment, check=True)
    server = subprocess.Popen([*app, "serve", "--port", str(port)], env=environment)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0, trust_env=False) as client:
            yield Service(client, server.pid)
    finally:
        server.terminate()
        server.wait()


def print_cases(service: Service) -> None:
    """Median of some searches of each case, after one that nobody counts; and the first search of all."""
    first = service.search(CASES[0])
    print(f"first search of the process, {CASES[0].title}: {first.elapsed_seconds:.2f} s\n")
    print("| search | elapsed, s | CPU, s | scored | of | best step, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in CASES:
        service.search(case)
        runs = [service.search(case) for _ in range(REPEATS)]
        print(_row(case, runs), flush=True)
    server, worker = service.peak_gib()
    print(f"\npeak memory: server {server:.2f} GiB, worker {worker:.2f} GiB\n")


def print_growth(service: Service) -> None:
    """One model from 64 to 65,536 GPUs, a sequence for each of them."""
    print("| growth | elapsed, s | CPU, s | scored | of | best step, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for nodes in GROWTH_NODES:
        case = Case("llama-3.1-405b", nodes, 8192, max(512, nodes * 8))
        print(_row(case, [service.search(case) for _ in range(3)]), flush=True)


def _row(case: Case, runs: list[Run]) -> str:
    elapsed, cpu = (
        statistics.median(values)
        for values in ([run.elapsed_seconds for run in runs], [run.cpu_seconds for run in runs])
    )
    result = runs[0].result
    best = f"{result['plans'][0]['time']['step_seconds']:.2f}" if result["plans"] else "nothing fits"
    return f"| {case.title} | {elapsed:.2f} | {cpu:.2f} | {result['evaluated']:,} | {result['space_size']:,} | {best} |"


def print_profiles(settings: Settings) -> None:
    """The same searches in this process, over the service's database: CPU milliseconds by stage and by what is done."""
    configure_logging(settings)
    database = Database(settings.database_url)
    executor = JobExecutor(database, settings, solve_request, train_on_runs, worker="benchmark")
    waiting: list[str] = []
    searches = SearchService(database, wake=waiting.append, max_attempts=1)

    def search(case: Case) -> None:
        searches.create({**case.request, "learned": True}, labels={})
        executor.execute(waiting.pop())

    for case in CASES:
        search(case)
        phases = Phases()
        with phases.sampled():
            for _ in range(REPEATS):
                search(case)
        print(f"\n{case.title}, CPU ms of a search\n")
        print(phases.table(REPEATS))
    database.dispose()


def main() -> None:
    """Print all of it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder))
        with running(settings) as service:
            service.wait_for_version()
            print_cases(service)
            print_growth(service)
        print_profiles(settings)


if __name__ == "__main__":
    main()
