"""One source of published figures: a TOML file of this directory, read into RunRecords.

    title = "…"              of the paper or page
    citation = "arXiv …"     or the name of the document
    address = "https://…"
    where = "Table 4"        inside it
    family = "…"             sources that share machines or runs share a family
    seen = false             whether a coefficient was fitted on it; never fit on a source that is not seen
    conversion = "…"         how the figures became those of the contract
    unknown = ["…"]          fields of the contract that the source does not tell; they have the default

    [models.NAME]            a ModelInput of the contract; a name without one is a preset
    [clusters.NAME]          a ClusterInput
    [software] [workload] [strategy]    what all rows share

    [[tables]]               may repeat; `where` is for the reader, `unknown`, `workload`, `strategy` add to those above
    columns = ["model", "cluster", "nodes", "tensor_parallel_size", …, "tokens_per_gpu_second"]
    rows = [["llama-2-7b", "dgx", 16, 1, …, 3760]]

Columns are fields of the contract by their names (`precision` is the workload's) or published figures of
`cost_models.published_runs.figures`. An empty string leaves a field out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final

from cost_models.published_runs.figures import FIGURES, measured_figures
from cost_models.strategy import COLUMNS
from cost_models.workload import Workload

CLUSTER_FIELDS: Final = frozenset({"nodes", "gpus_per_node", "gpu", "nvlink_domain_gpus"})
WORKLOAD_FIELDS: Final = frozenset(field.name for field in fields(Workload))
STRATEGY_FIELDS: Final = frozenset(COLUMNS) - WORKLOAD_FIELDS
LEFT_OUT: Final = ""


@dataclass(frozen=True)
class PublishedSource:
    """A paper, page or document, and the runs it reports."""

    name: str
    title: str
    citation: str
    address: str
    where: str
    seen: bool
    conversion: str
    records: tuple[dict[str, Any], ...]
    """RunRecords of the contract."""


@cache
def published_sources() -> tuple[PublishedSource, ...]:
    """All sources, by name."""
    entries = sorted(files(__package__).iterdir(), key=lambda entry: entry.name)
    return tuple(
        read_source(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8"))
        for entry in entries
        if entry.name.endswith(".toml")
    )


def published_runs(*, seen: bool | None = None) -> list[dict[str, Any]]:
    """RunRecords of all sources, or only of those whose runs the coefficients were (not) fitted on."""
    sources = [source for source in published_sources() if seen is None or source.seen == seen]
    return [record for source in sources for record in source.records]


def read_source(name: str, text: str) -> PublishedSource:
    """The source that a TOML text describes; raises ValueError for a table that does not fit together."""
    document = tomllib.loads(text)
    records: dict[str, dict[str, Any]] = {}
    for table in document["tables"]:
        for row in table["rows"]:
            record = _record(name, document, table, row)
            if record["key"] in records:
                raise ValueError(f"{name}: two rows {record['key']}")
            records[record["key"]] = record
    return PublishedSource(
        name=name,
        title=document["title"],
        citation=document["citation"],
        address=document["address"],
        where=document["where"],
        seen=document["seen"],
        conversion=document["conversion"],
        records=tuple(records.values()),
    )


def _record(name: str, document: Mapping[str, Any], table: Mapping[str, Any], row: list[Any]) -> dict[str, Any]:
    """One row as a RunRecord."""
    given = dict(zip(table["columns"], row, strict=True))
    if unexpected := set(given) - CLUSTER_FIELDS - WORKLOAD_FIELDS - STRATEGY_FIELDS - FIGURES - {"model", "cluster"}:
        raise ValueError(f"{name}: no field of the contract and no figure: {', '.join(sorted(unexpected))}")
    told = {column: value for column, value in given.items() if value != LEFT_OUT}
    fields_told = {column: value for column, value in told.items() if column not in FIGURES}
    shared = {part: document.get(part, {}) | table.get(part, {}) for part in ("workload", "strategy")}
    record: dict[str, Any] = {
        "key": f"{name}/{'-'.join(_word(value) for value in fields_told.values())}",
        "model": document.get("models", {}).get(told["model"], {"preset": told["model"]}),
        "cluster": document["clusters"][told["cluster"]] | _part(fields_told, CLUSTER_FIELDS),
        "workload": shared["workload"] | _part(fields_told, WORKLOAD_FIELDS),
        "strategy": shared["strategy"] | _part(fields_told, STRATEGY_FIELDS),
        "software": document.get("software", {}),
        "source": name,
        "source_address": document["address"],
        "family": document["family"],
        "model_name": told["model"],
        "unknown": [*document.get("unknown", ()), *table.get("unknown", ())],
    }
    figures = {column: value for column, value in told.items() if column in FIGURES}
    return record | {"measured": measured_figures(record, figures)}


def _part(told: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name in names}


def _word(value: Any) -> str:
    """A value as part of a key."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "+".join(_word(item) for item in value)
    if isinstance(value, dict):
        return "+".join(_word(item) for item in value.values())
    return str(value)
