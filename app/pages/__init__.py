"""Pages for people: made on the server, usable with the keyboard and without JavaScript.

They call the services that the API calls, and hold nothing but how to ask and how to show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.staticfiles import StaticFiles

from app.pages import learned, runs, searches, sign_in, start

STATIC: Final = Path(__file__).parent / "static"


def install_pages(app: FastAPI) -> None:
    """The pages, and their assets under `/assets`."""
    router = APIRouter(include_in_schema=False)
    for part in (start, searches, runs, learned, sign_in):
        router.include_router(part.router)
    app.include_router(router)
    app.mount("/assets", StaticFiles(directory=STATIC), name="assets")
