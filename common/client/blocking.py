"""`hansa.Client`: AsyncClient for scripts and notebooks. It runs its own event loop in a thread."""

import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.client.display import job_html
from hansa.common.client.download import Downloaded
from hansa.common.client.job import AsyncJob
from hansa.common.client.loop import SHARED, Calls
from hansa.common.client.rows import Rows
from hansa.common.client.submission import Source
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import HansaError, InvalidInput
from hansa.common.values.history import VersionView
from hansa.common.values.views import AuditView, DaemonView, EventView, JobView, LogView, StatusView

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


class Job:
    """A job on a controller. `view` is what was last seen of it; `show` asks again."""

    def __init__(self, client: "Client", job: AsyncJob) -> None:
        self._client, self._job = client, job

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def name(self) -> str:
        """The name that the job file gave it."""
        return self._job.name

    @property
    def view(self) -> JobView:
        """The job as it was last seen."""
        return self._job.view

    def show(self) -> JobView:
        """Ask the controller for the job with its history."""
        return self._client.run(self._job.show())

    def watch(self, after: int = 0) -> Iterator[VersionView]:
        """Yield every version above `after` once, in order, as soon as its metrics are complete.

        Version 0, which no site has trained, comes with `after=-1`. If the controller restarts meanwhile,
        this waits and goes on where it stopped.
        """
        return self._client.iterate(lambda: self._job.watch(after))

    def events(self, after: int = 0) -> Iterator[EventView]:
        """Yield what happens in the job in plain words, after an event, until the job ends."""
        return self._client.iterate(lambda: self._job.events(after))

    def result(self, timeout: float | None = None) -> JobView:
        """Wait for the job's end and return it with its history; raise JobFailed unless it completed.

        TimeoutError is raised after `timeout` seconds; the job itself continues.
        """
        return self._client.run(self._job.result(timeout))

    def cancel(self) -> JobView:
        """Cancel the job; its last community model is kept."""
        return self._client.run(self._job.cancel())

    def delete(self) -> None:
        """Delete the job, which must have ended, with its models and its journal."""
        self._client.run(self._job.delete())

    def model(self, version: int | str = "last") -> Downloaded:
        """Download a community model: `best`, `last` or a number."""
        return self._client.run(self._job.model(version))

    def state_dict(self, version: int | str = "last") -> dict[str, Any]:
        """Download a community model for a PyTorch network's `load_state_dict`."""
        return self._client.run(self._job.state_dict(version))

    def arrays(self, version: int | str = "last") -> "dict[str, np.ndarray]":
        """Download a community model as numpy arrays."""
        return self._client.run(self._job.arrays(version))

    def save(self, path: str | Path, version: int | str = "last") -> Path:
        """Download a community model into a safetensors file."""
        return self._client.run(self._job.save(path, version))

    def rows(self) -> Rows:
        """Return a flat row for each version, with its metrics."""
        return self._client.run(self._job.rows())

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each version."""
        return self._client.run(self._job.to_pandas())

    def _repr_html_(self) -> str:
        with suppress(HansaError):  # without an answer, what was last seen is shown
            self.show()
        return job_html(self.view)

    def __repr__(self) -> str:
        return repr(self._job)


class Client:
    """A connection to a controller; use it as a context manager, or close it.

    What is not given is read from HANSA_CONTROLLER and HANSA_TLS, or from `hansa.toml`, as on the command
    line. Jobs are named by their id, a unique beginning of it, or a name that only one job has.
    """

    def __init__(self, controller: Endpoint | str | None = None, tls: str | Path | None = None) -> None:
        self._client = AsyncClient(controller, tls)
        SHARED.hold()
        self._calls: Calls = set()
        self._hang_up = weakref.finalize(self, SHARED.release, self._client.close, self._calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; what other threads still wait for ends with an error."""
        self._hang_up()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and return its result."""
        if not self._hang_up.alive:
            work.close()
            raise InvalidInput(f"the client of {self._client.endpoint} is closed; make another one")
        return SHARED.run(work, self._calls)

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yield what an asynchronous iterator yields on the client's loop."""
        if not self._hang_up.alive:
            raise InvalidInput(f"the client of {self._client.endpoint} is closed; make another one")
        return SHARED.iterate(make, self._calls)

    def submit(
        self,
        job: Source,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option of the command is called
        key: str = "",
    ) -> Job:
        """Submit a job file, or what such a file says, with changes by dotted path.

        A `key` makes this repeatable: while the controller has a job that this operator has submitted with
        the same key, that job is returned; Taken is raised if it is another job. A submission with a key is
        sent again for some time if the connection is lost, so a restart of the controller does no harm.
        """
        return Job(self, self.run(self._client.submit(job, set=set, key=key)))

    def job(self, words: str) -> Job:
        """Find a job that somebody has submitted."""
        return Job(self, self.run(self._client.job(words)))

    def jobs(self) -> list[JobView]:
        """Return all jobs, newest first, without their histories."""
        return self.run(self._client.jobs())

    def delete(self, job: str) -> str:
        """Delete a job that has ended, with its models and its journal; return its id."""
        return self.run(self._client.delete(job))

    def audit(self, after: int = 0, follow: bool = False, last: int = 0) -> Iterator[AuditView]:
        """Yield the audit log's records after one, or only the `last`; with `follow` also each new one."""
        return self.iterate(lambda: self._client.audit(after, follow, last))

    def logs(self, site: str, role: str = "", lines: int = 0) -> LogView:
        """Return the last lines of a daemon's log, if its site shows them; 0: as many as it shows."""
        return self.run(self._client.logs(site, role, lines))

    def sites(self) -> list[DaemonView]:
        """Return the daemons of all sites and what they are doing."""
        return self.run(self._client.sites())

    def status(self) -> StatusView:
        """Return the controller's identity and status."""
        return self.run(self._client.status())

    def __repr__(self) -> str:
        return f"<Client of {self._client.endpoint}>"
