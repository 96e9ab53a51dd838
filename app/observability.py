"""What operators see: request ids, access logs, Prometheus metrics, faults (answered without internals)."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import unexpected_response
from app.services.figures import Figures

log = structlog.get_logger("app.access")

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUANTILES: Final = (0.5, 0.9, 1.0)
UNMATCHED: Final = "(no route)"
SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Of every answer that does not bring its own."""


class Metrics:
    """The metrics of one application; each has its own registry, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "paraplan_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "paraplan_http_request_seconds",
            "Until the answer was complete.",
            ("method", "route"),
            registry=self.registry,
        )
        self.in_flight = Gauge("paraplan_http_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.estimates = Counter("paraplan_estimates", "Strategies scored by estimates.", registry=self.registry)
        self.searches = Counter("paraplan_searches_created", "Searches accepted.", registry=self.registry)
        self.refused_models = Counter(
            "paraplan_memory_models_refused",
            "Stored versions of the memory model that could not be loaded to serve.",
            registry=self.registry,
        )


class FiguresCollector(Collector):
    """Domain figures, read from the database when they are scraped: workers are other processes."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """No metrics at registration: the database need not be there yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Searches by status, jobs that wait, how long finished searches took; runs, trainings and the version that
        serves."""
        now = self._figures.read()
        searches = GaugeMetricFamily("paraplan_searches", "Searches by status.", labels=["status"])
        for status, count in now.searches.items():
            searches.add_metric([status], count)
        yield searches
        yield GaugeMetricFamily("paraplan_queue_depth", "Jobs that wait for a worker.", now.queue_depth)
        yield GaugeMetricFamily("paraplan_jobs_running", "Jobs that a worker holds.", now.running)
        seconds = GaugeMetricFamily(
            "paraplan_recent_search_seconds", "From request to result, of the latest searches.", labels=["quantile"]
        )
        if now.search_seconds:
            for quantile in QUANTILES:
                position = round(quantile * (len(now.search_seconds) - 1))
                seconds.add_metric([f"{quantile:g}"], now.search_seconds[position])
        yield seconds
        yield GaugeMetricFamily("paraplan_runs", "Measured runs that were logged.", now.runs)
        yield GaugeMetricFamily(
            "paraplan_runs_since_training", "Runs logged since the last training began.", now.runs_since_training
        )
        models = GaugeMetricFamily("paraplan_memory_models", "Versions of the memory model by state.", labels=["state"])
        for state, count in now.memory_models.items():
            models.add_metric([state], count)
        yield models
        yield _known("paraplan_memory_model_serving_version", "The version that serves.", now.serving_version)
        yield _known("paraplan_memory_model_training_seconds", "The last training took.", now.training_seconds)


def _known(name: str, description: str, value: float | None) -> GaugeMetricFamily:
    """A figure that has no sample while it is unknown."""
    return GaugeMetricFamily(name, description, value)


class Observed:
    """The outermost middleware: gives each request an id, logs and counts it, answers faults as a 500 problem."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything but HTTP through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        started = time.perf_counter()
        status = 500
        has_started = False

        async def observed_send(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                has_started, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            self._metrics.in_flight.inc()
            try:
                await self._app(scope, receive, observed_send)
            except Exception:
                log.exception("request_failed", method=scope["method"], path=scope["path"])
                if has_started:
                    raise
                await unexpected_response(scope["path"])(scope, receive, observed_send)
            finally:
                self._metrics.in_flight.dec()
                self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # The template, not the path: ids in metric labels would grow without bound.
        route = getattr(scope.get("route"), "path", UNMATCHED)
        method = scope["method"] if route != UNMATCHED else "ANY"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        log.info(
            "request", method=scope["method"], path=scope["path"], status=status, milliseconds=round(1000 * seconds, 1)
        )
