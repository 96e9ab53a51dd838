"""The HTTP application. Nothing happens at import time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI

from app import __version__
from app.api import health, v1
from app.api.uploads import UPLOADS_AT_ONCE
from app.body_limit import FORM_BYTES, BodyLimit
from app.db.session import Database
from app.db.study_storage import StudyStorage
from app.docs import install_docs
from app.errors import install_error_handlers
from app.jobs.queue import JobQueue
from app.observability import FiguresCollector, Metrics, Observed
from app.pages import install_pages
from app.pages.dashboard import install_dashboard
from app.ratelimit import RateLimiter
from app.services.figures import Figures
from app.services.learner import why_refused
from app.services.memory_models import MemoryModelService
from app.services.search_trials import SearchTrialService
from app.services.searches import SearchService
from app.services.serving_model import ServingModel
from app.settings import Settings

DESCRIPTION: Final = """From a model and a cluster to ranked, explained plans: parallel strategies for training large
models, the memory and the time that each takes, and why. Numbers carry their unit in their name. Unknown fields are
refused; every default that was used is listed in `assumptions`. Errors are `application/problem+json`."""

TAGS: Final = [
    {"name": "searches", "description": "Search plans in the background."},
    {"name": "estimates", "description": "Score strategies that you name."},
    {"name": "strategies", "description": "Read launch files and configs that are in use."},
    {"name": "runs", "description": "Log measured runs: the service learns from them."},
    {"name": "memory-models", "description": "What was learned from runs: versions, their errors, which one serves."},
    {"name": "advice", "description": "What to change of a run, from what was measured of it."},
    {"name": "models", "description": "What is understood of a model."},
    {"name": "catalog", "description": "Models, GPUs, clusters and frameworks by name."},
    {"name": "health", "description": "For operators."},
]


def create_app(settings: Settings) -> FastAPI:
    """The service over the database and the queue of the settings."""
    database = Database(settings.database_url, connections=settings.database_connections)
    studies = StudyStorage(database)
    queue = JobQueue(settings.effective_queue_url)
    metrics = Metrics()
    metrics.registry.register(FiguresCollector(Figures(database)))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close()
        studies.dispose()
        database.dispose()

    app = FastAPI(
        title="Paraplan",
        summary="Parallel strategies for large-model training.",
        description=DESCRIPTION,
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.database = database
    app.state.metrics = metrics
    app.state.rate_limiter = RateLimiter(settings.rate_limit, settings.rate_limit_url)
    app.state.uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
    app.state.searches = SearchService(database, wake=queue.wake, max_attempts=settings.max_attempts)
    app.state.serving_model = ServingModel(database, on_refusal=metrics.refused_models.inc)
    app.state.search_trials = SearchTrialService(
        database, studies, app.state.serving_model, lease_seconds=settings.trial_lease_seconds
    )
    app.state.memory_models = MemoryModelService(database, settings, wake=queue.wake, why_refused=why_refused)
    install_error_handlers(app)
    app.add_middleware(
        BodyLimit,
        default_bytes=settings.max_search_body_bytes,
        limits_bytes={
            "/v1/estimates": settings.max_estimate_body_bytes,
            "/v1/runs": settings.max_runs_body_bytes,
            "/v1/memory-snapshots": settings.max_upload_bytes,
            "/v1/runs/import": settings.max_upload_bytes + FORM_BYTES,
        },
    )
    app.add_middleware(Observed, metrics=metrics)
    app.include_router(v1.router)
    app.include_router(health.router)
    install_dashboard(app, studies)
    install_docs(app)
    install_pages(app)
    return app
