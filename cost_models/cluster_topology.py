"""An `intra_node` that is described by `nvidia-smi topo -m`: what the matrix says of kind, rate, bridges and paths.

The matrix decides; fields that are stated beside it must agree with it, and what was read is listed. Ranks are numbered
as GPUs are, so that islands of bridged cards are priced as groups of consecutive ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cost_models.cluster_section import Section, shown
from cost_models.errors import InvalidInput
from cost_models.gpu_input import GpuChoice
from cost_models.nvidia_topology import Topology, read_topology
from cost_models.units import GB

GENERATIONS: Final = frozenset({"volta", "turing", "ampere", "ada", "hopper", "blackwell"})
"""Of GPUs that nvidia-smi lists."""
AGREES: Final = 0.1
"""Relative: datasheets round a card's rate (A40: 112.5 GB/s both ways, 4 links of 14.0625)."""


@dataclass(frozen=True, slots=True)
class Nvlinks:
    """The links of one chip."""

    gb_per_s: float
    """Of one link, one direction."""
    most: int
    """Of one GPU."""
    source: str


NVLINKS: Final[Mapping[str, Nvlinks]] = {
    "gv100": Nvlinks(25.0, 6, "NVIDIA V100 datasheet: 300 GB/s both ways over 6 links"),
    "ga100": Nvlinks(25.0, 12, "NVIDIA A100 datasheet: 600 GB/s both ways over 12 links"),
    "ga102": Nvlinks(14.0625, 4, "NVIDIA Ampere GA102 whitepaper v2.1: four links of 14.0625 GB/s each way"),
    "gh100": Nvlinks(25.0, 18, "NVIDIA H100 datasheet: 900 GB/s both ways over 18 links"),
    "blackwell": Nvlinks(50.0, 18, "NVIDIA Blackwell datasheet: 1.8 TB/s both ways over 18 links"),
    "blackwell-ultra": Nvlinks(50.0, 18, "NVIDIA Blackwell datasheet: 1.8 TB/s both ways over 18 links"),
}


@dataclass(frozen=True, slots=True)
class DescribedLink:
    """The other fields of `intra_node`, as stated and read."""

    fields: Section
    mesh_gpus: int | None
    """GPUs that share their links without a switch; None: as usual for the fields."""
    path_gpus: int | None
    """Most GPUs behind one PCIe switch; None: the matrix does not tell."""


def describe_link(fields: Section, choice: GpuChoice, gpus_per_node: int) -> DescribedLink:
    """Read `topology` of an `intra_node`; raises InvalidInput where it or a field beside it cannot hold."""
    topology = read_topology(fields.values["topology"], (*fields.loc, "topology"))
    if topology.gpus != gpus_per_node:
        raise _refused(fields, "contradicts", f"the matrix has {topology.gpus} GPUs, gpus_per_node is {gpus_per_node}")
    generation = choice.gpu.generation
    if generation is not None and generation not in GENERATIONS:
        raise _refused(fields, "contradicts", f"nvidia-smi lists NVIDIA GPUs; {choice.gpu.name} is of {generation}")
    stated = Section(
        {name: value for name, value in fields.values.items() if name != "topology"}, fields.loc, fields.assumptions
    )
    if gpus_per_node == 1:
        _list(fields, "one GPU, of whose links it says nothing")
        return DescribedLink(stated, None, None)
    reading = _Reading(topology, fields, choice)
    read = reading.link()
    for name, value in read.items():
        _agree(stated, name, value)
    return DescribedLink(
        Section({**read, **stated.values}, fields.loc, fields.assumptions), reading.mesh_gpus(read), reading.path_gpus()
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    topology: Topology
    fields: Section
    choice: GpuChoice

    def link(self) -> dict[str, Any]:
        """Fields of `intra_node` that the matrix decides."""
        islands = [island for island in self.topology.islands if len(island) > 1]
        if not islands:
            _list(self.fields, f"{self._pairs()}: kind pcie, no NVLink")
            return {"kind": "pcie"}
        is_card = self.choice.usual is not None and self.choice.usual.link_kind == "pcie"
        if len(islands[0]) == self.topology.gpus and not is_card:
            return self._one_domain(islands[0])
        return self._bridged(islands)

    def mesh_gpus(self, read: Mapping[str, Any]) -> int | None:
        """All GPUs of the host where no switch joins them."""
        return None if read.get("switched", True) else self.topology.gpus

    def path_gpus(self) -> int | None:
        """Most GPUs behind one switch. NVLink hides how a pair is joined by PCIe, and virtual machines show PHB alone:
        there a switch that is not seen may yet be there."""
        most = max(map(len, self.topology.switches))
        words = set(self.topology.pairs)
        if most == 1 and (words == {"PHB"} or any(word.startswith("NV") for word in words)):
            return None
        why = "GPUs behind one PCIe switch at most" if most > 1 else "no two GPUs are behind one PCIe switch"
        _list(self.fields, f"host.pcie_shared_by {most}, {why}")
        return most

    def _one_domain(self, island: tuple[int, ...]) -> dict[str, Any]:
        is_complete = self.topology.is_complete(island)
        links, is_switched = self._links(island)
        joined = "to a switch" if is_switched else f"to {len(island) - 1} others, without a switch"
        if not is_complete:
            joined = "at least, in a partial mesh without a switch: each pair is priced at an equal share of them"
        read: dict[str, Any] = {"kind": "nvlink", "switched": is_switched}
        rate = self._gb_per_s(links)
        if rate is not None:
            read["gb_per_s"] = rate
        _list(self.fields, f"{self._pairs()}: kind nvlink, a GPU has {links} NVLinks {joined}{self._rate_shown(links)}")
        return read

    def _bridged(self, islands: list[tuple[int, ...]]) -> dict[str, Any]:
        sizes = sorted({len(island) for island in self.topology.islands})
        if len(sizes) > 1:
            raise _refused(
                self.fields, "topology_unsupported", f"bridges join equal groups; NVLink joins groups of {sizes}"
            )
        if not all(map(self.topology.is_complete, islands)):
            raise _refused(
                self.fields, "topology_unsupported", "a bridge joins each of its cards to each other; not all are here"
            )
        links = min(self._links(island)[0] for island in islands)
        rate = self._gb_per_s(links)
        size = sizes[0]
        text = f"{self._pairs()}: kind pcie, bridges of {size} with {links} NVLinks a GPU{self._rate_shown(links)}"
        starts = range(0, self.topology.gpus, size)
        if list(self.topology.islands) != [tuple(range(start, start + size)) for start in starts]:
            order = ",".join(str(gpu) for island in islands for gpu in island)
            text += f"; ranks in the order CUDA_VISIBLE_DEVICES={order}, so that neighbours are bridged"
        _list(self.fields, text)
        if rate is not None:
            return {"kind": "pcie", "nvlink_bridge": {"gpus": size, "gb_per_s": rate}}
        if "nvlink_bridge" not in self.fields:
            raise self.fields.missing(
                "nvlink_bridge", f"the topology shows bridges, and the NVLink of {self.choice.gpu.name} is unknown"
            )
        return {"kind": "pcie", "nvlink_bridge": {"gpus": size}}

    def _links(self, island: tuple[int, ...]) -> tuple[int, bool]:
        """NVLinks of the GPU that has fewest, and whether they lead to a switch: then each pair has all of them.

        A GPU whose pairs name more links in all than it has sends over a switch; with fewer, each pair has its own.
        """
        most = self._most_links()
        counts = [[self.topology.nvlinks[one][other] for other in island if other != one] for one in island]
        alike = {count for row in counts for count in row}
        fewest, largest = min(map(sum, counts)), max(map(sum, counts))
        if len(alike) == 1 and len(island) > 1 and (len(island) == 2 or most is None or largest > most):
            links = alike.pop()
            if most is None or links <= most:
                return links, True
        if most is not None and largest > most:
            raise _refused(
                self.fields,
                "contradicts",
                f"a GPU has {largest} NVLinks in the matrix, a {self.choice.gpu.name} {most} at most",
            )
        return fewest, False

    def _nvlinks(self) -> Nvlinks | None:
        chip, generation = self.choice.gpu.chip, self.choice.gpu.generation
        if generation is None:
            return None
        if chip is None or chip not in NVLINKS:
            raise _refused(self.fields, "contradicts", f"the matrix has NVLink, {self.choice.gpu.name} has none")
        return NVLINKS[chip]

    def _most_links(self) -> int | None:
        nvlinks, usual = self._nvlinks(), self.choice.usual
        if nvlinks is None or usual is None:
            return None
        if usual.link_kind == "nvlink":
            # Fewer than the chip's where the product has some of them cut (A800, H800).
            return round(usual.link_bytes_per_s / GB / nvlinks.gb_per_s)
        return nvlinks.most

    def _gb_per_s(self, links: int) -> float | None:
        nvlinks = self._nvlinks()
        return None if nvlinks is None else links * nvlinks.gb_per_s

    def _rate_shown(self, links: int) -> str:
        nvlinks = self._nvlinks()
        if nvlinks is None:
            return ", whose rate is as stated"
        return f", gb_per_s {links * nvlinks.gb_per_s:g} at {nvlinks.gb_per_s:g} a link ({nvlinks.source})"

    def _pairs(self) -> str:
        return ", ".join(f"{count} x {word}" for word, count in self.topology.pairs.items())


def _agree(stated: Section, name: str, read: Any) -> None:
    """A stated field must be what was read; rates as far as datasheets round."""
    if name not in stated:
        return
    if name == "nvlink_bridge":
        bridge = stated.section(name, ("gpus", "gb_per_s"))
        for part, value in read.items():
            _agree(bridge, part, value)
        return
    value = stated.positive(name) if name == "gb_per_s" else stated.values[name]
    if name == "gb_per_s" and value is not None and abs(value - read) <= AGREES * read:
        return
    if value != read:
        raise stated.error(name, "contradicts", f"{name} {shown(value)} contradicts topology, which says {shown(read)}")


def _refused(fields: Section, code: str, message: str) -> InvalidInput:
    return fields.error("topology", code, message)


def _list(fields: Section, text: str) -> None:
    path = ".".join(str(part) for part in (*fields.loc, "topology"))
    fields.assumptions.append(f"{path} read: {text}")
