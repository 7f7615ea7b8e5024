"""A real controller, started with `hansa controller start` in a folder of its own, for the benchmarks."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import memory_of

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.process.state import READY, read_note
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.views import JobView, StatusView

REDIS = Path(__file__).parents[1] / "tests" / "redis_server.py"


class ControllerProcess:
    """One controller; closing the exit stack that it is given ends it."""

    def __init__(self, folder: Path, store: str, leaving: ExitStack) -> None:
        state = folder / "controller"
        url = {"memory": "memory:", "disk": f"disk:{state / 'store'}"}.get(store, store)
        arguments = ["controller", "start", "--listen", "127.0.0.1:0", "--state", str(state), "--store", url]
        self._log = folder / "controller.log"
        read, write = os.pipe()
        log = leaving.enter_context(self._log.open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "hansa", *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write,),
            env=os.environ | {READY: str(write)},
        )
        leaving.callback(end, process)
        os.close(write)
        with os.fdopen(read) as answers:
            answer = answers.readline()
        if not answer.startswith("ready "):
            raise RuntimeError(self._log.read_text() or "the controller did not start")
        self.address = str(read_note(state, "controller")["address"])
        self.pid = process.pid

    def run(self, job: JobSpec, pause: float = 0.5, watch: Callable[[], None] = lambda: None) -> JobView:
        """Run one job to its end and return its last view, history included; call `watch` now and then."""

        async def work() -> JobView:
            async with AsyncClient(Endpoint(self.address)) as client:
                view = (await client.submit(job)).view
                while not view.ended:  # rarely: watching would cost the controller time
                    await asyncio.sleep(pause)
                    watch()
                    # Views in a list have no history.
                    view = next(job_view for job_view in await client.jobs() if job_view.job == view.job)
                return await client.show(view.job)

        view = asyncio.run(work())
        if view.status != "completed":
            raise RuntimeError(
                f"the job {view.status}: {view.reason}\n{self._log.read_text(errors='replace')[-2000:]}"
            )
        return view

    def status(self) -> StatusView:
        """Return the controller's status, like `hansa controller status --json`."""

        async def work() -> StatusView:
            async with AsyncClient(Endpoint(self.address)) as client:
                return await client.status()

        return asyncio.run(work())

    def memory(self) -> dict[str, float]:
        """Return the memory of the process."""
        return memory_of(self.pid)


@contextmanager
def redis_server(folder: Path, durable: bool) -> Iterator[str]:
    """Run a redis-server while the block lasts; yield its URL. It is the tests' own, from this repository."""
    if not REDIS.is_file():
        raise SystemExit(f"the redis store is measured from a checkout: {REDIS} starts the server")
    spec = importlib.util.spec_from_file_location("redis_server", REDIS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.RedisServer(folder, "--auto-aof-rewrite-percentage", "0", durable=durable)
    try:
        yield server.start().url
    finally:
        server.kill()


def end(process: "subprocess.Popen[Any]") -> None:
    """End a process: ask first, then kill it."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
