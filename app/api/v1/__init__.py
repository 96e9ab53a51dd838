"""Version 1: additive changes only."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.v1 import (
    advice,
    catalog,
    estimates,
    launch,
    memory_models,
    memory_snapshots,
    models,
    reports,
    run_imports,
    runs,
    search_trials,
    searches,
    strategies,
)

router = APIRouter()
# Each part names its whole prefix, so that its routes know their full path: metrics are labelled with it.
for part in (
    searches,
    search_trials,
    launch,
    reports,
    estimates,
    strategies,
    run_imports,
    runs,
    memory_models,
    advice,
    memory_snapshots,
    models,
    catalog,
):
    router.include_router(part.router)
