"""Files as lines: encodings, colours, progress bars, archives; recognising formats; figures that are cut off."""

from __future__ import annotations

import gzip
import io

import pytest

from app.run_logs.formats import FORMATS, READERS, SNAPSHOT, recognise
from app.run_logs.lines import LONGEST_LINE_BYTES, MOST_UNPACKED_BYTES, log_lines, raw_lines
from app.run_logs.steady import steady_step_seconds
from cost_models.errors import InvalidInput
from tests.app.run_logs.excerpts import LOGS


def text(content: bytes) -> list[str]:
    return list(log_lines(raw_lines(io.BytesIO(content))))


def test_what_a_terminal_shows() -> None:
    assert text(b"\xef\xbb\xbf\x1b[31mred\x1b[0m\r\nfirst\rsecond\nbad \xff\0end") == [
        "red\n",
        "first\n",
        "second\n",
        "bad \ufffdend",
    ]


def test_utf_16_leaves_its_ascii() -> None:
    assert [line.strip("\ufffd\n") for line in text("step\none\n".encode("utf-16"))] == ["step", "one", ""]


def test_a_line_without_end_is_cut() -> None:
    lines = list(raw_lines(io.BytesIO(b"x" * (3 * LONGEST_LINE_BYTES) + b"\nnext\n")))
    assert [len(line) for line in lines] == [LONGEST_LINE_BYTES, 5]


def test_archives() -> None:
    content = gzip.compress(b"a\nb\n")
    assert text(content) == ["a\n", "b\n"]
    for damaged in (content[:-9], content[:12] + b"\xff" * 20, b"\x1f\x8b"):
        with pytest.raises(InvalidInput) as refused:
            text(damaged)
        assert (refused.value.loc, refused.value.code) == (("file",), "gzip_invalid")


def test_a_bomb() -> None:
    bomb = gzip.compress((b"0" * 1023 + b"\n") * 1024, compresslevel=1) * (MOST_UNPACKED_BYTES // 2**20 + 1)
    with pytest.raises(InvalidInput) as refused:
        for _ in raw_lines(io.BytesIO(bomb)):
            pass
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("format", READERS)
def test_every_format_reads_every_excerpt_without_an_accident(format: str) -> None:
    for path in LOGS.glob("*.log"):
        with path.open("rb") as file:
            list(READERS[format](log_lines(raw_lines(file))))


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b'\n{"key": "a"}\n', "jsonl"),
        (b"model.preset,measured.step_seconds\na,1\n", "csv"),
        (b"\x80\x04\x95", SNAPSHOT),
        (b"Start\ntune run full_finetune_distributed --config x\n", "torchtune"),
        (b"[INFO] [utils.py:1:see_memory_usage] MA 1 GB\n", "deepspeed"),
    ],
)
def test_formats_by_content(content: bytes, format: str) -> None:
    assert recognise(raw_lines(io.BytesIO(content))) == format


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\xff" * 100, b"a,b\n1,2\n"])
def test_content_of_no_format_names_the_known_ones(content: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        recognise(raw_lines(io.BytesIO(content)))
    assert (refused.value.loc, refused.value.code) == (("format",), "unknown_format")
    assert all(format in refused.value.message for format in FORMATS)


@pytest.mark.parametrize("cut", range(1, 120))
def test_a_log_that_is_cut_anywhere_gives_no_figure_that_the_whole_does_not(cut: int) -> None:
    lines = [
        f" iteration {index:8d}/     100 | elapsed time per iteration (ms): 1234.5 | learning rate: 1 |\n"
        f"[Rank 0] (after {index} iterations) memory (MB) | allocated: 1024.5 | max allocated: 2048.5 | "
        "reserved: 4096.5 | max reserved: 4096.5\n"
        for index in (1, 2, 3)
    ]
    content = "".join(lines).encode()
    (run,) = READERS["megatron-lm"](log_lines([*content[:-cut].splitlines(keepends=True)]))
    assert run.step_seconds == 1.2345
    assert {reading.allocated_gib for reading in run.readings} == {2048.5 / 1024}
    assert {reading.reserved_gib for reading in run.readings} == {4096.5 / 1024}


def test_steady_steps() -> None:
    assert steady_step_seconds([]) == (None, None)
    assert steady_step_seconds([9.0])[0] is None
    assert steady_step_seconds([9.0, 2.0])[0] == 2.0
    assert steady_step_seconds([9.0, 2.0, 50.0, 3.0])[0] == 3.0
    # of 20 intervals two are warm-up
    assert steady_step_seconds([9.0, 9.0, *[1.0] * 9, *[2.0] * 9])[0] == 1.5
