"""Hosts of a test, and what runs on them: PostgreSQL and Redis that can crash, servers and workers that can be killed.

Each host is a network namespace on a bridge of the test's own. Where the rights or the tools for that are missing, all
of them are this machine, and only what needs a network to cut is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from app.db.session import Database
from tests.databases import PostgresServer, postgres_binaries, skip_or_fail
from tests.integration.workers import REAL_WORKER, wait_for

HOSTS = 5


@dataclass(frozen=True)
class Host:
    """Where processes run."""

    address: str
    namespace: str | None
    """None: on this machine itself."""
    link: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Python with these arguments, on this host."""
        inside = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        return [*inside, sys.executable, *arguments]

    def unplug(self) -> None:
        """Cut the host off: nothing that is sent arrives, and nobody is told."""
        _run(f"ip link set {self.link} down")

    def plug_in(self) -> None:
        """Connect it again."""
        _run(f"ip link set {self.link} up")


class Network:
    """Hosts, and the address at which they reach this machine."""

    def __init__(self) -> None:
        self._name = f"pp{os.getpid() % 100_000}"
        self.hosts: list[Host] = []
        self.is_real = _try(f"ip link add {self._name} type bridge")
        if not self.is_real:
            self.address = "127.0.0.1"
            self.hosts = [Host(self.address, None, "") for _ in range(HOSTS)]
            return
        subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.address = f"{subnet}.1"
        _run(f"ip addr add {self.address}/24 dev {self._name}", f"ip link set {self._name} up")
        for number in range(HOSTS):
            self.hosts.append(self._add(f"{subnet}.{number + 2}", number))

    def close(self) -> None:
        """Remove all of it."""
        if self.is_real:
            for host in self.hosts:
                _run(f"ip netns del {host.namespace}")
            _run(f"ip link del {self._name}")

    def _add(self, address: str, number: int) -> Host:
        host = Host(address, f"{self._name}-{number}", f"{self._name}v{number}")
        inside = f"ip -n {host.namespace}"
        _run(
            f"ip netns add {host.namespace}",
            f"ip link add {host.link} type veth peer name eth0 netns {host.namespace}",
            f"ip link set {host.link} master {self._name} up",
            f"{inside} addr add {address}/24 dev eth0",
            f"{inside} link set eth0 up",
            f"{inside} link set lo up",
        )
        return host


class RedisServer:
    """A throw-away Redis that keeps nothing."""

    def __init__(self, binary: str, address: str, port: int) -> None:
        self.url = f"redis://{address}:{port}/0"
        self._command = [binary, "--bind", address, "--port", str(port), "--protected-mode", "no", "--save", ""]
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again: empty."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
        address, port = self._command[2], int(self._command[4])
        wait_for(lambda: _listens(address, port))

    def crash(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


@dataclass
class Process:
    """A server or a worker."""

    host: Host
    popen: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    """Of a server."""

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has logged under a name."""
        lines = self.log.read_text().splitlines()
        # A process that is killed may leave half a line.
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry for entry in entries if entry["event"] == name]

    def kill(self) -> None:
        """As the kernel does when memory is short, or a host loses its power."""
        self.popen.kill()
        self.popen.wait()


@dataclass
class Fleet:
    """The processes of one service: one database, one queue, one set of settings."""

    directory: Path
    environment: dict[str, str]
    database: Database
    key: str
    processes: list[Process] = field(default_factory=list)

    def worker(self, host: Host, command: Sequence[str] = REAL_WORKER, **settings: object) -> Process:
        """Start a worker."""
        return self._start(host, command, settings)

    def api(self, host: Host, **settings: object) -> Process:
        """Start a server that the other hosts reach, and wait until it answers."""
        port = _free_port(host.address) if host.namespace is None else 20_000 + len(self.processes)
        arguments = ("-m", "app", "serve", "--host", host.address, "--port", str(port))
        process = self._start(host, arguments, {"embedded_worker": False, "rate_limit": "", **settings})
        process.url = f"http://{host.address}:{port}"
        wait_for(lambda: process.popen.poll() is not None or _listens(host.address, port))
        assert process.popen.poll() is None, process.log.read_text()
        return process

    def client(self, api: Process) -> httpx2.Client:
        """Requests to one server."""
        return httpx2.Client(base_url=api.url, headers={"X-API-Key": self.key}, trust_env=False, timeout=60.0)

    def claims(self) -> Counter[str]:
        """How often each search was claimed, by any worker."""
        return Counter(entry["search_id"] for process in self.processes for entry in process.events("job_claimed"))

    def stop(self) -> None:
        """End all that run."""
        running = [process.popen for process in self.processes if process.popen.poll() is None]
        for popen in running:
            popen.send_signal(signal.SIGCONT)
            popen.terminate()
        for popen in running:
            popen.wait()

    def _start(self, host: Host, arguments: Sequence[str], settings: dict[str, Any]) -> Process:
        log = self.directory / f"process-{len(self.processes)}.log"
        given = {f"PARAPLAN_{name.upper()}": str(value) for name, value in settings.items()}
        with log.open("wb") as stderr:
            popen = subprocess.Popen(
                host.command(arguments), env=os.environ | self.environment | given, stderr=stderr, stdout=stderr
            )
        process = Process(host, popen, log)
        self.processes.append(process)
        return process


@dataclass(frozen=True)
class Services:
    """What the hosts share."""

    network: Network
    postgres: PostgresServer
    redis: RedisServer
    postgres_port: int

    def database_url(self, name: str) -> str:
        """A database as the hosts reach it."""
        return f"postgresql+psycopg://paraplan@{self.network.address}:{self.postgres_port}/{name}"


def start_services() -> Iterator[Services]:
    """PostgreSQL and Redis on a network of their own; skips the test, or fails it, where one is missing."""
    binaries, redis = postgres_binaries(), shutil.which("redis-server")
    if binaries is None or redis is None:
        skip_or_fail("no PostgreSQL or no Redis server binary on this machine")
        raise AssertionError
    network = Network()
    postgres_port = _free_port(network.address)
    postgres = PostgresServer(binaries, addresses=[network.address], port=postgres_port)
    queue = RedisServer(redis, network.address, _free_port(network.address))
    yield Services(network, postgres, queue, postgres_port)
    queue.crash()
    postgres.stop()
    network.close()


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def _try(command: str) -> bool:
    try:
        return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
