"""Numbers for Prometheus: `--metrics HOST:PORT`.

Every scrape has a thread of its own, which asks the event loop, the owner of all state, for a snapshot. On
loopback the numbers are served in plain HTTP; elsewhere only over TLS, to operators and controllers.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from threading import Thread

from cryptography import x509
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hansa import __version__
from hansa.common.rpc.channel import is_loopback, parse_address
from hansa.common.rpc.tls import Credentials, ServerTls
from hansa.common.values.errors import InvalidInput, Taken
from hansa.common.values.settings.metrics import USUAL
from hansa.controller.audit.log import Audit
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.metrics.server import bound
from hansa.controller.work.workers import Workers

PATIENCE = 5.0  # seconds for the event loop to answer
LINGER = 600.0  # seconds for which a job that has ended is shown, so that its last numbers are scraped
BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)  # seconds of training


class TaskTimes:
    """How long learners trained for their updates."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count an update."""
        self.counts[next((i for i, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts that Prometheus expects."""
        edges = [*(f"{edge:g}" for edge in BUCKETS), "+Inf"]
        return [(edge, float(sum(self.counts[: i + 1]))) for i, edge in enumerate(edges)]


class ControllerCollector(Collector):
    """Reads the controller's numbers."""

    def __init__(
        self,
        jobs: Jobs,
        fleet: Fleet,
        workers: Workers,
        audit: Audit,
        times: TaskTimes,
        tls: ServerTls | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._jobs, self._fleet, self._workers, self._audit = jobs, fleet, workers, audit
        self._times, self._tls, self._loop = times, tls, loop

    def collect(self) -> Iterable[Metric]:
        """Ask the event loop for a snapshot; this runs on the thread of a scrape."""

        async def snapshot() -> list[Metric]:
            return [*self._of_controller(), *self._of_jobs()]

        asked = asyncio.run_coroutine_threadsafe(snapshot(), self._loop)
        try:
            return asked.result(PATIENCE)
        except TooLate:
            asked.cancel()
            return []

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the event loop is not asked when the collector is registered."""
        return []

    def _of_controller(self) -> Iterator[Metric]:
        yield _gauge("hansa_info", "Always 1.", {(__version__,): 1}, ["version"])
        roles: Counter[tuple[str, ...]] = Counter((session.role,) for session in self._fleet.sessions)
        yield _gauge("hansa_daemons", "Connected daemons.", roles, ["role"])
        states: dict[tuple[str, ...], float] = {(name,): n for name, n in self._jobs.statuses().items()}
        yield _gauge("hansa_jobs", "Jobs.", states, ["status"])
        usable = 0 if self._workers.trouble else 1
        yield _gauge("hansa_store_usable", "Whether the store and the journal can be used.", {(): usable})
        if self._tls:
            yield _gauge(
                "hansa_certificate_expiry_seconds",
                "When it expires, in seconds since the epoch; of authorities, the first that does.",
                self._expiries(self._tls.credentials),
                ["certificate"],
            )
        audit = CounterMetricFamily("hansa_audit_records", "Audit records since the start.", labels=["what"])
        for what, count in self._audit.counts.items():
            audit.add_metric([what], count)
        yield audit
        yield HistogramMetricFamily(
            "hansa_training_seconds",
            "Training time of updates, as learners report it.",
            buckets=self._times.buckets(),
            sum_value=self._times.total,
        )

    @staticmethod
    def _expiries(credentials: Credentials) -> dict[tuple[str, ...], float]:
        authorities = x509.load_pem_x509_certificates(credentials.authorities)
        first = min(each.not_valid_after_utc for each in authorities)
        return {("controller",): credentials.caller.ends.timestamp(), ("authority",): first.timestamp()}

    def _of_jobs(self) -> Iterator[Metric]:
        labels = ["job", "name"]
        counters = {
            "hansa_job_rounds": "Community models merged.",
            "hansa_job_commits": "Updates that are part of a community model.",
            "hansa_job_bytes_up": "Bytes from sites.",
            "hansa_job_bytes_down": "Bytes to sites.",
        }
        gauges = {
            "hansa_job_open_tasks": "Tasks whose results sites have yet to return.",
            "hansa_job_waiting_merges": "Merges that are due but not done.",
            "hansa_job_staleness_versions": "Mean staleness of contributions to the newest community model.",
            "hansa_job_accuracy": "Accuracy of the newest version that was evaluated on enough examples.",
            "hansa_job_loss": "Loss of the same version.",
            "hansa_job_lost_updates": "Updates that did not arrive or were refused, in all rounds.",
        }
        metrics: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            **{name: CounterMetricFamily(name, text, labels=labels) for name, text in counters.items()},
            **{name: GaugeMetricFamily(name, text, labels=labels) for name, text in gauges.items()},
        }
        for runner in filter(_is_shown, self._jobs.newest_first):
            for name, value in _numbers(runner).items():
                metrics[name].add_metric([runner.id, runner.machine.spec.name], value)
        yield from metrics.values()


def _is_shown(runner: JobRunner) -> bool:
    ended = runner.machine.state.ended
    return ended is None or runner.now() - ended < LINGER


def _numbers(runner: JobRunner) -> dict[str, float]:
    state, view = runner.machine.state, runner.list_view()
    staleness = [update.staleness[0] for update in state.history[-1].updates] if state.history else []
    return {
        "hansa_job_rounds": view.rounds,
        "hansa_job_commits": state.merged,
        "hansa_job_bytes_up": view.bytes_up,
        "hansa_job_bytes_down": view.bytes_down,
        "hansa_job_open_tasks": len(state.tasks),
        "hansa_job_waiting_merges": len(state.queue),
        "hansa_job_staleness_versions": sum(staleness) / len(staleness) if staleness else 0,
        "hansa_job_lost_updates": state.lost,
        **{f"hansa_job_{name}": value for name in USUAL if (value := view.metrics.get(name)) is not None},
    }


def _gauge(
    name: str, text: str, values: Mapping[tuple[str, ...], float], labels: list[str] | None = None
) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=labels or [])
    for words, value in values.items():
        gauge.add_metric(list(words), value)
    return gauge


@contextmanager
def serving_metrics(listen: str, collector: Collector, tls: ServerTls | None) -> Iterator[str]:
    """Serve the numbers while the block lasts; yield the address."""
    host, _, port = parse_address(listen).rpartition(":")
    local = is_loopback(listen)
    if not local and tls is None:
        raise InvalidInput(
            f"--metrics {listen} can be reached from other machines: give --tls, or use 127.0.0.1"
        )
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(collector)
    try:
        server = bound(host.strip("[]"), int(port), make_wsgi_app(registry), None if local else tls)
    except OSError as error:
        raise Taken(f"--metrics {listen}: {error.strerror}") from None
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
