"""`memory-models`: train, list, get, promote."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response, status

from app.api.deps import CanRead, CanWrite, NoParameters, json_body, problems
from app.db.models import MemoryModel as StoredModel
from app.pagination import decode_cursor, encode_cursor
from app.schemas.memory_models import MemoryModel, MemoryModelListQuery, MemoryModelPage, TrainingRequest
from app.services.memory_models import MemoryModelService

router = APIRouter(prefix="/v1/memory-models", tags=["memory-models"])


def _service(request: Request) -> MemoryModelService:
    service: MemoryModelService = request.app.state.memory_models
    return service


def _json_or_nothing(request: Request) -> None:
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        json_body(request)


MemoryModels = Annotated[MemoryModelService, Depends(_service)]
Version = Annotated[int, Path(description="A version's number, as `GET memory-models` lists it.")]


@router.post(
    "",
    summary="Train a version",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=MemoryModel,
    response_description="Accepted; `Location` is where it can be watched.",
    responses={
        202: {"headers": {"Location": {"description": "Where the version is.", "schema": {"type": "string"}}}},
        **problems(401, 403, 413, 415, 422, 429, 503),
    },
    dependencies=[CanWrite, Depends(_json_or_nothing)],
)
def create_memory_model(
    response: Response,
    models: MemoryModels,
    _: NoParameters,
    body: TrainingRequest | None = None,  # noqa: ARG001 (nothing to choose, but to be checked)
) -> dict[str, Any]:
    """Learn from the published and all logged runs, in the background; serve it if the gate passes.

    One training runs at a time and one more waits: while one waits, it is the answer.
    """
    created = models.create()
    response.headers["Location"] = f"/v1/memory-models/{created.version}"
    return _answer(created)


@router.get(
    "",
    summary="List versions",
    response_model=MemoryModelPage,
    response_description="One page.",
    responses=problems(401, 403, 422, 429, 503),
    dependencies=[CanRead],
)
def list_memory_models(query: Annotated[MemoryModelListQuery, Query()], models: MemoryModels) -> dict[str, Any]:
    """Newest first, with their figures by unseen group; which one serves; when the next is trained."""
    before = None if query.cursor is None else int(decode_cursor(query.cursor)[1])
    page = models.list(limit=query.limit, before=before)
    schedule = models.schedule()
    return {
        "items": [_summary(model) for model in page.items],
        "next_cursor": _next_cursor(page.items[-1]) if page.has_more else None,
        "serving": schedule.serving_version,
        "schedule": {
            "cron": schedule.cron,
            "next_slot": schedule.next_slot,
            "after_runs": schedule.after_runs,
            "runs_since_last": schedule.runs_since_last,
            "running": schedule.running_version,
            "queued": schedule.queued_version,
        },
    }


@router.get(
    "/{version}",
    summary="Get a version",
    response_model=MemoryModel,
    response_description="The version.",
    responses=problems(401, 403, 404, 422, 429, 503),
    dependencies=[CanRead],
)
def get_memory_model(version: Version, models: MemoryModels, _: NoParameters) -> dict[str, Any]:
    """Where it stands, and its whole report once it is trained."""
    return _answer(models.get(version))


@router.post(
    "/{version}/promote",
    summary="Let a version serve",
    response_model=MemoryModel,
    response_description="It serves.",
    responses=problems(401, 403, 404, 409, 422, 429, 503),
    dependencies=[CanWrite],
)
def promote_memory_model(version: Version, models: MemoryModels, _: NoParameters) -> dict[str, Any]:
    """Also an older version, or one that the gate refused. It is loaded and checked first."""
    return _answer(models.promote(version))


def _next_cursor(last: StoredModel) -> str:
    return encode_cursor((last.created_at, str(last.version)))


def _summary(model: StoredModel) -> dict[str, Any]:
    return {
        "version": model.version,
        "state": model.state,
        "trigger": model.trigger,
        "created_at": model.created_at,
        "trained_at": model.trained_at,
        "promoted_at": model.promoted_at,
        "runs": model.runs,
        "figures": None if model.report is None else model.report["candidate"],
        "decision": model.decision,
        "error": model.error,
    }


def _answer(model: StoredModel) -> dict[str, Any]:
    return _summary(model) | {
        "schema_": model.schema,
        "libraries": model.libraries,
        "sha256": model.blob_sha256,
        "report": model.report,
    }
