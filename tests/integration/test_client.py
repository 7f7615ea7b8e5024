"""`hansa.AsyncClient` and `hansa.Client`: jobs from Python."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest

from hansa import AsyncClient, AsyncJob, Client, JobCancelled, JobFailed
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.values.errors import HansaError, InvalidInput, Taken, Unreachable
from hansa.common.values.tasks import Task, Train
from hansa.protos import fleet_pb2
from tests.consortium import Consortium
from tests.redis_server import free_port
from tests.support import (
    APP,
    LightSite,
    Served,
    filled,
    job,
    nothing,
    sealed,
    serving,
    small_spec,
    wait_for_ever,
)
from tests.waiting import eventually

display = methodcaller("_repr_html_")  # what notebooks call
JOB = {"name": "from-python", "app": APP, "pace": {"kind": "sync", "rounds": 3}}
LONG = {"pace.rounds": 40}


@asynccontextmanager
async def federation(folder: Path, listen: str = "127.0.0.1:0") -> AsyncIterator[tuple[Served, AsyncClient]]:
    """Run a controller with a site that trains and evaluates, and a client."""
    async with serving(folder, listen=listen, grace=60) as served, AsyncClient(served.address) as hub:
        site, evaluator = LightSite(served.address, "a"), LightSite(served.address, "a", "evaluator")
        async with evaluator.attending(), site.attending():
            yield served, hub


async def test_a_job_is_submitted_watched_and_fetched(tmp_path: Path) -> None:
    async with federation(tmp_path) as (_, hub):
        submitted = await hub.submit(JOB, set={"pace.rounds": 4})
        versions = [version async for version in submitted.watch()]
        assert [version.version for version in versions] == [1, 2, 3, 4]
        assert [version.version async for version in submitted.watch(after=-1)] == [0, 1, 2, 3, 4]
        # Every version comes with its metrics, and with what each site contributed.
        assert all(version.metrics["accuracy"] == 0.75 for version in versions)
        assert all(version.sites["a"].examples == 10 for version in versions)
        done = await submitted.result()
        assert (done.status, done.version, done.job) == ("completed", 4, submitted.id)
        assert [row["version"] for row in await submitted.rows()] == [0, 1, 2, 3, 4]
        arrays = await submitted.arrays()
        assert all(np.all(array == 4) for array in arrays.values())
        tensors = await submitted.state_dict()
        assert {name: tensor.numpy().tolist() for name, tensor in tensors.items()} == {
            name: array.tolist() for name, array in arrays.items()
        }
        assert (await submitted.save(tmp_path / "m.safetensors")).stat().st_size > 0
        frame = await submitted.to_pandas()
        assert list(frame["version"]) == [0, 1, 2, 3, 4]
        again = await hub.job("from-python")
        assert "<td>4</td>" in display(again)
        nasty = AsyncJob(hub, again.view.model_copy(update={"name": "<script>alert(1)</script>"}))
        assert "<script>" not in display(nasty)
        assert (again.id, again.view.status) == (submitted.id, "completed")
        assert [view.job for view in await hub.jobs()] == [submitted.id]
        assert {view.site for view in await hub.sites()} == {"a"}


async def test_who_waits_for_a_job_that_fails_learns_why_and_which_site_it_was(tmp_path: Path) -> None:
    async def broken(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            report = fleet_pb2.TaskReport(site=site.name, task=task.id)
            report.failure.MergeFrom(fleet_pb2.Failure(reason="the app raised KeyError", final=True))
            await site.attendance.insist(lambda: site.attendance.stub.Report(report))
        else:
            await site.do(task)

    async with serving(tmp_path) as served, AsyncClient(served.address) as hub:
        async with LightSite(served.address, "north", answer=broken).attending():
            submitted = await hub.submit(JOB)
            with pytest.raises(JobFailed, match="KeyError") as caught:
                await submitted.result()
    assert (caught.value.site, type(caught.value)) == ("north", JobFailed)
    assert "KeyError" in caught.value.reason
    assert isinstance(caught.value, HansaError)


async def test_a_cancelled_job_has_no_result_and_waiting_has_a_limit(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncClient(served.address) as hub:
        async with LightSite(served.address, "a", answer=wait_for_ever).attending():
            submitted = await hub.submit(JOB)
            with pytest.raises(TimeoutError, match=f"{submitted.id} has not ended within 0.01 s"):
                await submitted.result(timeout=0.01)
            assert (await submitted.cancel()).status == "cancelled"
            with pytest.raises(JobCancelled, match="cancelled by"):
                await submitted.result()


async def test_a_restart_of_the_controller_neither_loses_nor_repeats_a_version(tmp_path: Path) -> None:
    """The watcher sees the first versions, then the controller is replaced, twice."""
    listen, seen, enough = f"127.0.0.1:{free_port()}", [], asyncio.Event()

    async def watch(submitted: AsyncJob) -> None:
        async for version in submitted.watch():
            seen.append(version.version)
            if len(seen) % 5 == 0:
                enough.set()

    async with federation(tmp_path, listen) as (_, hub):
        submitted = await hub.submit(JOB, set=LONG)
        watching = asyncio.create_task(watch(submitted))
        await asyncio.wait_for(enough.wait(), 30)
    assert 5 <= len(seen) < 40
    enough.clear()
    async with federation(tmp_path, listen):
        await asyncio.wait_for(enough.wait(), 30)
    async with federation(tmp_path, listen):
        await asyncio.wait_for(watching, 60)
    assert seen == list(range(1, 41))


async def test_versions_that_nobody_evaluates_are_reported_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncClient(served.address) as hub:
        async with LightSite(served.address, "a").attending():
            submitted = await hub.submit(job(pace={"kind": "sync", "rounds": 3}))
            versions = [version async for version in submitted.watch()]
    assert [(version.version, dict(version.metrics)) for version in versions] == [(1, {}), (2, {}), (3, {})]


async def test_the_blocking_client_does_the_same_from_a_thread_without_a_loop(tmp_path: Path) -> None:
    def script(address: str) -> list[int]:
        with Client(address) as hub:
            submitted = hub.submit(JOB)
            seen = [version.version for version in submitted.watch()]
            assert submitted.result().status == "completed"
            assert repr(submitted) == f"<job {submitted.id} (from-python): completed>"
            for version in hub.job(submitted.id).watch():  # leaving early is fine
                assert version.round == 1
                break
            assert hub.status().jobs == {"completed": 1}
            assert [view.status for view in hub.jobs()] == ["completed"]
            submitted.delete()
            assert hub.jobs() == []
            assert ("deleted", submitted.id) in [(record.what, record.about) for record in hub.audit()]
            with pytest.raises(HansaError, match="no daemon of site 'b' is connected"):
                hub.logs("b")
        with pytest.raises(InvalidInput, match="is closed"):
            hub.jobs()
        hub.close()
        return seen

    async with federation(tmp_path) as (served, _):
        assert await asyncio.to_thread(script, served.address) == [1, 2, 3]


async def test_closing_a_client_ends_what_other_threads_wait_for(tmp_path: Path) -> None:
    def script(address: str) -> list[str]:
        hub = Client(address)
        submitted = hub.submit(JOB)
        begun, errors = threading.Semaphore(0), []

        def wait(work: Callable[[], object]) -> None:
            begun.release()
            with pytest.raises(InvalidInput) as caught:
                work()
            errors.append(str(caught.value))

        left = submitted.watch()
        with ThreadPoolExecutor() as pool:
            waiting = [
                pool.submit(wait, work)
                for work in (
                    submitted.result,
                    lambda: list(submitted.watch()),
                    lambda: list(submitted.events()),
                )
            ]
            for _ in waiting:
                begun.acquire()
            hub.close()
            for each in waiting:
                each.result(30)
        wait(lambda: list(left))  # it has not begun
        return errors

    async with serving(tmp_path) as served:
        async with LightSite(served.address, "a", answer=wait_for_ever).attending():
            errors = await asyncio.to_thread(script, served.address)
    assert len(errors) == 4
    assert all("closed" in error and "make another one" in error for error in errors)


FORKED = """
import os, sys, hansa
hub = hansa.Client(sys.argv[1])
hub.status()
if os.fork() == 0:
    for attempt in (hub.status, lambda: hansa.Client(sys.argv[1])):
        try:
            attempt()
        except hansa.HansaError as error:
            print(error)
    sys.exit()
assert os.wait()[1] == 0
print(hub.status().jobs)
"""


async def test_a_forked_process_learns_that_it_cannot_use_the_client_of_its_parent(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FORKED, served.address), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    first, second, last = said.decode().splitlines()
    assert "get_context('spawn')" in first
    assert (first, last) == (second, "{}")


async def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with AsyncClient(nowhere) as hub:
        with pytest.raises(Unreachable, match=f"no controller answers at {nowhere}"):
            await hub.jobs()
        with pytest.raises(HansaError, match=r"no-such\.yaml: cannot be read"):
            await hub.submit(tmp_path / "no-such.yaml")
        with pytest.raises(HansaError, match=r"train\.epoch: unknown"):
            await hub.submit(JOB, set={"train.epoch": 2})
        for changes in ("train.epochs=2", {1: 2}):
            with pytest.raises(InvalidInput, match="set: write a dict of dotted paths"):
                await hub.submit(JOB, set=changes)  # type: ignore[arg-type]
        for source in (None, [JOB]):
            with pytest.raises(InvalidInput, match="job: write the path of a job file, or a dict"):
                await hub.submit(source)  # type: ignore[arg-type]
        for name in (None, "", 7):
            with pytest.raises(InvalidInput, match=f"job {name!r}: write its id"):
                await hub.job(name)  # type: ignore[arg-type]
        for version in (-1, 1.5):
            with pytest.raises(InvalidInput, match=f"version {version}: a version is a number"):
                await hub.model("j", version)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="the key '7' cannot be used"):
            await hub.submit(JOB, key=7)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="a JobSpec has been checked already"):
            await hub.submit(job(), set={"train.epochs": 2})
    with pytest.raises(InvalidInput, match="write HOST:PORT"):
        AsyncClient("hub")
    with pytest.raises(InvalidInput, match="there is no such folder; `hansa pki issue` makes one"):
        Client(nowhere, tls=tmp_path / "tls")
    monkeypatch.setenv("HANSA_CONTROLLER", nowhere)
    assert repr(AsyncClient()) == f"<AsyncClient of {nowhere}>"
    settings, alice = tmp_path / "hansa.toml", Consortium(tmp_path / "pki").issue("operator", "alice")
    settings.write_text(f'[operator]\ncontroller = "10.0.0.5:7300"\ntls = "{alice}"\n')
    monkeypatch.delenv("HANSA_CONTROLLER")
    monkeypatch.setenv("HANSA_CONFIG", str(settings))
    assert (AsyncClient().endpoint.address, AsyncClient().endpoint.tls) == ("10.0.0.5:7300", alice)


async def test_a_job_with_a_key_is_submitted_once_by_each_operator_and_over_restarts(tmp_path: Path) -> None:
    listen, endless = f"127.0.0.1:{free_port()}", {"pace.rounds": 10_000}
    hub, other = AsyncClient(listen), AsyncClient(listen)
    async with hub, other, serving(tmp_path, listen=listen) as served:
        # Two submitters at the same time, and one that hangs up at once.
        hasty = asyncio.create_task(hub.submit(JOB, key="exp-7", set=endless))
        jobs = await asyncio.gather(
            *(each.submit(JOB, key="exp-7", set=endless) for each in (hub, other, hub))
        )
        hasty.cancel()
        await asyncio.gather(hasty, return_exceptions=True)
        (first,) = {each.id for each in jobs}
        assert [view.job for view in await hub.jobs()] == [first]
        assert (await hub.submit(JOB, key="exp-8", set=endless)).id != first
        with pytest.raises(Taken, match=rf"{first} .*: pace\.rounds is 10000 there and 3 here"):
            await hub.submit(JOB, key="exp-7")
        with pytest.raises(InvalidInput, match="printable characters"):
            await hub.submit(JOB, key="\x1b[2J")
        another = job(sites={"min": 9}).model_copy(update={"operator": "bob", "key": "exp-7"})
        assert (await served.submit(another, None, nothing())).id != first
        assert len(await hub.jobs()) == 3
        await jobs[0].cancel()
        await eventually(lambda: first not in served.federation.launcher.running)
    async with serving(tmp_path, listen=listen), AsyncClient(listen) as hub:
        again = await hub.submit(JOB, key="exp-7", set=endless)  # it is archived by now
        assert (again.id, again.view.status, again.view.key) == (first, "cancelled", "exp-7")


async def test_a_submission_with_a_key_and_a_model_outlasts_a_restart(tmp_path: Path) -> None:
    """The models of the second submission are not sent to their end: the job is there already."""
    listen, spec = f"127.0.0.1:{free_port()}", small_spec()
    save_checkpoint(tmp_path / "init.safetensors", *sealed(spec, filled(spec, 1)))
    begun = job(init=str(tmp_path / "init.safetensors"), sites={"min": 9, "wait": 3600})
    async with AsyncClient(f"127.0.0.1:{free_port()}") as nobody:
        with pytest.raises(Unreachable):
            await nobody.submit(begun, key="k")
    async with AsyncClient(listen) as hub:
        async with serving(tmp_path, listen=listen):
            first = await hub.submit(begun, key="k")
        again = asyncio.create_task(hub.submit(begun, key="k"))
        async with serving(tmp_path, listen=listen):
            assert (await asyncio.wait_for(again, 30)).id == first.id
            assert len(await hub.jobs()) == 1
