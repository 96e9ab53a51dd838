"""Version 1: additive changes only."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.v1 import catalog, estimates, models, searches

router = APIRouter(prefix="/v1")
for part in (searches, estimates, models, catalog):
    router.include_router(part.router)
