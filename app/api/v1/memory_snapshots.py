"""`POST memory-snapshots`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from app.api.deps import CanRead, MultipartBody, NoParameters, problems
from app.api.uploads import form_body, read_upload, upload
from app.schemas.memory_snapshots import FORM, MemorySnapshotReport
from app.services.memory_snapshots import explain_snapshot

router = APIRouter(prefix="/v1/memory-snapshots", tags=["advice"])


@router.post(
    "",
    summary="Explain a PyTorch memory snapshot",
    response_model=MemorySnapshotReport,
    response_description="What the snapshot tells.",
    responses=problems(401, 403, 413, 415, 422, 429, 503),
    dependencies=[CanRead, MultipartBody],
    openapi_extra=form_body(FORM),
)
async def explain_memory_snapshot(request: Request, _: NoParameters) -> dict[str, Any]:
    """Peaks, fragmentation, allocation sites and advice, device by device. Nothing is stored.

    The file is what `torch.cuda.memory._dump_snapshot` writes, up to 512 MiB. It is a pickle: one that asks for more
    than dictionaries, lists, tuples, text and numbers is refused, and nothing of it runs.
    """
    async with upload(request, FORM["properties"]) as sent:
        return await read_upload(request, explain_snapshot, sent.file)
