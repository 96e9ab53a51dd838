"""The HTTP application for tests: in process, over a migrated database of the test's own, without a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.jobs.executor import JobExecutor
from app.main import create_app
from app.services.learner import train_on_runs
from app.services.search_runs import Solve
from app.services.search_solver import solve_request
from app.services.training import Train
from app.settings import Settings

Work = Callable[..., None]
"""Runs every job that waits, in this process; with the real solver and the real training unless given others."""


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return Settings(database_url=sqlite_url, rate_limit="", embedded_worker=False)


@pytest.fixture
def http_app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def client(http_app: FastAPI) -> Iterator[TestClient]:
    with TestClient(http_app) as client:
        yield client


@pytest.fixture
def work(http_app: FastAPI, settings: Settings) -> Work:
    def run(solve: Solve = solve_request, train: Train = train_on_runs) -> None:
        executor = JobExecutor(http_app.state.database, settings, solve, train, worker="test")
        for job_id in executor.queued():
            executor.execute(job_id)

    return run
