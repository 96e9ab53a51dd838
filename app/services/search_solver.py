"""Runs the search that a stored request asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.schemas.searches import SearchRequest
from app.services.problems import search_problem
from app.services.search_runs import Report
from app.services.serving_model import Served
from search import run_search
from search.measured_candidates import build_pool
from search.result import SearchResult, Trial


def solve_request(
    request: Mapping[str, Any],
    *,
    past: Sequence[Trial],
    report: Report,
    cancelled: Callable[[], bool],
    served: Served,
) -> SearchResult:
    """Validate the request again, as another version may have stored it, and run it."""
    asked = SearchRequest.model_validate_json(json.dumps(request))
    resolved = search_problem(asked)
    problem = replace(resolved.problem, corrections=served.corrections)
    result = run_search(problem, past=past, report=report, cancelled=cancelled, clock=time.monotonic)
    if resolved.measured_trials is not None:
        pool = build_pool(problem, result.plans, cancelled=cancelled, clock=time.monotonic)
        result = replace(result, measured={"pool": pool.as_dict(), "budget_trials": resolved.measured_trials})
    return replace(result, assumptions=(*resolved.assumptions, *served.assumptions(asked.learned), *result.assumptions))
