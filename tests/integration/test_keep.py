"""Models that are kept: fetched by name or number, also after a restart, and what is said if they are not."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.client.following import Seen
from hansa.common.values.errors import NotFound
from hansa.common.values.history import VersionView
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from hansa.protos import fleet_pb2
from tests.support import LightSite, ended, job, nothing, serving

RIGHT = {1: 2, 2: 8, 3: 5, 4: 5, 5: 3}  # of ten examples, by version


class Pair:
    """A learner and an evaluator of a site: the learner goes on when the newest version is evaluated."""

    def __init__(self) -> None:
        self._evaluated = {version: asyncio.Event() for version in RIGHT}

    async def trains(self, site: LightSite, task: Task) -> None:
        """Train once the version to start from is evaluated, so that every version is."""
        if isinstance(task.work, Train) and task.work.version in RIGHT:
            await self._evaluated[task.work.version].wait()
        await site.do(task)

    async def finds(self, site: LightSite, task: Task) -> None:
        """Find a version as good as the table says."""
        assert isinstance(task.work, Evaluate)
        right = RIGHT[task.work.version]
        report = fleet_pb2.TaskReport(site=site.name, task=task.id)
        matrix = [right, 10 - right, 0, 0]
        report.evaluation.MergeFrom(
            fleet_pb2.Evaluation(n=10, loss_sum=10 - right, classes=2, confusion=matrix)
        )
        await site.attendance.insist(lambda: site.attendance.stub.Report(report))
        self._evaluated[task.work.version].set()


async def test_best_last_and_numbered_models_can_be_fetched_also_after_a_restart(tmp_path: Path) -> None:
    pair = Pair()
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for role, answer in (("evaluator", pair.finds), ("learner", pair.trains)):
            site = LightSite(served.address, "a", role=role, answer=answer)
            await sites.enter_async_context(site.attending())
        spec = job(pace={"rounds": 5}, keep={"last": 2, "every": 3})
        runner = await ended(await served.submit(spec, None, nothing()))
        digests = [record.digest for record in runner.machine.state.history]
        async with AsyncClient(served.address) as client:
            await fetches(client, runner.id, digests)
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        await fetches(client, runner.id, digests)
        assert (await client.jobs())[0].best == 2
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        assert verify(backends, record)[2] == []


async def test_a_reader_who_comes_back_misses_nothing_and_is_sent_nothing_twice(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites, AsyncClient(served.address) as client:
        for role in ("evaluator", "learner"):
            await sites.enter_async_context(LightSite(served.address, "a", role=role).attending())
        runner = await served.submit(job(pace={"rounds": 40}), None, nothing())
        seen, sent, over = Seen(), list[VersionView](), False
        while not over:
            async with AsyncClient(served.address) as lost:  # after every view but the last
                async for view in lost.views(runner.id, after=seen.after):
                    seen.note(view.history)
                    sent += view.history
                    over = view.ended
                    if not over:
                        break
        whole = [version async for version in client.history(runner.id)]
        assert [version.version for version in whole] == list(range(41))
        newest = {version.version: version for version in sent}
        assert [newest[version.version] for version in whole] == [version.brief() for version in whole]
        final = [version.version for version in sent if version.final]
        assert len(final) == len(set(final)) == 41
        part = [version async for version in client.history(runner.id, after=9, limit=3, detail=False)]
        assert part == [version.brief() for version in whole[10:13]]
        assert whole[5].evaluations["a"].metrics == whole[5].metrics
        assert whole[5].confusion == [[2, 1], [0, 1]]
        assert (await client.show(runner.id, history=False)).history == ()


@pytest.mark.parametrize("version", ["newest", "-1", "1.0"])
def test_a_version_that_is_none_is_refused_with_what_can_be_given(version: str, tmp_path: Path) -> None:
    command = ["job", "model", "x", "-o", str(tmp_path / "m.safetensors"), f"--version={version}"]
    refused = CliRunner().invoke(hansa, command)
    assert refused.exit_code == 2
    assert "give best, last or a number" in refused.output


async def fetches(client: AsyncClient, job: str, digests: list[str]) -> None:
    view = await client.show(job)
    assert (view.best, view.version) == (2, 5)
    assert view.kept == (2, 3, 4, 5)
    for version, number in (("best", 2), ("last", 5), (3, 3), (4, 4)):
        manifest, _, origin = await client.model(job, version)
        assert manifest.digest.hex() == digests[number]
        assert origin is not None
        assert origin.version == number
    with pytest.raises(NotFound, match=r"version 1 of job .* is not kept; kept: 2 \(best\), 3, 4, 5;"):
        await client.model(job, 1)
    with pytest.raises(NotFound, match=r"version 9 of job .* does not exist"):
        await client.model(job, 9)
