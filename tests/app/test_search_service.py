"""Searches as their clients see them, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.db.models import Job, Search, Status
from app.db.session import Database
from app.repositories.jobs import JobRepository
from app.repositories.searches import SearchRepository
from app.services.searches import (
    IdempotencyConflict,
    SearchEnded,
    SearchNotFound,
    SearchPage,
    SearchService,
    request_sha256,
)

START = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def service(database: Database, woken: list[str]) -> SearchService:
    return SearchService(database, wake=woken.append, max_attempts=3)


def claim(database: Database, job_id: str, owner: str = "worker") -> Job | None:
    with database.write() as session:
        return JobRepository(session).claim(job_id, owner, now=START, lease_until=START + timedelta(days=9999))


class TestCreate:
    def test_stores_a_queued_search_and_wakes_the_queue(
        self, service: SearchService, database: Database, woken: list[str]
    ) -> None:
        search = service.create({"seed": 1}, labels={"team": "a", "run": "7"})
        assert (search.status, search.request, search.labels) == ("queued", {"seed": 1}, {"run": "7", "team": "a"})
        assert (search.result, search.error, search.progress, search.finished_at) == (None, None, None, None)
        assert search.created_at.tzinfo is UTC
        with database.read() as session:
            assert JobRepository(session).queued() == woken

    def test_wakes_after_the_commit(self, database: Database) -> None:
        claimed: list[Job | None] = []
        service = SearchService(database, wake=lambda job_id: claimed.append(claim(database, job_id)), max_attempts=1)
        search = service.create({}, labels={})
        assert [job.search_id for job in claimed if job] == [search.id]

    def test_the_same_key_and_request_is_one_search(self, service: SearchService, woken: list[str]) -> None:
        first = service.create({"a": 1, "b": 2}, labels={}, idempotency_key="k")
        again = service.create({"b": 2, "a": 1}, labels={}, idempotency_key="k")
        assert again.id == first.id
        assert len(woken) == 1

    def test_the_same_key_with_another_request_is_refused(self, service: SearchService) -> None:
        first = service.create({"a": 1}, labels={}, idempotency_key="k")
        with pytest.raises(IdempotencyConflict) as raised:
            service.create({"a": 2}, labels={}, idempotency_key="k")
        assert raised.value.search_id == first.id

    def test_without_a_key_each_request_is_a_search(self, service: SearchService) -> None:
        assert service.create({}, labels={}).id != service.create({}, labels={}).id

    def test_a_key_that_comes_twice_at_once_is_one_search(
        self, service: SearchService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = service.create({"a": 1}, labels={}, idempotency_key="k")
        look_up, calls = SearchRepository.by_idempotency_key, iter([True, False])

        def late(repository: SearchRepository, key: str) -> Search | None:
            return None if next(calls) else look_up(repository, key)

        monkeypatch.setattr(SearchRepository, "by_idempotency_key", late)
        assert service.create({"a": 1}, labels={}, idempotency_key="k").id == first.id


class TestGet:
    def test_an_unknown_id_is_not_found(self, service: SearchService) -> None:
        with pytest.raises(SearchNotFound):
            service.get("none")
        with pytest.raises(SearchNotFound):
            service.state("none")


class TestList:
    def test_pages_run_from_the_newest_to_the_oldest(self, service: SearchService) -> None:
        created = [service.create({"n": n}, labels={}).id for n in range(5)]
        pages: list[SearchPage] = [service.list(limit=2)]
        while pages[-1].next_after is not None:
            pages.append(service.list(limit=2, after=pages[-1].next_after))
        assert [len(page.items) for page in pages] == [2, 2, 1]
        assert [search.id for page in pages for search in page.items] == created[::-1]

    def test_a_full_last_page_has_no_next(self, service: SearchService) -> None:
        service.create({}, labels={})
        assert service.list(limit=1).next_after is None

    def test_searches_of_the_same_moment_are_not_lost_between_pages(
        self, service: SearchService, database: Database
    ) -> None:
        with database.write() as session:
            for name in "abc":
                search = Search(id=name, created_at=START, request={}, request_sha256="", result=None)
                SearchRepository(session).add(search, {})
        first = service.list(limit=2)
        assert [search.id for search in first.items] == ["c", "b"]
        assert [search.id for search in service.list(limit=2, after=first.next_after).items] == ["a"]

    def test_filters_by_status_and_label(self, service: SearchService) -> None:
        one = service.create({}, labels={"team": "a", 'odd"na.me': "é"})
        two = service.create({}, labels={"team": "b"})
        service.cancel(two.id)

        def ids(**filters: object) -> list[str]:
            return [search.id for search in service.list(limit=9, **filters).items]  # type: ignore[arg-type]

        assert ids(status=Status.QUEUED) == [one.id]
        assert ids(status=Status.CANCELLED) == [two.id]
        assert ids(label=("team", "b")) == [two.id]
        assert ids(label=("team", None)) == [two.id, one.id]
        assert ids(label=('odd"na.me', "é")) == [one.id]
        assert ids(label=("b", "team")) == []
        assert ids(status=Status.QUEUED, label=("team", "b")) == []


class TestCancel:
    def test_a_waiting_search_ends_at_once(self, service: SearchService, database: Database, woken: list[str]) -> None:
        search = service.cancel(service.create({}, labels={}).id)
        assert search.status == "cancelled"
        assert search.finished_at is not None
        assert claim(database, woken[0]) is None

    def test_the_worker_of_a_running_search_is_asked_to_stop(
        self, service: SearchService, database: Database, woken: list[str]
    ) -> None:
        search = service.create({}, labels={})
        claim(database, woken[0])
        assert service.cancel(search.id).finished_at is None
        with database.write() as session:
            assert JobRepository(session).heartbeat(woken[0], "worker", lease_until=START) is True

    def test_an_ended_search_cannot_be_cancelled(self, service: SearchService) -> None:
        search = service.create({}, labels={})
        service.cancel(search.id)
        with pytest.raises(SearchEnded) as raised:
            service.cancel(search.id)
        assert raised.value.status is Status.CANCELLED

    def test_an_unknown_search_is_not_found(self, service: SearchService) -> None:
        with pytest.raises(SearchNotFound):
            service.cancel("none")


def test_the_hash_of_a_request_ignores_the_order_of_its_fields_only() -> None:
    assert request_sha256({"a": 1, "b": [1, 2]}) == request_sha256({"b": [1, 2], "a": 1})
    assert request_sha256({"a": [1, 2]}) != request_sha256({"a": [2, 1]})
