"""A pickle gives plain values or is refused; nothing of it runs."""

from __future__ import annotations

import contextlib
import mmap
import pickle
import pickletools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.memory_snapshots.opcodes import check_plain
from app.memory_snapshots.plain_pickle import load_plain
from app.memory_snapshots.refusal import SnapshotRefused
from tests.app.memory_snapshots.allocator import Allocator

INTEGERS = st.integers(-(2**71), 2**71 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)
ALLOWED = (
    "MARK EMPTY_TUPLE EMPTY_LIST EMPTY_DICT NONE NEWTRUE NEWFALSE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS "
    "SETITEM SETITEMS MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET FRAME STOP BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8"
)


class Calls:
    """Reduced to a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


class HasState:
    def __init__(self) -> None:
        self.value = 1


@settings(max_examples=50)
@given(PLAIN, st.integers(2, 5))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(SnapshotRefused):
        load_plain(b"\x80\x04" + data)


@settings(max_examples=50)
@given(PLAIN, st.integers(2, 5), st.data())
def test_damaged_pickles_are_read_or_refused(value: Any, protocol: int, data: st.DataObject) -> None:
    damaged = bytearray(pickle.dumps(value, protocol))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(SnapshotRefused):
        load_plain(bytes(damaged))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("nested", [False, True])
def test_nothing_is_called(tmp_path: Path, protocol: int, nested: bool) -> None:
    mark = tmp_path / "ran"
    hostile: Any = Calls(mark)
    with pytest.raises(SnapshotRefused) as refused:
        load_plain(pickle.dumps({"segments": [hostile]} if nested else hostile, protocol))
    assert refused.value.code == ("pickle_not_plain" if protocol > 1 else "not_a_pickle")
    assert not mark.exists()
    pickle.loads(pickle.dumps(hostile, protocol))
    assert mark.exists(), "the hostile pickle would have run"


@pytest.mark.parametrize("value", [HasState(), {1, 2}, frozenset((1,)), b"bytes", bytearray(b"b"), 1j, print, range(3)])
def test_other_types_are_refused(value: Any) -> None:
    for protocol in (2, 3, 4, 5):
        with pytest.raises(SnapshotRefused, match="makes more than"):
            load_plain(pickle.dumps(value, protocol))


def test_exactly_the_opcodes_of_plain_values_are_admitted() -> None:
    admitted = set()
    for opcode in pickletools.opcodes:
        try:
            check_plain(b"\x80\x04" + opcode.code.encode("latin-1") + bytes(30) + b".")
        except SnapshotRefused as refused:
            if refused.code == "pickle_not_plain":
                continue
        admitted.add(opcode.name)
    assert admitted == set(ALLOWED.split())


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02(X\x04\x00\x00\x00truecos\nsystem\no.",
        b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"\x80\x02Pid\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02}K\x01b.",
        b"\x80\x02]2.",
        b"\x80\x05\x97.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x8b\xff\xff\xff\x7f.",
        b"\x80\x02I99999999999999999999\n.",
        b"\x80\x02\x80\x02N.",
    ],
)
def test_every_other_opcode_is_refused(raw: bytes) -> None:
    with pytest.raises(SnapshotRefused) as refused:
        load_plain(raw)
    assert refused.value.code in ("pickle_not_plain", "not_a_pickle")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x04X\xff\xff\xff\xffa.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.",
        b"\x80\x04Nr\xff\xff\xff\x7f.",
        b"\x80\x04h\x05.",
        b"\x80\x04j\xff\xff\xff\x7f.",
        b"\x80\x04a.",
        b"\x80\x04}]s.",
        b"\x80\x04(]Nu.",
        b"\x80\x04}(]Nu.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04K",
        b"\x80\x04\x8a\x09\x01",
    ],
)
def test_damage_is_named(raw: bytes) -> None:
    with pytest.raises(SnapshotRefused) as refused:
        load_plain(raw)
    assert refused.value.code in ("pickle_damaged", "not_a_pickle")


def test_shared_parts_are_not_copied() -> None:
    """A billion laughs: ten lists of ten references each are a hundred pointers."""
    laugh: Any = ["ha"]
    for _ in range(100):
        laugh = [laugh] * 10
    loaded = load_plain(pickle.dumps(laugh))
    assert loaded[0] is loaded[9]


def test_a_snapshot_may_be_mapped() -> None:
    expected = Allocator().snapshot()
    with tempfile.TemporaryFile() as file:
        pickle.dump(expected, file)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            assert load_plain(data) == expected
