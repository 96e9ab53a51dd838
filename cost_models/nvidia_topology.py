"""What `nvidia-smi topo -m` prints of one host: how each two of its GPUs are joined.

Read are the rows and columns of GPUs; those of network cards, affinities and the legend are passed over. The words are
those of the legend (NVIDIA System Management Interface, `topo -m`): NV# is a bonded set of # NVLinks, PIX and PXB stay
below a PCIe host bridge, PHB, NODE and SYS (SOC of older drivers) go through one or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cost_models.errors import InvalidInput

Loc = tuple[str | int, ...]

LONGEST_TEXT: Final = 65_536
"""Characters; a host of 16 GPUs and 10 network cards prints about 5,000."""
BELOW_A_SWITCH: Final = frozenset({"PIX", "PXB"})
PCIE: Final = frozenset({*BELOW_A_SWITCH, "PHB", "NODE", "SYS", "SOC"})
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's underline of the head line."""
_GPU: Final = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_NVLINK: Final = re.compile(r"NV([1-9][0-9]?)")


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of one host, in the order of their numbers."""

    joined: tuple[tuple[str, ...], ...]
    """How each is joined to each other: a word of the legend; `X` on the diagonal."""
    nvlinks: tuple[tuple[int, ...], ...]
    """How many NVLinks each has to each other; 0 where only PCIe joins them."""

    @property
    def gpus(self) -> int:
        """GPUs of the host."""
        return len(self.joined)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that NVLink joins, directly or over others; one without NVLink is on its own."""
        return self._groups(lambda one, other: self.nvlinks[one][other] > 0)

    @property
    def switches(self) -> tuple[tuple[int, ...], ...]:
        """GPUs behind one PCIe switch, as far as PCIe paths are shown."""
        return self._groups(lambda one, other: self.joined[one][other] in BELOW_A_SWITCH)

    @property
    def pairs(self) -> dict[str, int]:
        """How many pairs there are of each kind, by its word."""
        words = [self.joined[one][other] for one in range(self.gpus) for other in range(one)]
        return {word: words.count(word) for word in sorted(set(words))}

    def is_complete(self, island: Sequence[int]) -> bool:
        """Whether NVLink joins any two of these."""
        return all(self.nvlinks[one][other] for one in island for other in island if one != other)

    def _groups(self, is_joined: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
        left, groups = set(range(self.gpus)), []
        while left:
            group, found = set(), {min(left)}
            while found:
                group |= found
                left -= found
                found = {other for other in left if any(is_joined(one, other) for one in found)}
            groups.append(tuple(sorted(group)))
        return tuple(groups)


def read_topology(text: object, loc: Loc) -> Topology:
    """Read the matrix; InvalidInput at `loc` says which rule the text breaks."""
    if not isinstance(text, str):
        raise InvalidInput(loc, "not_a_text", "must be the text that nvidia-smi topo -m prints")
    if len(text) > LONGEST_TEXT:
        raise InvalidInput(loc, "too_long", f"must be at most {LONGEST_TEXT} characters")
    lines = [words for line in _STYLE.sub("", text).splitlines() if (words := line.split())]
    heads = [index for index, words in enumerate(lines) if _is_head(words)]
    if len(heads) != 1:
        found = "none is there" if not heads else f"{len(heads)} are there"
        raise InvalidInput(loc, "topology_unreadable", f"one head line names the GPUs from GPU0 on: {found}")
    head, body = lines[heads[0]], lines[heads[0] + 1 :]
    gpus = next((place for place, word in enumerate(head) if word != f"GPU{place}"), len(head))
    if any(_GPU.fullmatch(word) for word in head[gpus:]):
        raise InvalidInput(loc, "topology_unreadable", "the head line names GPU0, GPU1, ... in order, then the rest")
    rows = [words for words in body if _GPU.fullmatch(words[0])]
    if [words[0] for words in rows] != head[:gpus]:
        raise InvalidInput(
            loc, "topology_unreadable", f"each of the {gpus} GPUs of the head line has one row, in order"
        )
    return _topology([words[1 : gpus + 1] for words in rows], loc)


def _is_head(words: Sequence[str]) -> bool:
    return words[0] == "GPU0" and (len(words) == 1 or words[1] == "GPU1" or not _is_cell(words[1]))


def _is_cell(word: str) -> bool:
    return word == "X" or word in PCIE or _NVLINK.fullmatch(word) is not None


def _topology(rows: list[list[str]], loc: Loc) -> Topology:
    gpus = len(rows)
    for one, row in enumerate(rows):
        if len(row) != gpus:
            raise InvalidInput(loc, "topology_unreadable", f"row GPU{one} has {len(row)} of {gpus} entries")
        for other, word in enumerate(row):
            if not _is_cell(word) or (word == "X") != (one == other):
                rule = "X" if one == other else f"NV# or one of {', '.join(sorted(PCIE))}"
                raise InvalidInput(
                    loc, "topology_unreadable", f"row GPU{one}, column GPU{other} must be {rule}, not {word[:20]}"
                )
            if other < one and word != rows[other][one]:
                raise InvalidInput(
                    loc, "topology_contradicts", f"GPU{one} and GPU{other} are joined alike both ways in the matrix"
                )
    return Topology(
        tuple(map(tuple, rows)),
        tuple(tuple(int(match[1]) if (match := _NVLINK.fullmatch(word)) else 0 for word in row) for row in rows),
    )
