"""`runs/import`: runs from files."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response, status

from app.api.deps import CanRead, CanWrite, MultipartBody, NoParameters, RunsDatabase, problems
from app.api.uploads import form_body, read_upload, upload
from app.run_logs.template import csv_template, jsonl_template
from app.schemas.run_imports import FORM, ImportedRuns, TemplateQuery
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
    openapi_extra=form_body(FORM),
)
async def create_runs_from_file(request: Request, database: RunsDatabase, _: NoParameters) -> dict[str, Any]:
    """Log the runs of a CSV or JSONL table, of a training log as it is, or of a PyTorch memory snapshot.

    Logs of Megatron-LM, Megatron-DeepSpeed, DeepSpeed, torchtitan, torchtune, nanotron and the Hugging Face Trainer.
    What a log does not say is asked for by name: one error `missing` for each field, whose place in `context` it
    names. What log and context say differently is an error that names both. All runs are logged, or none; the same
    file with the same context again is the same runs.
    """
    async with upload(request, FORM["properties"]) as sent:
        stages = sent.text("stages")
        if stages is not None and stages not in STAGES:
            raise InvalidInput(("stages",), "literal_error", f"one of {', '.join(STAGES)}")
        done = await read_upload(
            request,
            import_runs,
            database,
            sent.file,
            format=sent.text("format"),
            context=sent.text("context"),
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
