"""`POST memory-snapshots`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form

from app.api.deps import CanRead, NoParameters, problems
from app.schemas.memory_snapshots import MemorySnapshotReport, MemorySnapshotUpload
from app.services.memory_snapshots import explain_snapshot

router = APIRouter(prefix="/v1/memory-snapshots", tags=["advice"])


@router.post(
    "",
    summary="Explain a PyTorch memory snapshot",
    response_model=MemorySnapshotReport,
    response_description="What the snapshot tells.",
    responses=problems(401, 403, 413, 422, 429, 503),
    dependencies=[CanRead],
)
def explain_memory_snapshot(
    body: Annotated[MemorySnapshotUpload, Form(media_type="multipart/form-data")], _: NoParameters
) -> dict[str, Any]:
    """Peaks, fragmentation, allocation sites and advice, device by device. Nothing is stored.

    The file is what `torch.cuda.memory._dump_snapshot` writes, up to 512 MiB. It is a pickle: one that asks for more
    than dictionaries, lists, tuples, text and numbers is refused, and nothing of it runs.
    """
    return explain_snapshot(body.file.file)
