"""An uploaded file as lines of text, one at a time, whatever its encoding: memory stays bounded by one line.

Logs are written by terminals, not by authors: colours, progress bars that overwrite themselves with carriage returns,
bytes that are no UTF-8, NULs (also those of UTF-16, which PowerShell writes: without them its ASCII is left).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from cost_models.errors import InvalidInput

LONGEST_LINE_BYTES: Final = 2**20
"""Of a longer line the rest is skipped: no framework writes one that tells anything after its first MiB."""
LONGEST_LOG_LINE_BYTES: Final = 2**17
"""Of a log; a table's record may be longer."""
MOST_UNPACKED_BYTES: Final = 512 * 2**20
"""Of a compressed upload: as much as the contract takes of one that is not compressed."""

_GZIP: Final = b"\x1f\x8b"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[mKJHABCDGhl]|\x1b\][^\x07]{0,256}\x07|\x1b")
"""Colours and cursor movements of ECMA-48, window titles, and what is left of cut ones."""


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines of a file, plain or gzip by its first bytes; raises InvalidInput for a damaged archive, or a bomb."""
    start = file.read(len(_GZIP))
    file.seek(0)
    if start != _GZIP:
        yield from _bounded(file)
        return
    unpacked = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as archive:
            for line in _bounded(archive):
                unpacked += len(line)
                if unpacked > MOST_UNPACKED_BYTES:
                    message = f"unpacks to more than {MOST_UNPACKED_BYTES} bytes"
                    raise InvalidInput(("file",), "too_large", message)
                yield line
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidInput(("file",), "gzip_invalid", "the gzip archive is damaged or cut off") from error


def decoded(line: bytes) -> str:
    """UTF-8, with U+FFFD for what is not; no byte order mark, no NUL."""
    return line.decode("utf-8", "replace").replace("\0", "").removeprefix("\ufeff")


def log_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """What a terminal would show: no escapes, one line for each carriage return.

    A line that is finished ends in a newline; the last one of a file that was cut off does not, so that a reader can
    tell a figure that is whole from one that may have lost digits.
    """
    for line in lines:
        text = decoded(line[:LONGEST_LOG_LINE_BYTES])
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        finished = text.endswith("\n")
        parts = text.rstrip("\r\n").split("\r")
        for part in parts[:-1]:  # frames of a progress bar
            yield part + "\n"
        yield parts[-1] + "\n" if finished else parts[-1]


def _bounded(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE_BYTES):
        rest = line
        while len(rest) == LONGEST_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE_BYTES)
        yield line
