"""A log's run and what its uploader adds: together a RunRecord, or everything that is missing or contradicts, by name.

Nothing is guessed. What decides memory and time and is in neither is asked for; a field of the strategy or the workload
that nobody knows may be listed in `context.unknown` instead, and then has the contract's default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.run_logs.errors import ImportRefused
from app.run_logs.facts import LoggedRun, Path
from app.run_logs.model_agreement import architecture_of, disagreements
from app.run_logs.stages import measured_by_stage
from cost_models.catalog.hardware import cluster_preset
from cost_models.errors import InvalidInput

SECTIONS: Final = ("model", "cluster", "workload", "strategy", "measured", "software")
CLUSTER: Final[tuple[Path, ...]] = (("cluster", "nodes"), ("cluster", "gpus_per_node"), ("cluster", "gpu"))
NEEDED: Final[tuple[Path, ...]] = (
    *CLUSTER,
    ("workload", "sequence_length"),
    ("workload", "global_batch_size"),
    ("workload", "precision"),
    ("strategy", "framework"),
    ("strategy", "tensor_parallel_size"),
    ("strategy", "pipeline_parallel_size"),
    ("strategy", "zero_stage"),
    ("strategy", "micro_batch_size"),
    ("strategy", "activation_checkpointing"),
)
"""What a run of any log must have said by somebody."""
ARCHITECTURE: Final = (
    "layers",
    "hidden_size",
    "attention_heads",
    "key_value_heads",
    "ffn_hidden_size",
    "gated_mlp",
    "vocab_size",
    "tied_embeddings",
)
MODEL_SOURCES: Final = ("preset", "hf_config", "architecture")
REQUIRED_BY_CONTRACT: Final = frozenset({*CLUSTER, ("workload", "global_batch_size"), ("strategy", "framework")})
"""What `unknown` cannot excuse."""


def complete(run: LoggedRun, context: Mapping[str, Any], *, every_stage: bool) -> list[dict[str, Any]]:
    """The run's RunRecords: one, of its fullest stage; with `every_stage` one for each stage that the log tells.

    `context` is a RunRecord without what the log says. Raises ImportRefused with everything that is wrong.
    """
    errors: list[InvalidInput] = []
    record = merged(run.sections, context, errors)
    _settle_preset(run, context, record, errors)
    _settle_model(run, context, record, errors)
    _settle_gpus(run, record, errors)
    strategy = record.setdefault("strategy", {})
    measured = measured_by_stage(run, strategy.get("pipeline_parallel_size"), _gpus(record))
    if not every_stage or not measured:
        measured = measured[:1] or [{}]
    records = []
    for figures in measured:
        section = dict(figures)
        if isinstance(context.get("measured"), Mapping):
            _merge_section(section, context["measured"], ("measured",), errors)
        records.append({**record, "measured": section})
    errors.extend(_missing(run, records[0], context))
    if errors:
        raise ImportRefused(errors)
    return records


def merged(sections: Mapping[str, Any], context: Mapping[str, Any], errors: list[InvalidInput]) -> dict[str, Any]:
    """`sections` and `context` together; where both say something else, an error that names both."""
    record: dict[str, Any] = {name: value for name, value in context.items() if name not in SECTIONS}
    for name, value in sections.items():
        if name not in SECTIONS:
            if name in record and record[name] != value:
                errors.append(_contradiction((name,), value, record[name]))
            record[name] = value
    for name in SECTIONS:
        given = context.get(name)
        if given is not None and not isinstance(given, Mapping):
            errors.append(InvalidInput(("context", name), "object_type", "must be an object"))
            continue
        known = sections.get(name, {})
        if not isinstance(known, Mapping):
            record[name] = known
            continue
        section = _copied(known)
        _merge_section(section, given or {}, (name,), errors)
        if section:
            record[name] = section
    return record


def _merge_section(section: dict[str, Any], given: Mapping[str, Any], path: Path, errors: list[InvalidInput]) -> None:
    for name, value in given.items():
        known = section.get(name)
        if value is None:
            continue
        if isinstance(known, dict) and isinstance(value, Mapping):
            _merge_section(known, value, (*path, name), errors)
        elif known is None:
            section[name] = value
        elif not _same(known, value):
            errors.append(_contradiction((*path, name), known, value))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other if isinstance(one, int) and isinstance(other, int) else _close(one, other)
    return bool(one == other)


def _close(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=1e-9)
    except OverflowError:
        return False


def _contradiction(path: Path, logged: object, given: object) -> InvalidInput:
    message = f"the file says {_shown(logged)}, the context {_shown(given)}"
    return InvalidInput(("context", *path), "contradiction", message)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a huge number"
    return text if len(text) <= 200 else text[:200] + "…"


def _settle_model(
    run: LoggedRun, context: Mapping[str, Any], record: dict[str, Any], errors: list[InvalidInput]
) -> None:
    """A model that the context gives whole stands for the log's dimensions, if it agrees with them."""
    given = context.get("model")
    logged = run.sections.get("model", {})
    if not isinstance(given, Mapping) or not logged:
        return
    whole = next((source for source in ("preset", "hf_config") if given.get(source) is not None), None)
    if whole is None and "architecture" in logged:
        return
    sequence = record.get("workload", {}).get("sequence_length")
    ours, theirs = architecture_of(logged, sequence), architecture_of(given, sequence)
    if theirs is None:
        return
    errors.extend(_contradiction(("model", name), says, means) for name, says, means in disagreements(ours, theirs))
    record["model"] = dict(given)


def _settle_preset(
    run: LoggedRun, context: Mapping[str, Any], record: dict[str, Any], errors: list[InvalidInput]
) -> None:
    """A cluster preset has GPUs and their number in itself: the log's must agree, and are not repeated."""
    given = context.get("cluster")
    if not isinstance(given, Mapping) or not isinstance(given.get("preset"), str):
        return
    try:
        fields = cluster_preset(given["preset"]).fields
    except InvalidInput:
        return
    for name in ("gpus_per_node", "gpu"):
        logged = run.sections.get("cluster", {}).get(name)
        if logged is not None and name not in given:
            record["cluster"].pop(name, None)
            if logged != fields.get(name):
                errors.append(_contradiction(("cluster", "preset"), f"{name} {logged}", given["preset"]))


def _gpus(record: Mapping[str, Any]) -> int | None:
    cluster = record.get("cluster")
    if not isinstance(cluster, Mapping):
        return None
    nodes, each = cluster.get("nodes"), _gpus_per_node(cluster)
    return nodes * each if isinstance(nodes, int) and _count(nodes) and each else None


def _gpus_per_node(cluster: Mapping[str, Any]) -> int | None:
    if isinstance(cluster.get("preset"), str):
        try:
            return int(cluster_preset(cluster["preset"]).fields["gpus_per_node"])
        except InvalidInput:
            return None
    each = cluster.get("gpus_per_node")
    return each if _count(each) else None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**6


def _settle_gpus(run: LoggedRun, record: dict[str, Any], errors: list[InvalidInput]) -> None:
    """All GPUs that the log tells, against nodes × GPUs a node; one of these follows from the other."""
    if run.gpus is None:
        return
    cluster = record.setdefault("cluster", {})
    if run.gpus == 1 and "preset" not in cluster:
        cluster.setdefault("nodes", 1)
        cluster.setdefault("gpus_per_node", 1)
    nodes, each = cluster.get("nodes"), _gpus_per_node(cluster)
    if each and nodes is None:
        if run.gpus % each:
            message = f"the log says {run.gpus} GPUs in all, which {each} a node do not divide"
            errors.append(InvalidInput(("context", "cluster", "gpus_per_node"), "contradiction", message))
        else:
            cluster["nodes"] = run.gpus // each
    elif _count(nodes) and each is None and "preset" not in cluster:
        if run.gpus % nodes:
            message = f"the log says {run.gpus} GPUs in all, which {nodes} nodes do not divide"
            errors.append(InvalidInput(("context", "cluster", "nodes"), "contradiction", message))
        else:
            cluster["gpus_per_node"] = run.gpus // nodes
    elif _count(nodes) and each and nodes * each != run.gpus:
        message = f"the log says {run.gpus} GPUs in all, the cluster has {nodes} × {each}"
        errors.append(InvalidInput(("context", "cluster", "nodes"), "contradiction", message))


def _missing(run: LoggedRun, record: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[InvalidInput]:
    unknown = context.get("unknown")
    excused = {str(name).rpartition(".")[2] for name in unknown} if isinstance(unknown, list) else set()
    yield from _missing_model(run, record.get("model"))
    preset = isinstance(record.get("cluster"), Mapping) and "preset" in record["cluster"]
    for path in (*NEEDED, *run.asks):
        section, name = path
        if preset and path in CLUSTER[1:]:
            continue
        if name in excused and path not in REQUIRED_BY_CONTRACT:
            continue
        held = record.get(section)
        if not isinstance(held, Mapping) or held.get(name) is None:
            hint = f" (it says {run.gpus} GPUs in all)" if run.gpus and path in CLUSTER[:2] else ""
            device = run.sections.get("software", {}).get("device")
            if device and path == ("cluster", "gpu"):
                hint = f" (it names {device!r}, whose memory is not that of a GPU of the catalog by that name)"
            yield _ask(run, path, hint + ("" if path in REQUIRED_BY_CONTRACT else _or_unknown(name)))
    if not record.get("measured"):
        message = (
            "the log tells neither a steady step time, nor a peak of training, nor that it ran out of memory; "
            "put what was measured into context.measured"
        )
        yield InvalidInput(("context", "measured"), "missing", message)


def _or_unknown(name: str) -> str:
    return f', or list "{name}" in context.unknown if nobody knows'


def _ask(run: LoggedRun, path: Path, hint: str) -> InvalidInput:
    reason = run.doubts.get(path, "the log does not say it")
    return InvalidInput(("context", *path), "missing", f"{reason}; put it into context.{'.'.join(path)}{hint}")


def _missing_model(run: LoggedRun, model: object) -> Iterator[InvalidInput]:
    if not isinstance(model, Mapping) or not any(model.get(source) is not None for source in MODEL_SOURCES):
        message = "the log does not say it; put a preset, hf_config or architecture into context.model"
        yield InvalidInput(("context", "model"), "missing", message)
        return
    architecture = model.get("architecture")
    if isinstance(architecture, Mapping):
        for name in ARCHITECTURE:
            if architecture.get(name) is None:
                yield _ask(run, ("model", "architecture", name), "")


def _copied(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in section.items()}
