"""Databases for tests: a fresh, migrated one for each test that asks, SQLite and PostgreSQL alike."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from app.db import migrate
from app.db.session import Database, build_engine

ENGINES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


class PostgresServer:
    """A throw-away server on a socket of its own, started from the machine's binaries; it answers all who reach one of
    its `addresses` too."""

    def __init__(self, binaries: Path, *, addresses: Sequence[str] = (), port: int = 5432) -> None:
        self._binaries = binaries
        self._port = port
        self._directory = Path(tempfile.mkdtemp(prefix="paraplan-pg-"))
        self._data = self._directory / "data"
        # PostgreSQL refuses to run as root; containers run tests as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        options = ["--username=paraplan", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run("initdb", f"--pgdata={self._data}", *options)
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")
        self._settings = [f"listen_addresses={','.join(addresses)}", f"port={port}", "fsync=off"]
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        settings = [part for setting in self._settings for part in ("-c", setting)]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._data, "-k", self._directory, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self._directory,
        )
        self._await_answer()

    def crash(self) -> None:
        """End it and every connection at once, as `pg_ctl stop -m immediate` does."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://paraplan@/{database}?host={self._directory}&port={self._port}"

    def create(self, database: str, template: str = "template1") -> str:
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._directory)

    def _dsn(self, database: str) -> str:
        return self.url(database).replace("+psycopg", "")

    def _run(self, binary: str, *arguments: str) -> None:
        subprocess.run(
            [self._binaries / binary, *arguments], user=self._user, cwd=self._directory, check=True, capture_output=True
        )

    def _await_answer(self) -> None:
        for _ in range(600):
            try:
                psycopg.connect(self._dsn("postgres")).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("the PostgreSQL server did not start")


def skip_or_fail(reason: str) -> None:
    """Skip a test whose service is missing; where services are required, fail it."""
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"{reason}, and REQUIRE_SERVICES=1")
    pytest.skip(reason)


def postgres_binaries() -> Path | None:
    """Where initdb and postgres are: on the path, or where Debian puts them; the newest version."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    binaries = postgres_binaries()
    if binaries is None:
        skip_or_fail("no PostgreSQL server binary on this machine")
        raise AssertionError
    server = PostgresServer(binaries)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "paraplan.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    _migrate(postgres_server.create("migrated"))
    return "migrated"


@pytest.fixture(params=ENGINES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, once on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"empty-{uuid.uuid4()}"
    yield server.create(name)
    server.drop(name)


@pytest.fixture(params=ENGINES)
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of the test's own, once on each engine."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'paraplan.db')}"


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest) -> Iterator[str]:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"test-{uuid.uuid4()}"
    yield server.create(name, template=request.getfixturevalue("migrated_postgres"))
    server.drop(name)


@pytest.fixture
def open_database() -> Iterator[Callable[[str], Database]]:
    """Databases by URL, closed after the test."""
    opened: list[Database] = []

    def open_(url: str) -> Database:
        opened.append(Database(url))
        return opened[-1]

    yield open_
    for database in opened:
        database.dispose()


@pytest.fixture
def database(database_url: str, open_database: Callable[[str], Database]) -> Database:
    """A migrated database of the test's own, once on each engine."""
    return open_database(database_url)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A throw-away Redis on a socket of its own."""
    binary = shutil.which("redis-server")
    if binary is None:
        skip_or_fail("no Redis server binary on this machine")
    with tempfile.TemporaryDirectory(prefix="paraplan-redis-") as directory:
        path = Path(directory) / "redis.sock"
        process = subprocess.Popen(
            [str(binary), "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        while not path.exists():
            if process.poll() is not None:
                raise RuntimeError("the Redis server did not start")
            time.sleep(0.02)
        yield f"unix://{path}"
        process.terminate()
        process.wait()


def _migrate(url: str) -> None:
    engine = build_engine(url)
    migrate.upgrade(engine)
    engine.dispose()
