"""The report of a search that has ended: what is stored, and what is worked out anew for its first plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.db.models import Search, Status
from app.report.page import Page, render
from app.report.parts import Launch, LaunchFileText, Section
from app.report.schedule import schedule_section
from app.report.view import Ended, report_of
from app.services.launches import SearchNotEnded, launch_files, planned_problem
from app.services.problems import MEMORY_CONFIDENCE
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns
from cost_models.time.stage_passes import stage_passes
from search.launch.job import NotExpressible
from search.launch.megatron_arguments import micro_batch_group
from search.launch.targets import TARGETS
from search.pipeline_timeline import StageTimes, timeline

BUSY = ("forward", "backward", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
"""Parts of the step that the slowest stage spends on its micro-batches."""


def report_page(search: Search, measured: Mapping[str, Any] | None) -> Page:
    """`measured`: where a measured search stands now. Raises SearchNotEnded."""
    if search.finished_at is None:
        raise SearchNotEnded(search)
    result = None if search.result is None else {**search.result, "measured": measured}
    plans = [] if result is None else result["plans"]
    confidence = search.request.get("memory_confidence")
    return render(
        report_of(
            Ended(
                id=search.id,
                status=Status(search.status).value,
                created_at=f"{search.created_at:%Y-%m-%d %H:%M:%S} UTC",
                finished_at=f"{search.finished_at:%Y-%m-%d %H:%M:%S} UTC",
                labels=search.labels,
                request=search.request,
                confidence=MEMORY_CONFIDENCE if confidence is None else confidence,
                error=search.error,
                result=result,
                schedule=_schedule(search, plans[0]) if plans else None,
                launches=_launches(search, plans[0]) if plans else (),
            )
        )
    )


def _schedule(search: Search, plan: dict[str, Any]) -> Section:
    """The plan's pipeline, with passes as long as its step time says."""
    problem, strategy = planned_problem(search, plan), plan["strategy"]
    table = resolve_strategies(problem, partial_columns([strategy])).table
    micro_batches = int(problem.micro_batches(table)[0])
    passes = stage_passes(problem, table)
    spent = sum(plan["time"]["breakdown_seconds"][part] for part in BUSY) / micro_batches
    # What measured runs taught, and the ceiling of the hardware, stretch all passes alike.
    scaled = passes.scaled(spent / float(passes.busy.max()))
    columns = (scaled.forward.tolist(), scaled.input_gradient.tolist(), scaled.weight_gradient.tolist())
    stages = [StageTimes(*times) for times in zip(*columns, strict=True)]
    played = timeline(
        strategy["pipeline_schedule"],
        stages,
        chunks_per_stage=strategy["virtual_pipeline_size"],
        micro_batches=micro_batches,
        group=_group(strategy, micro_batches),
    )
    return schedule_section(plan, played)


def _group(strategy: Mapping[str, Any], micro_batches: int) -> int:
    """Micro-batches that a chunk takes in a row under interleaving."""
    stages = int(strategy["pipeline_parallel_size"])
    if strategy["pipeline_schedule"] == "interleaved" and strategy["framework"] == "fsdp2":
        # Rounds of equal size: torch.distributed.pipelining's ScheduleInterleaved1F1B.
        return micro_batches // (micro_batches // stages)
    if strategy["pipeline_schedule"] == "interleaved":
        return micro_batch_group(micro_batches, stages)
    return stages


def _launches(search: Search, plan: dict[str, Any]) -> list[Launch]:
    return [_launch(search, plan["rank"], target) for target in TARGETS[plan["strategy"]["framework"]]]


def _launch(search: Search, rank: int, target: str) -> Launch:
    try:
        files = launch_files(search, rank, target)
    except NotExpressible as refused:
        return Launch(target, refusals=list(refused.reasons.items()))
    return Launch(
        target,
        command=files.command,
        files=[LaunchFileText(file.path, file.content) for file in files.files],
        environment=list(files.environment.items()),
        notes=files.notes,
    )
