"""Running the HTTP server: who may listen where, and the worker beside it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import structlog
import uvicorn

from app.db import migrate
from app.db.session import DATABASE_AWAY, Database
from app.jobs.embedded import embedded_worker
from app.main import create_app
from app.services import api_keys
from app.services.learner import software
from app.services.serving_model import ServingModel
from app.settings import LOOPBACK_HOSTS, Settings

log = structlog.get_logger(__name__)


class CannotServe(Exception):
    """The service cannot start as it was asked to; the message says what to do."""


def serve(settings: Settings) -> None:
    """Serve until a signal says stop."""
    with _listening(settings) as (server, listener), _worker(settings):
        server.run(sockets=[listener])


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve in the background while the block runs; answers the service's address."""
    with _listening(settings) as (server, listener), _worker(settings):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True)
        thread.start()
        try:
            yield f"http://{settings.host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _worker(settings: Settings) -> AbstractContextManager[None]:
    return embedded_worker(settings) if settings.embedded_worker else nullcontext()


@contextmanager
def _listening(settings: Settings) -> Iterator[tuple[uvicorn.Server, socket.socket]]:
    _check_database(settings)
    with _bind(settings.host, settings.port) as listener:
        app = create_app(settings)
        threading.Thread(target=_prepare, args=(app.state.serving_model,), name="prepare", daemon=True).start()
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        yield uvicorn.Server(config), listener


def _prepare(serving_model: ServingModel) -> None:
    # Loading the first model takes seconds, most of them for scikit-learn; not those of the first who asks.
    software()
    try:
        serving_model.current()
    except DATABASE_AWAY:
        log.exception("prepare_failed")  # the requests will say so too


def _check_database(settings: Settings) -> None:
    database = Database(settings.database_url)
    try:
        migrate.require_current(database.engine)
        if settings.host not in LOOPBACK_HOSTS and not api_keys.any_key(database):
            raise CannotServe(
                f"Refusing to listen on {settings.host} without an API key: anyone who can reach it could use the "
                "service. Run: python -m app create-key NAME"
            )
    finally:
        database.dispose()


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise CannotServe(
            f"Cannot listen on {host}:{port}: {reason}. Is another service running there? Choose another port "
            "with --port or PARAPLAN_PORT."
        ) from error
