"""Models that travel over the real wire: who may fetch which, a restart in mid-round, verification."""

from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from hansa.common.values.errors import Stale
from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Task, Train
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.support import LightSite, ended, job, model_of, nothing, serving

SITES = {"a": 1.0, "b": 4.0, "c": 16.0, "d": 64.0}
SPEC = job(
    rule="radfed",
    pace={"rounds": 2, "hops": 3, "divergence": "delta"},
    sample={"fraction": 0.5},
    sites={"min": 4},
)


async def test_slots_travel_survive_a_restart_and_are_verified(tmp_path: Path) -> None:
    done: list[Task] = []
    refused: list[str] = []

    async def answer(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            if (
                task.hop == 3
            ):  # the other slot's model, or the one that this slot was before, is none of its business
                other = ModelKey(f"{task.job}/u{int(task.work.model.rpartition('u')[2]) ^ 1}")
                with pytest.raises(Stale, match="no open task"):
                    await site.fetch(other)
                refused.append(other)
            done.append(task)
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name, value in SITES.items():
            await sites.enter_async_context(
                LightSite(served.address, name, value=value, answer=answer).attending()
            )
        runner = await served.submit(SPEC, None, nothing())
        while sum(task.hop == 2 for task in done) < 1:
            await runner.next_change().wait()
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        again = served.jobs.runner(runner.id)
        assert again.machine.state.sequence > 0
        for name, value in SITES.items():
            await sites.enter_async_context(
                LightSite(served.address, name, value=value, answer=answer).attending()
            )
        assert (await ended(again)).view().status == "completed"
        tasks = {task.id: task for task in done}.values()  # a task in hand during the restart is done twice
        assert len(tasks) == 2 * 3 * 2
        total = sum(SITES[task.site] for task in tasks) / 2
        np.testing.assert_allclose(model_of(served, again)["layer.weight"], total)
        history = again.view().history
        assert [hop.divergence is not None for entry in history[1:] for hop in entry.hops] == [True] * 6
    assert refused
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        told, _, findings = verify(backends, record)
        assert findings == []
        kept = set(backends.store.keys(f"{runner.id}/"))
        assert kept == told.state.models
        assert len(kept) == 3  # the model, and the two slots it is made of
        assert told.state.model_dump() == again.machine.state.model_dump()
