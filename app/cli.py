"""The command line: `python -m app COMMAND`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from app.logs import configure_logging
from app.settings import Settings

cli = typer.Typer(help="Parallel strategies for large-model training.", no_args_is_help=True, add_completion=False)

Host = Annotated[str | None, typer.Option(help="Address to listen on; left out: PARAPLAN_HOST, 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port; left out: PARAPLAN_PORT, 8000.")]


@cli.command()
def serve(host: Host = None, port: Port = None) -> None:
    """Serve the API, with a worker process beside it unless PARAPLAN_EMBEDDED_WORKER=false."""
    from app.db.migrate import SchemaMismatch
    from app.serving import CannotServe
    from app.serving import serve as run_server

    settings = _settings(host=host, port=port)
    configure_logging(settings)
    try:
        run_server(settings)
    except (CannotServe, SchemaMismatch) as error:
        _fail(str(error))


@cli.command()
def worker() -> None:
    """Work on jobs until stopped; one job at a time, so start as many workers as there are cores to spare."""
    from app.db.migrate import SchemaMismatch
    from app.jobs.worker import new_worker_name, run_worker
    from app.services.search_solver import solve_request

    settings = _settings()
    configure_logging(settings)
    try:
        run_worker(settings, solve_request, name=new_worker_name())
    except SchemaMismatch as error:
        _fail(str(error))


@cli.command()
def migrate() -> None:
    """Bring the database to this version's schema."""
    from app.db.migrate import SchemaNewer, upgrade
    from app.db.session import Database

    database = Database(_settings().database_url)
    try:
        upgrade(database.engine)
    except SchemaNewer as error:
        _fail(str(error))
    finally:
        database.dispose()


@cli.command()
def retrain() -> None:
    """Train a memory model in this process on the published and all logged runs; show its report and the decision."""
    from app.db.migrate import SchemaMismatch, require_current
    from app.db.session import Database
    from app.jobs.by_hand import TrainingFailed, train_here
    from app.services.learner import train_on_runs
    from app.training_table import show_training

    settings = _settings(log_level="warning")
    configure_logging(settings)
    console = Console()
    database = Database(settings.database_url)
    try:
        require_current(database.engine)
        with console.status("Training on all runs"):
            model = train_here(database, settings, train_on_runs)
    except (SchemaMismatch, TrainingFailed) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("Stopped; the training is left to the workers.")
    finally:
        database.dispose()
    show_training(model.report or {}, console)
    decision = model.decision or {}
    console.print(f"Version {model.version} {'serves now' if decision['promote'] else 'is kept, but does not serve'}:")
    for reason in decision["reasons"]:
        console.print(f"  {reason}", highlight=False)


@cli.command()
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.", max=255)],
    scope: Annotated[list[str] | None, typer.Option(help="read, write; left out: both.")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="How long it is valid; left out: for ever.")] = None,
) -> None:
    """Create an API key and print it; it cannot be shown again."""
    from app.db.session import Database
    from app.services import api_keys

    scopes = scope or list(api_keys.SCOPES)
    unknown = sorted(set(scopes) - set(api_keys.SCOPES))
    if unknown:
        _fail(f"Unknown scope {', '.join(unknown)}; one of {', '.join(api_keys.SCOPES)}.")
    database = Database(_settings().database_url)
    typer.echo(api_keys.create_key(database, name, scopes, None if days is None else timedelta(days=days)))
    database.dispose()


@cli.command()
def openapi() -> None:
    """Print the OpenAPI description of the service."""
    from app.main import create_app

    typer.echo(json.dumps(create_app(_settings()).openapi(), indent=1))


@cli.command()
def run_example(
    request: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A SearchRequest as a JSON file.")],
    once: Annotated[bool, typer.Option(envvar="ONCE", help="End after the answer.")] = False,
    port: Port = None,
) -> None:
    """Start the service, send it a search, show the ranked plans, and keep serving until Ctrl-C."""
    from app.example_run import ExampleFailed, run
    from app.serving import CannotServe

    # Beside a progress display only what goes wrong is worth a line.
    settings = _settings(host="127.0.0.1", port=port, log_level="warning")
    configure_logging(settings)
    try:
        run(settings, request, once=once)
    except (CannotServe, ExampleFailed) as error:
        _fail(str(error))


def _settings(**given: Any) -> Settings:
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        _fail(f"Bad settings (environment variables PARAPLAN_…): {error}")


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(message, style="red", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
