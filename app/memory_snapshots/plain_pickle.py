"""Plain values out of a pickle: no class is found, nothing is called."""

from __future__ import annotations

import io
import pickle
from typing import Any, Final, NoReturn

from app.memory_snapshots.opcodes import Data, check_plain
from app.memory_snapshots.refusal import SnapshotRefused

_DAMAGE: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an unpickler raises on plain opcodes in an order that makes no sense."""


READ_BYTES: Final = 2**20


class _Source(io.RawIOBase):
    """Reads from memory without a copy of it. Below a buffer, which the unpickler looks ahead in: without one it asks
    for every byte of a pickle that has no frames."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        part = self._data[self._position : self._position + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every global and every persistent id, should an opcode ever ask for one."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Nothing."""
        raise SnapshotRefused("pickle_not_plain", f"the pickle asks for {module_name}.{global_name}")

    def persistent_load(self, _: Any, /) -> NoReturn:
        """Nothing."""
        raise SnapshotRefused("pickle_not_plain", "the pickle asks for a persistent id")


def load_plain(data: Data) -> Any:
    """Dictionaries, lists, tuples, text, numbers, booleans and None; raises SnapshotRefused on anything else."""
    check_plain(data)
    try:
        return _PlainUnpickler(io.BufferedReader(_Source(data), READ_BYTES)).load()
    except SnapshotRefused:
        raise
    except MemoryError:
        raise SnapshotRefused("snapshot_too_large", "the snapshot takes more memory to read than is allowed") from None
    except _DAMAGE as error:
        raise SnapshotRefused("pickle_damaged", f"the pickle is damaged: {error}") from None
