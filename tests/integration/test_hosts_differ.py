"""Hosts that differ: clocks that are wrong, cut networks, other versions; and what they must do once between them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from app.cron import last_slot
from app.db.base import utc_now
from app.db.models import Job, MemoryModel, ModelTrigger, Status
from app.db.session import Database
from app.repositories.jobs import JobRepository
from app.settings import Settings
from tests.integration.machines import Fleet, Process, Services
from tests.integration.workers import SLOW_WORKER, Client, wait_for

pytestmark = pytest.mark.postgres
on_redis = pytest.mark.parametrize("queue_kind", ["redis"], indirect=True)
on_postgresql = pytest.mark.parametrize("queue_kind", ["postgresql"], indirect=True)

LEASE_SECONDS = 1.0


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    given = {
        name: fleet.environment[f"PARAPLAN_{name.upper()}"] for name in ("database_url", "queue_url", "lease_seconds")
    }
    client = Client(fleet.database, Settings(**given))
    yield client
    client.queue.close()


@on_redis
def test_workers_with_wrong_clocks_neither_take_nor_lose_a_lease(
    fleet: Fleet, services: Services, client: Client
) -> None:
    def start(number: int, seconds: int) -> Process:
        fleet.environment["SKEW_SECONDS"] = str(seconds)
        skewed = ("-m", "tests.integration.skewed_worker")
        return fleet.worker(services.network.hosts[number], skewed, lease_seconds=LEASE_SECONDS)

    late = start(0, -600)
    search_id = client.searches.create({"steps": 10_000, "step_seconds": 0.1}, labels={}).id
    client.await_trials(search_id, 1)
    idle = [start(1, 600), start(2, 0)]
    wait_for(lambda: all(worker.events("worker_started") for worker in idle))
    # The idle ones look for silent workers after a lease, then each half lease.
    time.sleep(4 * LEASE_SECONDS)
    client.searches.cancel(search_id)
    assert client.await_end(search_id).status == "cancelled"
    assert fleet.claims() == {search_id: 1}
    assert len(late.events("job_claimed")) == 1


@on_redis
def test_a_worker_that_is_cut_off_past_its_lease_writes_nothing(
    fleet: Fleet, services: Services, client: Client
) -> None:
    if not services.network.is_real:
        pytest.skip("no rights to make network namespaces, so there is no network to cut")
    hosts = services.network.hosts
    cut_off = fleet.worker(hosts[0], SLOW_WORKER)
    search_id = client.searches.create({"steps": 20, "step_seconds": 0.1}, labels={}).id
    client.await_trials(search_id, 3)
    hosts[0].unplug()
    fleet.worker(hosts[1], SLOW_WORKER)
    search = client.await_end(search_id)
    revision = client.searches.state(search_id).revision
    hosts[0].plug_in()
    # Once it knows, it has tried to write.
    wait_for(lambda: bool(cut_off.events("job_lost") or cut_off.events("job_abandoned")))
    assert search.status == "succeeded"
    assert client.trials(search_id) == list(range(20))
    assert client.searches.state(search_id).revision == revision
    assert fleet.claims()[search_id] == 2


def test_a_writer_that_stops_in_the_middle_lets_go_of_its_rows(
    postgresql_url: str, open_database: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, other = open_database(postgresql_url), open_database(postgresql_url)
    with other.write() as session:
        now = JobRepository(session).now()
        job = Job(kind="search", max_attempts=2, created_at=now)
        JobRepository(session).add(job)

    def claim(database: Database, owner: str, meanwhile: Callable[[], None]) -> None:
        with database.write() as session:
            assert JobRepository(session).claim(job.id, owner, now=now, lease_until=now) is not None
            meanwhile()

    has_frozen, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        has_frozen.set()
        thaw.wait()

    with ThreadPoolExecutor(1) as thread:
        with monkeypatch.context() as patch:
            limit = text("SET LOCAL idle_in_transaction_session_timeout = '1s'")
            patch.setattr("app.db.session._LIMIT_IDLE_WRITER", limit)
            writing = thread.submit(claim, frozen, "frozen", freeze)
            has_frozen.wait()
        claim(other, "other", lambda: None)
        thaw.set()
        with pytest.raises(OperationalError):
            writing.result()
    with other.read() as session:
        assert session.execute(select(Job.owner, Job.attempt)).one() == ("other", 1)


@on_postgresql
def test_three_workers_schedule_a_training_once(fleet: Fleet, services: Services) -> None:
    crons = {"retrain": "23 2 * * *", "purge": "17 3 * * *"}
    with fleet.database.write() as session:
        for kind in crons:
            long_ago = {"schedule": kind, "slot": "2026-01-01T00:00", "state": Status.SUCCEEDED}
            session.add(Job(kind=kind, max_attempts=1, created_at=utc_now(), finished_at=utc_now(), **long_ago))
    workers = [fleet.worker(host, SLOW_WORKER, worker_trains=True) for host in services.network.hosts[:3]]
    slots = {kind: last_slot(cron, utc_now()).strftime("%Y-%m-%dT%H:%M") for kind, cron in crons.items()}
    wait_for(lambda: all(worker.events("worker_started") for worker in workers))
    wait_for(lambda: not unfinished_jobs(fleet.database))
    with fleet.database.read() as session:
        made = session.execute(select(Job.kind, Job.slot).where(Job.slot > "2026-01-01T00:00")).all()
        trainings = Counter(session.scalars(select(MemoryModel.trigger)))
    assert sorted(tuple(row) for row in made) == sorted(slots.items())
    assert trainings[ModelTrigger.FIRST_START] == 1
    assert trainings[ModelTrigger.SCHEDULE] <= 1


def unfinished_jobs(database: Database) -> int:
    with database.read() as session:
        return session.scalars(select(func.count()).select_from(Job).where(Job.finished_at.is_(None))).one()


@on_postgresql
def test_hosts_of_another_version_say_so(fleet: Fleet, services: Services) -> None:
    hosts = services.network.hosts
    worker, api = fleet.worker(hosts[0]), fleet.api(hosts[1])
    wait_for(lambda: bool(worker.events("worker_started")))
    with fleet.client(api) as client:
        assert client.get("/readyz").status_code == 200
        with fleet.database.engine.begin() as connection:
            connection.execute(text("UPDATE schema_version SET version_num = '9999'"))
            connection.execute(text("ALTER TABLE searches RENAME COLUMN request TO asked"))
        for answer in (client.get("/readyz"), client.get("/v1/searches")):
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:paraplan:problem:not-ready")
            assert answer.headers["retry-after"]
            assert "newer version (revision 9999)" in answer.json()["detail"]
    assert worker.popen.wait() == 1
    assert "newer version (revision 9999). Update this host's service" in worker.log.read_text()


@on_postgresql
def test_a_server_opens_no_more_connections_than_it_may(fleet: Fleet, services: Services) -> None:
    api = fleet.api(services.network.hosts[0], database_connections=3)
    most = 0
    with fleet.client(api) as client, ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(client.get, "/v1/searches") for _ in range(200)]
        while not all(done.done() for done in asked):
            most = max(most, connections_from(fleet.database, api.host.address))
        assert {done.result().status_code for done in asked} == {200}
    if services.network.is_real:
        # One more is the queue's.
        assert 1 <= most <= 4


def connections_from(database: Database, address: str) -> int:
    query = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND client_addr = :address")
    with database.read() as session:
        count: int = session.scalar(query, {"address": address}) or 0
        return count
