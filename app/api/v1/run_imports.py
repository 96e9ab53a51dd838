"""`runs/import`: runs from files."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from app.api.deps import CanRead, CanWrite, MultipartBody, NoParameters, RunsDatabase, problems
from app.errors import BodyTooLarge, EdgeError
from app.run_logs.template import csv_template, jsonl_template
from app.schemas.run_imports import CONTEXT, FORM, ImportedRuns, TemplateQuery
from app.services.run_imports import import_runs
from cost_models.errors import InvalidInput

router = APIRouter(prefix="/v1/runs/import", tags=["runs"])

STAGES: Final = ("fullest", "each")


@router.post(
    "",
    summary="Import runs from a file",
    status_code=status.HTTP_201_CREATED,
    response_model=ImportedRuns,
    response_description="Logged, now or before.",
    responses=problems(401, 403, 409, 413, 415, 422, 429, 503),
    dependencies=[CanWrite, MultipartBody],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": FORM
                    | {
                        "properties": FORM["properties"]
                        | {"context": {**FORM["properties"]["context"], "example": json.dumps(CONTEXT)}}
                    }
                }
            },
        }
    },
)
async def create_runs_from_file(request: Request, database: RunsDatabase, _: NoParameters) -> dict[str, Any]:
    """Log the runs of a CSV or JSONL table, of a training log as it is, or of a PyTorch memory snapshot.

    Logs of Megatron-LM, Megatron-DeepSpeed, DeepSpeed, torchtitan, torchtune, nanotron and the Hugging Face Trainer.
    What a log does not say is asked for by name: one error `missing` for each field, whose place in `context` it
    names. What log and context say differently is an error that names both. All runs are logged, or none; the same
    file with the same context again is the same runs.
    """
    try:
        form = await request.form(max_files=1, max_fields=3)
    except EdgeError:
        raise
    except HTTPException as error:
        raise InvalidInput((), "multipart_invalid", f"not valid multipart/form-data: {error.detail}") from error
    async with _Closed(form):
        file = _file(form)
        limit = request.app.state.settings.max_upload_bytes
        if file.size is not None and file.size > limit:
            raise BodyTooLarge(limit)
        stages = _text(form, "stages")
        if stages is not None and stages not in STAGES:
            raise InvalidInput(("stages",), "literal_error", f"one of {', '.join(STAGES)}")
        done = await run_in_threadpool(
            import_runs,
            database,
            file.file,
            format=_text(form, "format"),
            context=_text(form, "context"),
            every_stage=stages == "each",
        )
    return {"ids": done.ids, "format": done.format, "runs": done.runs, "assumptions": done.assumptions}


@router.get(
    "/template",
    summary="Get a template to import",
    response_class=Response,
    response_description="A file that imports as it stands.",
    responses={200: {"content": {"text/csv": {}, "application/jsonl": {}}}, **problems(401, 403, 422, 429, 503)},
    dependencies=[CanRead],
)
def get_import_template(query: Annotated[TemplateQuery, Query()]) -> Response:
    """A table to fill: a CSV whose columns are paths of fields, or a RunRecord a line."""
    text, kind = (csv_template(), "text/csv") if query.format == "csv" else (jsonl_template(), "application/jsonl")
    headers = {"Content-Disposition": f'attachment; filename="runs.{query.format}"'}
    return Response(text, media_type=kind, headers=headers)


class _Closed:
    """Removes a form's files from disk."""

    def __init__(self, form: FormData) -> None:
        self._form = form

    async def __aenter__(self) -> None:
        for name in self._form:
            if name not in FORM["properties"]:
                await self._form.close()
                raise InvalidInput((name[:60],), "extra_forbidden", "there is no such field")

    async def __aexit__(self, *_: object) -> None:
        await self._form.close()


def _file(form: FormData) -> UploadFile:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        code = "missing" if file is None else "file_type"
        raise InvalidInput(("file",), code, "a file is needed: the part needs a filename")
    return file


def _text(form: FormData, name: str) -> str | None:
    values = form.getlist(name)
    if not values:
        return None
    if len(values) > 1 or not isinstance(values[0], str):
        raise InvalidInput((name,), "string_type", "one text is needed")
    return values[0] or None
