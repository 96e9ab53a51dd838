"""One service on several hosts: work is spread, and whatever dies under load, every accepted search ends once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import redis
from sqlalchemy import select, text

from app.db.models import Job, Search, StoredTrial
from app.db.session import Database
from app.services.search_solver import solve_request
from app.services.serving_model import Served
from tests.integration.conftest import fleet_on
from tests.integration.machines import Fleet, Process, Services
from tests.integration.workers import wait_for

pytestmark = pytest.mark.postgres
on_redis = pytest.mark.parametrize("started", ["redis"], indirect=True, scope="module")
on_postgresql = pytest.mark.parametrize("started", ["postgresql"], indirect=True, scope="module")

TRIALS = 64
"""Two blocks: something to keep when a worker dies."""
REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64},
    "frameworks": ["fsdp2"],
    "space": {"zero_stage": [3], "tensor_parallel_size": [1], "context_parallel_size": [1]},
    "budget": {"trials": TRIALS, "seconds": 600.0},
}
SHORT = REQUEST | {"budget": {"trials": 1}}


@dataclass
class Service:
    """A fleet with two servers and three workers, each on a host of its own."""

    fleet: Fleet
    hosts: Services
    workers: list[Process]
    clients: list[httpx2.Client]
    accepted: list[str] = field(default_factory=list)
    """The searches of this test."""

    def post(self, number: int, request: dict[str, Any] = REQUEST, **headers: str) -> httpx2.Response:
        """Ask one of the servers, in turn."""
        answer = self.clients[number % 2].post("/v1/searches", json=request, headers=headers)
        if answer.status_code == 202:
            self.accepted.append(answer.json()["id"])
        return answer

    def cancel(self, number: int, search_id: str) -> int:
        return self.clients[number % 2].post(f"/v1/searches/{search_id}/cancel").status_code

    def await_ends(self) -> dict[str, str]:
        """How each accepted search ended: as its job did, which nobody holds any more."""
        await_ends(self.fleet.database)
        stored = statuses(self.fleet.database)
        return {search_id: stored[search_id] for search_id in self.accepted}


@pytest.fixture(scope="module", params=["redis", "postgresql"])
def started(
    request: pytest.FixtureRequest, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """One for all tests of a kind of queue: processes take seconds to start."""
    hosts = services.network.hosts
    with fleet_on(services, request.param, tmp_path_factory.mktemp("fleet")) as fleet:
        workers = [fleet.worker(host) for host in hosts[:3]]
        clients = [fleet.client(fleet.api(host)) for host in hosts[3:]]
        wait_for(lambda: all(worker.events("worker_started") for worker in workers))
        yield Service(fleet, services, workers, clients)
        for client in clients:
            client.close()


@pytest.fixture
def service(started: Service) -> Service:
    started.accepted.clear()
    return started


def statuses(database: Database) -> dict[str, str]:
    """How each search ended. Its job ended the same way, and nobody holds it."""
    with database.read() as session:
        rows = session.execute(select(Search.id, Search.status, Job.state, Job.owner, Job.lease_until).join(Job)).all()
    assert all(row.status == row.state and row.owner is row.lease_until is None for row in rows)
    return {row.id: row.status for row in rows}


def await_ends(database: Database) -> None:
    wait_for(lambda: not is_busy(database), every_seconds=0.2)


def is_busy(database: Database) -> bool:
    """Whether a search has not ended."""
    with database.read() as session:
        going_on = select(Search.id).where(Search.status.in_(("queued", "running"))).limit(1)
        return session.scalar(going_on) is not None


def test_searches_are_spread_over_the_workers_and_each_runs_on_one(service: Service) -> None:
    for number in range(18):
        assert service.post(number).status_code == 202
    assert list(service.await_ends().values()) == ["succeeded"] * 18
    claims = service.fleet.claims()
    assert [claims[search_id] for search_id in service.accepted] == [1] * 18
    assert all(worker.events("job_claimed") for worker in service.workers)


ENDS_TABLE = """
CREATE TABLE search_ends (search_id TEXT);
CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO search_ends VALUES (NEW.id); RETURN NEW; END $$;
CREATE TRIGGER note_end AFTER UPDATE ON searches FOR EACH ROW
WHEN (NEW.status NOT IN ('queued', 'running')) EXECUTE FUNCTION note_end();
"""
"""Notes every write that ends a search or comes after its end."""


@pytest.mark.parametrize(
    ("queue_kind", "searches", "kills"),
    [("redis", 100, 12), ("postgresql", 12, 3)],
    indirect=["queue_kind"],
    ids=["redis", "postgresql"],
)
def test_workers_that_are_killed_at_random_lose_nothing(
    fleet: Fleet, services: Services, searches: int, kills: int
) -> None:
    database = fleet.database
    with database.engine.begin() as connection:
        connection.execute(text(ENDS_TABLE))
    with fleet.client(fleet.api(services.network.hosts[3])) as client:
        for number in range(searches):
            assert client.post("/v1/searches", json=REQUEST | {"seed": number % 4}).status_code == 202
    kill_at_random(fleet, services, searches, kills)
    await_ends(database)
    assert list(statuses(database).values()) == ["succeeded"] * searches
    # Some of the kills hit a search: it was claimed again.
    assert 0 < sum(fleet.claims().values()) - searches <= kills
    with database.read() as session:
        ended = session.execute(text("SELECT count(*), count(DISTINCT search_id) FROM search_ends")).one()
        numbers = session.scalars(select(StoredTrial.number).order_by(StoredTrial.number)).all()
        results = session.execute(select(Search.request, Search.result)).all()
    assert tuple(ended) == (searches, searches)
    assert numbers == [number for number in range(TRIALS) for _ in range(searches)]
    undisturbed = {seed: undisturbed_result(seed) for seed in range(4)}
    for request, result in results:
        assert without_time(result) == undisturbed[request["seed"]]


def kill_at_random(fleet: Fleet, services: Services, searches: int, kills: int) -> None:
    """Kill workers at moments and in an order drawn from a fixed seed, all along, and start others in their place."""
    chance = random.Random(7)
    workers = [fleet.worker(host) for host in services.network.hosts[:3]]
    for kill in range(kills):
        wait_for(lambda after=kill * searches // kills: len(fleet.claims()) > after, every_seconds=0.1)
        time.sleep(chance.uniform(0.0, 0.4))
        busy = [number for number, worker in enumerate(workers) if worker.events("job_claimed")]
        number = chance.choice(busy or [0])
        workers[number].kill()
        workers[number] = fleet.worker(workers[number].host)


def undisturbed_result(seed: int) -> dict[str, Any]:
    result = solve_request(
        REQUEST | {"seed": seed}, past=(), report=lambda *_: None, cancelled=lambda: False, served=Served(None)
    )
    stored: dict[str, Any] = json.loads(json.dumps(result.as_dict()))
    return without_time(stored)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "elapsed_seconds"}


@contextmanager
def load(service: Service) -> Iterator[list[httpx2.Response]]:
    """Searches that come in at both servers while the block runs; the answers, as they come."""
    answers: list[httpx2.Response] = []
    ended = threading.Event()

    def post(number: int) -> None:
        while not ended.wait(0.1):
            answers.append(service.post(number, SHORT))

    with ThreadPoolExecutor(2) as threads:
        posting = [threads.submit(post, number) for number in range(2)]
        try:
            yield answers
        finally:
            ended.set()
        for done in posting:
            done.result()


def await_answer(answers: Sequence[httpx2.Response], status: int) -> None:
    """An answer with a status that comes after now."""
    known = len(answers)
    wait_for(lambda: any(answer.status_code == status for answer in answers[known:]))


def test_a_database_that_crashes_under_load_loses_no_accepted_search(service: Service) -> None:
    for number in range(9):
        service.post(number)
    watched = service.accepted[-1]
    with ThreadPoolExecutor(1) as thread, load(service) as answers:
        stream = thread.submit(told, service.clients[0], watched)
        for _ in range(2):
            await_answer(answers, 202)
            service.hosts.postgres.crash()
            await_answer(answers, 503)
            service.hosts.postgres.start()
            await_answer(answers, 202)
    assert set(service.await_ends().values()) == {"succeeded"}
    # One connection, through both outages.
    assert stream.result()[-1] == "done"
    refused = [answer for answer in answers if answer.status_code != 202]
    assert {answer.status_code for answer in refused} == {503}
    assert {answer.headers["content-type"] for answer in refused} == {"application/problem+json"}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)


def told(client: httpx2.Client, search_id: str) -> list[str]:
    """The names of the events of a search, of one connection."""
    with client.stream("GET", f"/v1/searches/{search_id}/events") as stream:
        return [line.removeprefix("event: ") for line in stream.iter_lines() if line.startswith("event: ")]


@on_redis
def test_a_queue_that_crashes_or_forgets_under_load_loses_no_search(service: Service) -> None:
    server = service.hosts.redis
    with load(service) as answers:
        await_answer(answers, 202)
        server.crash()
        await_answer(answers, 202)  # the jobs' table has it; its message is lost
        server.start()
        await_answer(answers, 202)
        for _ in range(3):
            redis.Redis.from_url(server.url).flushall()
            await_answer(answers, 202)
    assert {answer.status_code for answer in answers} == {202}
    assert set(service.await_ends().values()) == {"succeeded"}


@on_postgresql
def test_a_key_that_reaches_two_servers_at_once_makes_one_search(service: Service) -> None:
    with ThreadPoolExecutor(8) as threads:
        for key in range(6):
            asked = [
                threads.submit(service.post, number, SHORT, **{"Idempotency-Key": f"key-{key}"}) for number in range(8)
            ]
            answers = [done.result() for done in asked]
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["id"] for answer in answers}) == 1
    assert list(service.await_ends().values()) == ["succeeded"] * 6
    claims = service.fleet.claims()
    assert [claims[search_id] for search_id in set(service.accepted)] == [1] * 6


@on_postgresql
def test_a_cancellation_that_races_with_the_end_is_one_or_the_other(service: Service) -> None:
    chance = random.Random(3)
    cancelled: dict[str, list[int]] = {}

    def cancel(number: int) -> None:
        search_id = service.post(number, SHORT).json()["id"]
        time.sleep(chance.uniform(0.0, 0.6))
        with ThreadPoolExecutor(2) as both:
            cancelled[search_id] = list(both.map(service.cancel, range(2), [search_id] * 2))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(cancel, range(24)))
    ended = service.await_ends()
    assert {answer for answers in cancelled.values() for answer in answers} <= {202, 409}
    for search_id, answers in cancelled.items():
        assert ended[search_id] == ("cancelled" if 202 in answers else "succeeded")
