"""The connection to a Ray cluster: one that somebody has started, or one of our own."""

import contextlib
import importlib.util
import logging
import os
import sys
from typing import Any

import grpc

from hansa.common.values.errors import HansaError, InvalidInput, Refused, Unreachable, one_line
from hansa.simulation.crew.local_ray import QUIET, LocalRay

AUTO = "auto"  # the address of a cluster of our own
HEALTH = "/grpc.health.v1.Health/Check"
PATIENCE = 10  # seconds until a cluster must have answered


class Cluster:
    """A Ray cluster that this process is connected to. A process can be connected to one at a time."""

    def __init__(self, address: str, cpus: int) -> None:
        """`cpus`: how many a cluster of our own has."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        require_ray()
        self._local: LocalRay | None = None
        self._connected = False
        if address == AUTO and not _is_connected():
            self._local = LocalRay(cpus)
            address = self._local.address
        self.ray: Any = importlib.import_module("ray")
        if not _is_connected():  # otherwise, whoever has connected us also disconnects us
            self._connect(address)

    def _connect(self, address: str) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            _require_answer(address)
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


def require_ray() -> None:
    """Refuse if Ray is not installed. It is not loaded yet: that has settings of its own."""
    if importlib.util.find_spec("ray") is None:
        raise Refused("--ray: Ray is not installed: pip install 'hansa[ray]'")


def require_address(address: str) -> None:
    """Refuse what cannot be the address of a cluster."""
    host, _, port = address.rpartition(":")
    if address != AUTO and (not host or "/" in host or not port.isdecimal()):
        raise InvalidInput(
            f"--ray {address}: write HOST:PORT of the cluster's head, on whose nodes this command must run,"
            " or auto for a cluster on this machine"
        )


def _require_answer(address: str) -> None:
    """Refuse an address at which nothing like Ray answers: Ray itself would try for minutes."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(HEALTH)
        try:
            check(b"", timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(f"--ray {address}: no Ray cluster answers there") from None


def _refusal(address: str, error: Exception) -> HansaError:
    if isinstance(error, HansaError):
        return error
    hint = ""
    if isinstance(error, ConnectionError):
        hint = " (does the cluster have a token that RAY_AUTH_TOKEN should say?)"
    return Refused(f"--ray {address}: {one_line(error)}{hint}")
