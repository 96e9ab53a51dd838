"""Fixtures that every test may use."""

import structlog
from hypothesis import settings

pytest_plugins = ["tests.databases", "tests.http_service"]

# A slow machine is no failure: properties have no time limit.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    # The tracebacks of the default configuration print every local variable, which takes seconds.
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )
