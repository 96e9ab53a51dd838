"""The pickle opcodes that plain containers, text and numbers need; every other one is refused before anything is built.

Source: opcodes and their arguments in Python's `pickletools`. Snapshots come in two dialects: protocol 4 and later
(`pickle.dump` of `_snapshot()`), and protocol 2 of TorchScript's pickler (`_memory_snapshot_pickled` in
torch/csrc/cuda/memory_snapshot.cpp). Neither makes classes, bytes or sets, calls anything, or copies the stack.
"""

from __future__ import annotations

import mmap
import pickletools
import re
from typing import Final

from app.memory_snapshots.refusal import SnapshotRefused

Data = bytes | mmap.mmap

# MARK, empty and filled containers, None, booleans, MEMOIZE; BININT1, BINGET, BINPUT; BININT2; BININT, LONG_BINGET;
# BINFLOAT; FRAME; LONG1 of up to nine bytes (64 bits and a sign). Possessive, so that nothing is kept to go back to;
# bounded, so that other threads get their turn.
_FIXED: Final = re.compile(
    rb"(?s:(?:[()\]}Nsuaetld\x85-\x89\x94]|[Khq].|M..|[Jj].{4}|G.{8}|\x95.{8}"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"
    rb"){1,100000}+)"
)
_TEXT: Final = {0x8C: 1, 0x58: 4, 0x8D: 8}
"""SHORT_BINUNICODE, BINUNICODE, BINUNICODE8: bytes of the length."""
_LONG_BINPUT: Final = 0x72
_STOP: Final = 0x2E
_PROTO: Final = 0x80
_PROTOCOLS: Final = range(2, 6)
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


def check_plain(data: Data) -> None:
    """Raise SnapshotRefused where the pickle asks for anything but plain values.

    A regular expression passes over runs of opcodes of fixed length, so that this costs less than the unpickling.
    """
    size = len(data)
    if size < 3 or data[0] != _PROTO or data[1] not in _PROTOCOLS:
        raise SnapshotRefused("not_a_pickle", "the file is not a pickle of protocol 2 to 5, as torch writes them")
    position = 2
    while position < size:
        run = _FIXED.match(data, position)
        if run is not None:
            position = run.end()
            continue
        opcode = data[position]
        if opcode in _TEXT:
            begin = position + 1 + _TEXT[opcode]
            position = begin + int.from_bytes(data[position + 1 : begin], "little")
        elif opcode == _LONG_BINPUT:
            # Each entry of the memo took bytes of its own: an index beyond the position only makes a huge table.
            if int.from_bytes(data[position + 1 : position + 5], "little") > position:
                raise SnapshotRefused("pickle_damaged", f"byte {position}: a memo index beyond what was stored")
            position += 5
        elif opcode == _STOP:
            return
        else:
            raise _refused(opcode, position, size)
    raise SnapshotRefused("pickle_damaged", "the pickle ends early: the file is cut off")


def _refused(opcode: int, position: int, size: int) -> SnapshotRefused:
    name = _NAMES.get(opcode)
    if name is None:
        return SnapshotRefused("pickle_damaged", f"byte {position}: there is no pickle opcode {opcode:#04x}")
    if _FIXED.match(bytes([opcode]) + bytes(16)) is not None and size - position < 16:
        return SnapshotRefused("pickle_damaged", "the pickle ends early: the file is cut off")
    return SnapshotRefused(
        "pickle_not_plain",
        f"byte {position}: the pickle opcode {name} makes more than dictionaries, lists, tuples, text and numbers; "
        "nothing of the file was run",
    )
