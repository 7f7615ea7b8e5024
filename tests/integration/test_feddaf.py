"""FedDAF in whole jobs over real gRPC, with light sites whose models differ as their data would."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.model import ModelSpec
from hansa.common.values.tasks import Init, Task
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.support import LightSite, Served, ended, job, nothing, serving
from tests.unit.rules.test_feddaf import BARE, FEW, SPEC, grouped, model_of

SITES = "abcdij"  # i and j are unlike the others


async def attend(served: Served, sites: AsyncExitStack, spec: ModelSpec) -> None:
    async def answer(site: LightSite, task: Task) -> None:
        who = "z" if isinstance(task.work, Init) else site.name
        await site.send(
            task, model_of(who, 1, spec)
        )  # of a site always the same: it must not matter who comes first

    for name in SITES:
        await sites.enter_async_context(LightSite(served.address, name, spec=spec, answer=answer).attending())


async def run(folder: Path, spec: ModelSpec = SPEC, **changes: Any) -> JobRunner:
    words = {"rule": "feddaf", "sites": {"min": 6}, "pace": {"rounds": 3}, **changes}
    async with serving(folder) as served, AsyncExitStack() as sites:
        await attend(served, sites, spec)
        return await ended(await served.submit(job(**words), None, nothing()))


@pytest.mark.parametrize(
    "changes",
    [
        {"weigh": {"backend": "em", "refit": 2}},
        {"weigh": {"backend": "em"}, "pace": {"kind": "async", "updates": 20}, "merge": {"kind": "latest"}},
    ],
    ids=["rounds", "async"],
)
async def test_groups_are_found_weigh_and_verify(tmp_path: Path, changes: dict[str, Any]) -> None:
    runner = await run(tmp_path, **changes)
    assert runner.view().status == "completed", runner.view().reason
    fits = [
        told for entry in runner.view().history[1:] if "allocation" in (told := entry.diagnostics["weigh"])
    ]
    assert {site for site, group in grouped(fits[-1]).items() if group} == FEW
    weights = {site: held[0].weight for site, held in runner.machine.state.members.items()}
    assert set(weights) == set(SITES)
    total = sum(weights.values())
    assert {site: weight / total for site, weight in weights.items()} == pytest.approx(fits[-1]["weights"])
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        assert verify(backends, record)[2] == []
        assert not [key for key in backends.store.keys(f"{runner.id}/") if "/x" in key], (
            "nothing is kept for ever"
        )


async def test_a_job_that_insists_on_normalisation_layers_fails_and_says_what_to_do(tmp_path: Path) -> None:
    runner = await run(tmp_path, BARE, weigh={"stats": "norm"})
    assert runner.view().status == "failed"
    assert runner.view().reason == "weigh.stats: the model has no normalisation layer; use weights"
