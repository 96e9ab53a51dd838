"""Forms with a file, read by the endpoint itself: after the key and the sender are checked, never before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final, ParamSpec, TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from app.errors import BodyTooLarge, EdgeError
from cost_models.errors import InvalidInput

UPLOADS_AT_ONCE: Final = 4
"""That are read: a large one takes a thread for a minute, and the other endpoints need theirs (of 40)."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Upload:
    """A form with a file and texts."""

    form: FormData
    file: BinaryIO

    def text(self, name: str) -> str | None:
        """A text; None where it is left out or empty. Raises InvalidInput for another file, or more than one."""
        values = self.form.getlist(name)
        if not values:
            return None
        if len(values) > 1 or not isinstance(values[0], str):
            raise InvalidInput((name,), "string_type", "one text is needed")
        return values[0] or None


@asynccontextmanager
async def upload(request: Request, fields: Collection[str]) -> AsyncIterator[Upload]:
    """The request's form, of `file` and other `fields`; its file is gone from disk afterwards.

    Raises InvalidInput for what is no such form, BodyTooLarge for a file beyond the setting.
    """
    try:
        form = await request.form(max_files=1, max_fields=len(fields))
    except EdgeError:
        raise
    except HTTPException as error:
        raise InvalidInput((), "multipart_invalid", f"not valid multipart/form-data: {error.detail}") from error
    try:
        for name in form:
            if name not in fields:
                raise InvalidInput((name[:60],), "extra_forbidden", "there is no such field")
        file = form.get("file")
        if not isinstance(file, UploadFile):
            code = "missing" if file is None else "file_type"
            raise InvalidInput(("file",), code, "a file is needed: the part needs a filename")
        limit = request.app.state.settings.max_upload_bytes
        if file.size is not None and file.size > limit:
            raise BodyTooLarge(limit)
        yield Upload(form, file.file)
    finally:
        await form.close()


async def read_upload(request: Request, reader: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a use case makes of a file, in a thread; those that come while others are read wait for their turn."""
    turns: asyncio.Semaphore = request.app.state.uploads
    async with turns:
        return await run_in_threadpool(reader, *args, **kwargs)


def form_body(schema: dict[str, object]) -> dict[str, object]:
    """A form in the description of an operation."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
