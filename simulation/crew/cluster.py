"""The connection to a Ray cluster: one that somebody has started, or one of our own."""

import contextlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any

import grpc

from hansa.common.values.errors import HansaError, InvalidInput, Refused, Unreachable, one_line
from hansa.simulation.crew.local_ray import QUIET, LocalRay

AUTO = "auto"  # the address of a cluster of our own
RAYLET = "/sockets/raylet"  # the end of the path at which Ray's processes on a machine meet
HEALTH = "/grpc.health.v1.Health/Check"
PATIENCE = 10  # seconds until a cluster must have answered


class Cluster:
    """A Ray cluster that this process is connected to. A process can be connected to one at a time."""

    def __init__(self, address: str, cpus: int) -> None:
        """`cpus`: how many a cluster of our own has."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        require_ray(address)
        self._local: LocalRay | None = None
        self._connected = False
        if not _is_connected() and address == AUTO:
            self._local = LocalRay(cpus)
            address = self._local.address
        elif not _is_connected():
            _require_answer(address)
            _require_node(address)
        self.ray: Any = importlib.import_module("ray")
        if not _is_connected():  # otherwise, whoever has connected us also disconnects us
            self._connect(address)

    def _connect(self, address: str) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self.ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            self.close()
            raise _refusal(address, error) from None
        self._connected = True

    @property
    def cpus(self) -> int:
        """How many CPUs all nodes have."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def free_cpus(self) -> int:
        """How many CPUs nobody uses."""
        return int(self.ray.available_resources().get("CPU", 0))

    def is_alive(self, node: str) -> bool:
        """Whether a node still belongs to the cluster."""
        return any(each["NodeID"] == node and each["Alive"] for each in self.ray.nodes())

    def close(self) -> None:
        """Disconnect; a cluster of our own ends."""
        with contextlib.suppress(Exception):  # whatever is wrong with it, we are leaving
            if self._connected:
                self.ray.shutdown()
        self._connected = False
        if self._local is not None:
            self._local.close()
            self._local = None


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def require_ray(address: str) -> None:
    """Refuse what cannot be the address of a cluster, or if Ray is not installed.

    Ray is not loaded for that: it reads its settings when it is, and some of them are ours.
    """
    host, _, port = address.rpartition(":")
    if address != AUTO and (not host or "/" in host or not port.isdecimal()):
        raise InvalidInput(
            f"--ray {address}: write HOST:PORT of the cluster's head, on whose nodes this command must run,"
            " or auto for a cluster on this machine"
        )
    if importlib.util.find_spec("ray") is None:
        raise Refused("--ray: Ray is not installed: pip install 'hansa[ray]'")


def _require_answer(address: str) -> None:
    """Refuse an address at which nothing like Ray answers: Ray itself would try for minutes."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(HEALTH)
        try:
            check(b"", timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(f"--ray {address}: no Ray cluster answers there") from None


def _require_node(address: str) -> None:
    """Refuse if no Ray runs on this machine: Ray itself would end this process with a dump of its stack."""
    if RAYLET not in Path("/proc/net/unix").read_text():
        raise Refused(
            f"--ray {address}: this machine is not a node of the cluster: run `ray start --address={address}`"
            " here, or simulate on one of its nodes"
        )


def _refusal(address: str, error: Exception) -> HansaError:
    hint = ""
    if isinstance(error, ConnectionError):
        hint = "; if it has a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
    return Refused(f"--ray {address}: {one_line(error)}{hint}")
