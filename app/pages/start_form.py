"""The form of the start page: from what was typed to a SearchRequest, and from its errors back to the inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pydantic import ValidationError

from app.pages.access import Values
from app.schemas import examples
from app.schemas.clusters import UNION_TAGS
from app.schemas.parsing import Format, ParseRequest
from app.schemas.searches import Objective, SearchRequest
from app.schemas.strategies import Framework
from app.services.parsing import parse_strategy
from app.services.problems import search_problem
from cost_models.errors import InvalidInput
from cost_models.workload import Optimizer, Precision

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "objective": get_args(Objective),
    "frameworks": get_args(Framework),
    "current_format": get_args(Format),
}
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "model_preset": ("model", "preset"),
    "nodes": ("cluster", "nodes"),
    "cluster_preset": ("cluster", "preset"),
    "sequence_length": ("workload", "sequence_length"),
    "global_batch_size": ("workload", "global_batch_size"),
    "precision": ("workload", "precision"),
    "optimizer": ("workload", "optimizer"),
    "training_tokens": ("workload", "training_tokens"),
    "objective": ("objective",),
    "memory_confidence": ("memory_confidence",),
    "deadline_days": ("deadline_days",),
    "seconds": ("budget", "seconds"),
    "plans": ("plans",),
}
"""Where inputs with one value go in a SearchRequest."""
NUMBERS: Final = frozenset(PLACES) - {"model_preset", "cluster_preset", "precision", "optimizer", "objective"}
PASTED: Final[Mapping[str, tuple[str, ...]]] = {"hf_config": ("model", "hf_config"), "cluster_json": ("cluster",)}
"""JSON texts; they take the place of the presets."""
ERROR_PLACES: Final[Mapping[tuple[str, ...], str]] = {
    **{place: name for name, place in PLACES.items()},
    ("model",): "model_preset",
    ("model", "hf_config"): "hf_config",
    ("cluster",): "cluster_preset",
    ("frameworks",): "frameworks",
    ("labels",): "labels",
    ("current",): "current_text",
    ("content",): "current_text",
    ("format",): "current_format",
}
TEXTS: Final = (*PLACES, *PASTED, "labels", "current_format", "current_text")


class FormRefused(Exception):
    """Some inputs are wrong: what is wrong, by input; under an empty name what belongs to none."""

    def __init__(self, errors: Mapping[str, list[str]]) -> None:
        super().__init__("the form breaks a rule")
        self.errors = errors


@dataclass(frozen=True)
class StartForm:
    """What is in the inputs, as it was typed."""

    texts: Mapping[str, str]
    frameworks: tuple[str, ...] = ()
    """Ticked; none: the usual ones."""


@dataclass(frozen=True)
class ReadBack:
    """What was read of a pasted launch file."""

    strategy: Mapping[str, Any]
    workload: Mapping[str, Any]
    unmapped: list[str] = field(default_factory=list)


def fresh_form() -> StartForm:
    """The form as it is first shown: the first example of the documentation."""
    texts = dict.fromkeys(TEXTS, "") | {"current_format": "deepspeed"}
    for name, place in PLACES.items():
        if place[0] in ("model", "cluster") or name in ("sequence_length", "global_batch_size"):
            texts[name] = str(examples.SEARCH[place[0]][place[1]])
    return StartForm(texts)


def typed_form(values: Values) -> StartForm:
    """The form as it was sent."""
    texts = {name: values.get(name, [""])[0].replace("\r\n", "\n").strip() for name in TEXTS}
    return StartForm(texts, tuple(values.get("frameworks", ())))


def search_request(form: StartForm) -> SearchRequest:
    """What the form asks for; raises FormRefused with everything that is wrong."""
    errors: dict[str, list[str]] = {}
    body = _body(form, errors)
    try:
        request = SearchRequest.model_validate_json(json.dumps(body))
        if not errors:
            search_problem(request)
    except (ValidationError, InvalidInput) as error:
        errors |= _by_input(error, form)
    if errors:
        raise FormRefused(errors)
    return request


def _body(form: StartForm, errors: dict[str, list[str]]) -> dict[str, Any]:
    """The form as a SearchRequest in JSON; what cannot be read at all is left out and added to `errors`."""
    body: dict[str, Any] = {"workload": {}}
    for name, place in PLACES.items():
        if (text := form.texts[name]) != "":
            _put(body, place, _number(text) if name in NUMBERS else text)
    for name, place in PASTED.items():
        if form.texts[name] != "":
            _paste(body, name, place, form.texts[name], errors)
    if form.frameworks:
        body["frameworks"] = list(form.frameworks)
    if form.texts["labels"]:
        body["labels"] = _labels(form.texts["labels"])
    if form.texts["current_text"]:
        try:
            body["current"] = dict(_parsed(form).strategy)
        except (ValidationError, InvalidInput) as error:
            errors |= _by_input(error, form)
    return body


def read_back(form: StartForm) -> tuple[StartForm, ReadBack]:
    """What the pasted launch file says, and the form with what it says of the workload; raises FormRefused."""
    try:
        read = _parsed(form)
    except (ValidationError, InvalidInput) as error:
        raise FormRefused(_by_input(error, form)) from error
    said = {name: str(value) for name, value in read.workload.items() if name in PLACES and value is not None}
    return StartForm({**form.texts, **said}, form.frameworks), read


def _parsed(form: StartForm) -> ReadBack:
    body = {"format": form.texts["current_format"], "content": form.texts["current_text"]}
    parsed = parse_strategy(ParseRequest.model_validate_json(json.dumps(body)))
    return ReadBack(parsed["strategy"], parsed["workload"], parsed["unmapped"])


def _paste(body: dict[str, Any], name: str, place: tuple[str, ...], text: str, errors: dict[str, list[str]]) -> None:
    try:
        pasted = json.loads(text)
    except (ValueError, RecursionError) as error:
        errors[name] = [f"not valid JSON: {error}"]
        return
    if not isinstance(pasted, dict):
        errors[name] = ["not a JSON object: it begins with { and ends with }"]
        return
    body.pop(place[0], None)
    _put(body, place, pasted)


def _put(body: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    *parts, last = place
    for part in parts:
        body = body.setdefault(part, {})
    body[last] = value


def _number(text: str) -> int | float | str:
    """The number, or the text as it is: the schema says what is wrong with it."""
    plain = text.replace(",", "").replace("_", "").replace(" ", "")
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return text


def _labels(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.replace("\n", ",").split(",") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _by_input(error: ValidationError | InvalidInput, form: StartForm) -> dict[str, list[str]]:
    if isinstance(error, InvalidInput):
        found = [(tuple(map(str, error.loc)), error.message)]
    else:
        found = [(tuple(map(str, item["loc"])), item["msg"]) for item in error.errors(include_url=False)]
    errors: dict[str, list[str]] = {}
    for place, message in found:
        name, rest = _input_of(tuple(part for part in place if part not in UNION_TAGS), form)
        errors.setdefault(name, []).append(f"{'.'.join(rest)}: {message}" if rest else message)
    return errors


def _input_of(place: tuple[str, ...], form: StartForm) -> tuple[str, tuple[str, ...]]:
    """The input that a place of the request came from, and what remains of the place inside it."""
    if place[:1] == ("model",) and form.texts["hf_config"]:
        return "hf_config", place[2:]
    if place[:1] == ("cluster",) and form.texts["cluster_json"]:
        return "cluster_json", place[1:]
    for length in range(len(place), 0, -1):
        if (name := ERROR_PLACES.get(place[:length])) is not None:
            return name, place[length:]
    return "", place
