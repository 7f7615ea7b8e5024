"""Start-up, main loop and shut-down of the controller process."""

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from hansa import __version__
from hansa.common.process.clock import SystemClock, iso
from hansa.common.process.lifetime import stop_signal
from hansa.common.process.memory import keep_freed_memory
from hansa.common.rpc.channel import CONCURRENT, SERVER, is_loopback, parse_address
from hansa.common.rpc.errors import ErrorStatuses, quiet_hang_ups
from hansa.common.rpc.guard import Guard
from hansa.common.rpc.methods import handler
from hansa.common.rpc.tls import ServerTls
from hansa.common.values.errors import Broken, InvalidInput, Taken
from hansa.common.values.views import StatusView
from hansa.controller.api.fleet import FleetServicer
from hansa.controller.api.health import Health
from hansa.controller.api.limits import LARGEST_MODEL, SUBMISSIONS, SubmissionRate
from hansa.controller.api.operator import OperatorServicer
from hansa.controller.federation import Federation
from hansa.controller.metrics.collector import ControllerCollector, TaskTimes, serving_metrics
from hansa.controller.storage.backends import Backends, opened
from hansa.controller.storage.redis.lease import LEASE
from hansa.controller.work.workers import Workers
from hansa.protos import fleet_pb2, operator_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerOptions:
    """The options of `hansa controller start`."""

    listen: str
    state: Path
    store: str
    insecure: bool = False
    heartbeat: float = 5.0
    grace: float = 15.0
    memory: int = 1 << 30
    tls: Path | None = None
    largest: int = LARGEST_MODEL
    metrics: str | None = None
    keep_days: float | None = None


async def serve(options: ControllerOptions, ready: Callable[[str], None]) -> None:
    """Run the controller until it is told to stop. The caller holds the state directory's lock."""
    if options.tls and options.insecure:
        raise InvalidInput("--tls and --insecure contradict each other")
    if not is_loopback(parse_address(options.listen)) and not options.tls and not options.insecure:
        raise InvalidInput(
            f"--listen {options.listen} can be reached from other machines and this controller has no"
            " certificates: give --tls, listen on 127.0.0.1, or give --insecure if the network is trusted"
        )
    tls = ServerTls(options.tls) if options.tls else None
    keep_freed_memory()
    clock = SystemClock()
    with opened(options.store, options.state) as backends, ExitStack() as exit_:
        settings = (options.heartbeat, options.grace, options.memory, options.keep_days)
        async with Federation(backends.store, backends.journal, clock, *settings) as federation:
            guard = Guard(tls, refused=federation.audit.refused)
            server = make_server(guard)
            address = _bind(server, options.listen, tls)
            times = TaskTimes()
            status = _status(address, federation, options)
            server.add_generic_rpc_handlers(services(federation, status, options.largest, times.observe))
            if options.metrics:
                listening = serving_metrics(options.metrics, collector(federation, times, tls), tls)
                log.info("metrics on %s", exit_.enter_context(listening))
            await server.start()
            gc.freeze()  # what start-up made lives on: the garbage collector need not look at it
            log.info("controller %s listens on %s, store %s", __version__, address, backends.store.url)
            ready(address)
            try:
                await _until_stopped(backends, guard, federation.workers)
            finally:
                log.info("stopping")
                federation.fleet.close()
                await server.stop(grace=1.0)


def make_server(guard: Guard) -> grpc.aio.Server:
    """Return a server on which every RPC passes the guard."""
    quiet_hang_ups()
    return grpc.aio.server(
        interceptors=[ErrorStatuses(), guard], options=SERVER, maximum_concurrent_rpcs=CONCURRENT
    )


async def _until_stopped(backends: Backends, guard: Guard, workers: Workers) -> None:
    """Wait for a signal.

    Meanwhile, end the calls of callers that have lost their access, and renew the store's lease. An error
    that says that another controller has taken the lease stops this one.
    """
    stop = asyncio.create_task(stop_signal())
    while not stop.done():
        await asyncio.wait((stop,), timeout=LEASE / 3)
        guard.sweep()
        if backends.renew and not stop.done():
            try:
                await asyncio.to_thread(backends.renew)
                workers.tell(backends, "")
            except Broken as error:  # `health` must show it even while no job stores anything
                workers.tell(backends, str(error))


def _bind(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> str:
    host, _, port = listen.rpartition(":")
    try:  # gRPC itself would only write the reason to standard error
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, _, _, place = addresses[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise Taken(f"cannot listen on {listen}: {error.strerror}") from None
    port = (
        server.add_secure_port(listen, tls.server_credentials()) if tls else server.add_insecure_port(listen)
    )
    return f"{host}:{port}"


def _status(address: str, federation: Federation, options: ControllerOptions) -> StatusView:
    return StatusView(
        controller=address,
        version=__version__,
        pid=os.getpid(),
        address=address,
        store=federation.store.url,
        state=str(options.state),
        since=iso(federation.clock.now()),
        sites=0,
        jobs={},
        peak_memory_mib=0,
    )


def services(
    federation: Federation,
    status: StatusView,
    largest: int = LARGEST_MODEL,
    trained: Callable[[float], None] = lambda _: None,
    submissions: int = SUBMISSIONS,
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the services on the controller's port: for sites, for operators, and health."""
    jobs, fleet, clock = federation.jobs, federation.fleet, federation.clock
    downloads, rate = federation.downloads, SubmissionRate(clock, submissions)
    sites = FleetServicer(
        status.controller, jobs, fleet, federation.intake, downloads, clock, largest, trained
    )
    operators = OperatorServicer(
        status,
        jobs,
        fleet,
        federation.admission,
        federation.deletion,
        downloads,
        federation.audit,
        clock,
        rate,
        largest,
    )
    return (
        handler(fleet_pb2.DESCRIPTOR.services_by_name["Fleet"], sites),
        Health(lambda: federation.workers.trouble).handler(),
        handler(operator_pb2.DESCRIPTOR.services_by_name["Operator"], operators),
    )


def collector(federation: Federation, times: TaskTimes, tls: ServerTls | None = None) -> ControllerCollector:
    """Return the collector that reads the controller's numbers for Prometheus."""
    parts = (federation.jobs, federation.fleet, federation.workers, federation.audit)
    return ControllerCollector(*parts, times, tls, asyncio.get_running_loop())
