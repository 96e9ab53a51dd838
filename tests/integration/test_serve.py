"""`serve` keeps a worker beside itself: replaced when it dies, ended with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.session import Database
from app.settings import Settings
from tests.integration.workers import Client, wait_for

REQUEST = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64},
    "budget": {"trials": 1},
}
LONG_REQUEST = REQUEST | {"budget": {"trials": 250, "seconds": 600.0}}


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return Settings(database_url=sqlite_url)


@pytest.fixture
def client(sqlite_url: str, settings: Settings) -> Iterator[Client]:
    database = Database(sqlite_url)
    client = Client(database, settings)
    yield client
    client.queue.close()
    database.dispose()


@pytest.fixture
def server(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PARAPLAN_DATABASE_URL": settings.database_url, "PARAPLAN_WORKER_TRAINS": "false"}
    process = subprocess.Popen([sys.executable, "-m", "app", "serve", "--port", "0"], env=environment)
    yield process
    if process.poll() is None:
        process.terminate()
    process.wait()


def worker_of(server: subprocess.Popen[bytes]) -> int | None:
    """The process id of the worker: the child that multiprocessing started for our code."""
    # Linux lists children by the thread that started them; threads and children may end while they are looked at.
    for children in Path(f"/proc/{server.pid}/task").glob("*/children"):
        for child in read(children).split():
            if is_running(int(child)) and "spawn_main" in read(Path(f"/proc/{child}/cmdline")):
                return int(child)
    return None


def read(path: Path) -> str:
    """The text of a file of a thread or process, empty once that has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def await_worker(server: subprocess.Popen[bytes], *, other_than: int | None = None) -> int:
    wait_for(lambda: worker_of(server) not in {None, other_than})
    pid = worker_of(server)
    assert pid is not None
    return pid


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the worker through /proc")
class TestEmbeddedWorker:
    def test_is_replaced_and_its_search_goes_on(self, server: subprocess.Popen[bytes], client: Client) -> None:
        first = await_worker(server)
        search_id = client.searches.create(LONG_REQUEST, labels={}).id
        client.await_trials(search_id, 1)
        os.kill(first, signal.SIGKILL)
        await_worker(server, other_than=first)
        search = client.await_end(search_id)
        assert search.status == "succeeded", search.error
        assert client.trials(search_id) == list(range(LONG_REQUEST["budget"]["trials"]))

    def test_leaves_ctrl_c_to_the_server_from_its_first_moment(
        self, server: subprocess.Popen[bytes], client: Client
    ) -> None:
        pid = await_worker(server)
        os.kill(pid, signal.SIGINT)
        search = client.await_end(client.searches.create(REQUEST, labels={}).id)
        assert search.status == "succeeded", search.error
        assert worker_of(server) == pid

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_ends_with_the_server(self, server: subprocess.Popen[bytes], client: Client, how: signal.Signals) -> None:
        pid = await_worker(server)
        client.await_end(client.searches.create(REQUEST, labels={}).id)
        server.send_signal(how)
        server.wait()
        wait_for(lambda: not is_running(pid))
