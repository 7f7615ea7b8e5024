"""Downloads over connections that are cut: they resume there, and only what was in flight is sent twice."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.frames import FRAME, Layout, views
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.rpc.channel import Endpoint
from hansa.common.rpc.incoming import FUTILE
from hansa.common.site.transfer import Fetcher
from hansa.common.values.errors import Rejected, Unreachable
from hansa.common.values.tasks import Task, Train
from hansa.controller.jobs.runner import JobRunner
from tests.cutting_proxy import CuttingProxy
from tests.support import LightSite, Served, ended, job, model_of, nothing, serving

SPEC = ModelSpec(
    (
        TensorInfo("a", "float32", (FRAME + 5,), Role.PARAM),  # 4 MiB and a few bytes
        TensorInfo("b", "float32", (FRAME,), Role.PARAM),
        TensorInfo("n", "int64", (), Role.COUNT),
    )
)
SIZE = Layout(SPEC).size
LOST = 5 * FRAME // 2  # of a connection that is cut: a frame that came in part, and what gRPC threw away


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(2) as made:
        yield made


def answer(pool: ThreadPoolExecutor) -> Any:
    """Return a site's work: it builds a model of random numbers, and changes one of its two large tensors."""
    fetchers: dict[str, Fetcher] = {}

    async def train(site: LightSite, task: Task) -> None:
        rng = np.random.default_rng(task.round)
        if isinstance(task.work, Train):
            fetcher = fetchers.setdefault(site.name, Fetcher(site.attendance, pool))
            _, arrays = await fetcher.fetch(task.work.model)
        else:
            arrays = {info.name: rng.normal(size=info.shape).astype(info.dtype) for info in SPEC.tensors}
        await site.send(task, arrays | {"b": rng.normal(size=FRAME).astype(np.float32)})

    return train


@asynccontextmanager
async def trained(folder: Path, pool: ThreadPoolExecutor, cut: int, rounds: int) -> AsyncIterator[Any]:
    """Run a job whose only site is behind a proxy that cuts its connections."""
    async with serving(folder) as served, CuttingProxy(served.address, cut).listening() as proxy:
        async with (
            LightSite(proxy.address, "a", spec=SPEC, answer=answer(pool)).attending(),
            asyncio.timeout(60),
        ):
            runner = await ended(await served.submit(job(pace={"rounds": rounds}), None, nothing()))
        assert runner.view().status == "completed", runner.view().reason
        yield served, proxy, runner


async def fetched(proxy: CuttingProxy, runner: JobRunner) -> dict[str, np.ndarray]:
    async with AsyncClient(Endpoint(proxy.address)) as client, asyncio.timeout(60):
        manifest, payload, _ = await client.model(runner.id)
    return views(Layout(manifest.spec), payload)


def nothing_was_unforeseen(caplog: pytest.LogCaptureFixture) -> None:
    assert not [
        record.getMessage()
        for record in caplog.records
        if record.exc_info or record.levelno > logging.WARNING
    ]


@pytest.mark.parametrize("cut", [5 * FRAME, 3 * FRAME // 2], ids=["every 5 MiB", "every 1.5 MiB"])
async def test_a_model_that_no_connection_carries_completely_arrives_by_resuming(
    tmp_path: Path, pool: ThreadPoolExecutor, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with trained(tmp_path, pool, cut, rounds=1) as (_, proxy, _):
        assert proxy.cuts >= SIZE // cut
        assert proxy.received < SIZE + proxy.cuts * min(cut, LOST)
    nothing_was_unforeseen(caplog)


async def test_the_part_of_a_model_that_a_site_lacks_comes_through_by_resuming(
    tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async with trained(tmp_path, pool, 3 * FRAME, rounds=2) as (served, proxy, runner):
        again = SIZE // 2 + FRAME  # one of the two large tensors, and what is padded
        assert proxy.received < SIZE + again + proxy.cuts * LOST
        assert proxy.cuts >= (SIZE + again) // (3 * FRAME) - 1
        found = model_of(served, runner)
        np.testing.assert_array_equal(
            found["b"], np.random.default_rng(2).normal(size=FRAME).astype(np.float32)
        )
    nothing_was_unforeseen(caplog)


async def test_an_operator_gets_a_model_that_no_connection_carries_completely(
    tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        async with CuttingProxy(served.address, 5 * FRAME).listening() as proxy:
            found = await fetched(proxy, runner)
            assert 1 <= proxy.cuts <= 2
            assert proxy.received < SIZE + proxy.cuts * LOST
        for name, array in model_of(served, runner).items():
            np.testing.assert_array_equal(found[name], array)
    nothing_was_unforeseen(caplog)


async def test_an_operator_whose_connections_carry_no_frame_is_told_so(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.common.client.download.TRIES", 3)
    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        async with CuttingProxy(served.address, FRAME // 2).listening() as proxy:
            with pytest.raises(Unreachable, match="no controller answers"):
                await fetched(proxy, runner)
            assert proxy.cuts == 3


async def test_who_goes_on_with_another_model_than_before_gets_the_new_one_from_its_beginning(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        sent = [m async for m in served.federation.downloads.send(runner.machine.state.current, set(), "a")]
        for start, continued in ((3, b""), (3, b"x" * 32), (1000, b"")):
            again = served.federation.downloads.send(
                runner.machine.state.current, set(), "a", start, continued
            )
            assert [m async for m in again] == sent


async def served_by(served: Served, runner: JobRunner, monkeypatch: pytest.MonkeyPatch, send: Any) -> None:
    """Fetch a model from a controller that sends wrong messages."""
    monkeypatch.setattr("hansa.common.rpc.backoff.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("hansa.common.rpc.backoff.QUICK_PAUSE", 0.001)
    real = served.federation.downloads.send
    monkeypatch.setattr(served.federation.downloads, "send", lambda *given: send(real, *given))
    async with AsyncClient(Endpoint(served.address)) as client, asyncio.timeout(30):
        await client.model(runner.id)


async def test_a_controller_that_never_sends_a_further_frame_does_not_keep_anybody_for_ever(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(
        real: Any, key: Any, held: Any, who: str, start: int, continued: bytes, origin: str
    ) -> AsyncIterator[bytes]:
        async for message in real(key, held, who, start, continued, origin):
            yield message
            if start or len(message) == FRAME:
                return

    monkeypatch.setattr("hansa.common.client.download.TRIES", 1000)
    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        with pytest.raises(
            Rejected, match="20 attempts in a row to download a model brought nothing after frame 1"
        ):
            await served_by(served, runner, monkeypatch, send)


async def test_a_controller_that_starts_over_every_time_does_not_keep_a_site_for_ever(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(
        real: Any, key: Any, held: Any, who: str, start: int, continued: bytes, origin: str
    ) -> AsyncIterator[bytes]:
        frames = 0
        async for message in real(key, held, who, 0, b"", origin):
            yield message
            frames += 1
            if frames == 4:
                return

    monkeypatch.setattr("hansa.common.client.download.TRIES", 1000)
    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        with pytest.raises(Rejected, match="began 8 times with a different model"):
            await served_by(served, runner, monkeypatch, send)


async def test_a_frame_that_was_changed_is_found_though_the_connection_was_cut_after_it(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(
        real: Any, key: Any, held: Any, who: str, start: int, continued: bytes, origin: str
    ) -> AsyncIterator[bytes]:
        frames = start
        async for message in real(key, held, who, start, continued, origin):
            frames += bool(message) and len(message) > 1000
            yield bytes(64) + message[64:] if frames == 3 and len(message) == FRAME else message
            if frames == 5 and not start:
                raise Unreachable("cut")

    async with trained(tmp_path, pool, 100 * FRAME, rounds=1) as (served, _, runner):
        with pytest.raises(Rejected, match="tensor a does not match its digest"):
            await served_by(served, runner, monkeypatch, send)


async def test_a_disk_that_cannot_be_read_for_a_while_does_not_look_like_a_controller_that_brings_nothing(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another download has the model open, so that only its frames are missing."""
    monkeypatch.setattr("hansa.common.rpc.backoff.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("hansa.common.rpc.backoff.QUICK_PAUSE", 0.001)
    failures, read, train = 0, os.pread, answer(pool)

    def failing(handle: int, size: int, at: int) -> bytes:
        nonlocal failures
        failures += 1
        if failures > 3 * FUTILE:
            monkeypatch.setattr(os, "pread", read)
        raise OSError(errno.EIO, "Input/output error")

    async def patient(site: LightSite, task: Task) -> None:
        async with AsyncExitStack() as held:
            if isinstance(task.work, Train):
                with served.federation.store.open(task.work.model) as model:
                    digests = set(model.manifest.digests)
                another = served.federation.downloads.send(task.work.model, digests, "another")
                await anext(await held.enter_async_context(aclosing(another)))
                monkeypatch.setattr(os, "pread", failing)
            await train(site, task)

    async with (
        serving(tmp_path) as served,
        LightSite(served.address, "a", spec=SPEC, answer=patient).attending(),
    ):
        async with asyncio.timeout(30):
            runner = await ended(await served.submit(job(pace={"rounds": 1}), None, nothing()))
    assert runner.view().status == "completed", runner.view().reason
    assert failures > 2 * FUTILE
