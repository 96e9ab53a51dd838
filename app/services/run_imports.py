"""Runs from files: tables, training logs and memory snapshots, completed by a context, logged all or none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from app.db.session import Database
from app.memory_snapshots import SnapshotRefused, inspect_snapshot
from app.run_logs.completion import complete, merged
from app.run_logs.errors import ImportRefused
from app.run_logs.facts import Facts, LoggedRun, Reading
from app.run_logs.formats import FORMATS, READERS, SNAPSHOT, TABLES, recognise
from app.run_logs.lines import log_lines, raw_lines
from app.run_logs.tables import MOST_ROWS, Row, read_csv, read_jsonl
from app.schemas.base import DEEPEST
from app.schemas.clusters import UNION_TAGS
from app.schemas.runs import RunRecord
from app.services.run_checks import RunKeyConflict, RunsNotLogged, RunsRefused
from app.services.runs import log_runs
from cost_models.errors import InvalidInput

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Imported:
    """Runs of a file that were logged."""

    ids: list[str]
    format: str
    runs: int
    assumptions: list[str]


def import_runs(
    database: Database, file: BinaryIO, *, format: str | None, context: str | None, every_stage: bool
) -> Imported:
    """Log the runs of an open file that can be read again from its begin.

    Raises InvalidInput or RunsRefused with everything that is wrong or missing, RunKeyConflict for a key that belongs
    to other content.
    """
    assumptions: list[str] = []
    if format is None:
        format = recognise(raw_lines(file))
        assumptions.append(f"format left out: recognised as {format}")
    elif format not in FORMATS:
        raise InvalidInput(("format",), "unknown_format", f"one of {', '.join(FORMATS)}")
    contexts = _contexts(context)
    try:
        if format in TABLES:
            return _import_table(database, file, format, contexts, assumptions)
        return _import_log(database, file, format, contexts, assumptions, every_stage=every_stage)
    except ImportRefused as refused:
        raise RunsRefused(refused.errors) from None


def _import_table(
    database: Database, file: BinaryIO, format: str, contexts: list[dict[str, Any]], assumptions: list[str]
) -> Imported:
    file.seek(0)
    rows = read_csv(raw_lines(file)) if format == "csv" else read_jsonl(raw_lines(file))
    given = _context_of_each(contexts, len(rows))
    errors: list[InvalidInput] = []
    records = []
    for row, context in zip(rows, given, strict=True):
        found: list[InvalidInput] = []
        records.append(merged(row.record, context, found) if context else row.record)
        errors += [InvalidInput(error.loc, error.code, row.message((), error.message)) for error in found]
    if errors:
        raise RunsRefused(errors)
    ids = _log(database, records, lambda index, loc, message: _at_row(rows[index], given[index], loc, message))
    return Imported(ids, format, len(rows), assumptions)


def _at_row(row: Row, context: Mapping[str, Any], loc: Loc, message: str) -> tuple[Loc, str]:
    """The place of a field: in the context where only that has it, else in the file."""
    if _holds(context, loc) and not _holds(row.record, loc):
        return ("context", *loc), message
    return row.place(loc), row.message(loc, message)


def _holds(record: Mapping[str, Any], loc: Loc) -> bool:
    """Whether a record has a field, or the value that the field would be in."""
    held: Any = record
    for name in loc:
        if not isinstance(held, Mapping):
            return True
        if name not in held:
            return False
        held = held[name]
    return True


def _import_log(
    database: Database,
    file: BinaryIO,
    format: str,
    contexts: list[dict[str, Any]],
    assumptions: list[str],
    *,
    every_stage: bool,
) -> Imported:
    runs = _snapshot(file) if format == SNAPSHOT else _log_file(file, format)
    given = _context_of_each(contexts, len(runs))
    if len(runs) > 1 and len(contexts) == 1 and contexts[0]:
        assumptions.append(f"the file holds {len(runs)} runs, and the one context was taken for each")
    records: list[dict[str, Any]] = []
    errors: list[InvalidInput] = []
    owners: list[int] = []
    for index, (run, context) in enumerate(zip(runs, given, strict=True)):
        prefix = f"run {index + 1} of the file: " if len(runs) > 1 else ""
        try:
            made = complete(run, context, every_stage=every_stage)
        except ImportRefused as refused:
            errors += [InvalidInput(error.loc, error.code, prefix + error.message) for error in refused.errors]
            continue
        records += made
        owners += [index] * len(made)
        assumptions += [prefix + note for note in run.notes]
        assumptions += [f"{prefix}peaks are those of pipeline stage {_stage(made[0])}"] if _stage(made[0]) else []
    if errors:
        raise RunsRefused(errors)
    sent = [(runs[owner], given[owner]) for owner in owners]
    ids = _log(database, _keyed(records, format), lambda index, loc, message: (_source(*sent[index], loc), message))
    return Imported(ids, format, len(runs), list(dict.fromkeys(assumptions)))


def _stage(record: Mapping[str, Any]) -> str:
    stage = record["measured"].get("pipeline_stage")
    return "" if stage is None else str(stage)


def _log_file(file: BinaryIO, format: str) -> list[LoggedRun]:
    file.seek(0)
    runs: list[LoggedRun] = []
    for run in READERS[format](log_lines(raw_lines(file))):
        runs.append(run)
        if len(runs) > MOST_ROWS:
            raise InvalidInput(("file",), "too_many_runs", f"more than {MOST_ROWS} runs; split the file")
    if not runs:
        message = f"no step, no memory and no failure of a run was found in it as a log of {format}"
        raise InvalidInput(("file",), "no_runs", message)
    return runs


def _snapshot(file: BinaryIO) -> list[LoggedRun]:
    """The peaks of a memory snapshot, of the rank that wrote it."""
    file.seek(0)
    try:
        report = inspect_snapshot(file)
    except SnapshotRefused as refused:
        raise InvalidInput(("file",), refused.code, refused.message) from None
    devices = [device for device in report["devices"] if device["events"]]
    if not devices:
        message = "holds no history, and so no peak: record it with torch.cuda.memory._record_memory_history"
        raise InvalidInput(("file",), "no_history", message)
    facts = Facts(out_of_memory=bool(report["out_of_memory"]))
    for device in devices:
        peaks = {f"{name}_gib": device[f"peak_{name}_gib"] for name in ("allocated", "reserved")}
        facts.peak(Reading(rank=None, **peaks))
        for note in device["notes"]:
            facts.note(note)
    facts.note("peaks are those of the recorded history; put the rank's stage into context.measured.pipeline_stage")
    return [facts.run()]


def _keyed(records: list[dict[str, Any]], format: str) -> list[dict[str, Any]]:
    """The records with where they come from; a key that the context gives for all of them is told apart."""
    keyed = []
    for index, record in enumerate(records):
        software = record.get("software")
        logged = {"log_format": format} | software if isinstance(software, dict) else {"log_format": format}
        made = record | {"software": logged}
        if len(records) > 1 and isinstance(record.get("key"), str):
            made["key"] = f"{record['key']}/{index}"
        keyed.append(made)
    return keyed


def _source(run: LoggedRun, context: Mapping[str, Any], loc: Loc) -> Loc:
    """The place of a field of a record: in the file where the log said it or it was measured, else in the context."""
    section, name = (*loc, None, None)[:2]
    if section == "measured":
        given = context.get("measured")
        logged = not isinstance(given, Mapping) or name not in given
    else:
        logged = name in run.sections.get(str(section), {})
    return ("file" if logged else "context", *loc)


def _log(database: Database, records: Sequence[Mapping[str, Any]], place: Any) -> list[str]:
    """Log records; errors are moved from the index of a record to where `place` says that it stands."""
    try:
        return log_runs(database, list(records), most=MOST_ROWS)
    except RunsNotLogged as refused:
        # What is wrong with a context is so once, not for each run.
        moved: dict[tuple[Loc, str, str], InvalidInput] = {}
        for error in refused.errors:
            index, *loc = error.loc
            where, message = place(index, tuple(part for part in loc if part not in UNION_TAGS), error.message)
            moved[where, error.code, message] = InvalidInput(where, error.code, message)
        kind = RunKeyConflict if isinstance(refused, RunKeyConflict) else RunsRefused
        raise kind(list(moved.values())) from None


def _contexts(text: str | None) -> list[dict[str, Any]]:
    """The contexts that were sent: one for all runs, or a list of one for each."""
    if text is None or not text.strip():
        return [{}]
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number that is none, or too deep"
        raise InvalidInput(("context",), "json_invalid", f"not valid JSON: {reason}") from None
    listed = given if isinstance(given, list) else [given]
    for index, context in enumerate(listed):
        place: Loc = ("context", index) if isinstance(given, list) else ("context",)
        if not isinstance(context, dict):
            raise InvalidInput(place, "object_type", "must be a RunRecord without what the file says, an object")
        for name in context:
            if name not in RunRecord.model_fields:
                raise InvalidInput((*place, name[:60]), "extra_forbidden", "a RunRecord has no such field")
        if _depth(context) > DEEPEST:
            raise InvalidInput(place, "too_deep", "objects and lists are nested too deeply")
    if not listed:
        raise InvalidInput(("context",), "too_short", "an empty list")
    return listed


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(item, dict | list):
            waiting += [(part, depth + 1) for part in (item.values() if isinstance(item, dict) else item)]
    return deepest


def _context_of_each(contexts: list[dict[str, Any]], runs: int) -> list[dict[str, Any]]:
    if len(contexts) == 1:
        return contexts * runs
    if len(contexts) != runs:
        message = f"{len(contexts)} contexts, but the file holds {runs} run(s)"
        raise InvalidInput(("context",), "wrong_length", message)
    return contexts


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
