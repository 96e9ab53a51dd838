"""Plain values out of a pickle: no class is found, nothing is called."""

from __future__ import annotations

import io
import mmap
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
    if isinstance(data, mmap.mmap):
        data.seek(0)
    try:
        return _PlainUnpickler(data if isinstance(data, mmap.mmap) else io.BytesIO(data)).load()
    except SnapshotRefused:
        raise
    except MemoryError:
        raise SnapshotRefused("snapshot_too_large", "the snapshot takes more memory to read than is allowed") from None
    except _DAMAGE as error:
        raise SnapshotRefused("pickle_damaged", f"the pickle is damaged: {error}") from None
