"""Plugins that remember, ask for evaluations or fail, in whole jobs over real gRPC."""

from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import BaseModel

from hansa.common.ids import SiteName
from hansa.common.plugins import register
from hansa.common.tasks import Evaluation
from hansa.controller.backends import opened
from hansa.controller.engine.parts import Sampler
from hansa.controller.engine.view import View
from hansa.controller.rules.evaluation import Pooled
from hansa.controller.verify import verify
from tests.redis_server import RedisServer
from tests.support import LightSite, Served, ended, job, serving
from tests.unit.appraised import Scores


class Moody(BaseModel):
    """How often it was asked."""

    asked: int = 0


@register("sample", "moody")
class MoodySampler(Sampler):
    """Everybody takes part, until the third round."""

    def begin(self) -> Moody:
        """Nobody has asked."""
        return Moody()

    def choose(self, state: BaseModel, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Raise in the third round."""
        assert isinstance(state, Moody)
        state.asked += 1
        if state.asked > 2:
            raise ValueError("out of patience")
        return list(view.sites)


@register("evaluate", "squeamish")
class Squeamish(Pooled):
    """Findings of two sites are too much for it."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Raise as soon as there are findings of two sites."""
        if len(reports) > 1:
            raise ValueError("too much to bear")
        return super().combine(reports)


async def nothing() -> AsyncIterator[bytes]:
    return
    yield


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """Return a store's URL, empty for the disk."""
    if request.param == "disk":
        return ""
    server: RedisServer = request.getfixturevalue("redis")
    return f"{server.url}?prefix={request.node.name.encode().hex()[-40:]}"


def _assert_sound(folder: Path, store: str, job_id: str) -> None:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        assert verify(backends, record)[2] == []


async def _attend(served: Served, sites: AsyncExitStack, *names: str) -> None:
    for name in names:
        for role in ("evaluator", "learner"):
            await sites.enter_async_context(LightSite(served.address, name, role=role).attending())


@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
async def test_updates_are_weighed_by_what_other_sites_find(tmp_path: Path, store: str, rule: str) -> None:
    pace = {"updates": 6} if rule == "async-fedavg" else {"rounds": 2}
    spec = job(rule=rule, pace=pace, weigh={"kind": "appraised"}, sites={"min": 3})
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b", "c")
        runner = await ended(await served.federation.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.reason) == ("completed", view.reason)
        weights = [weight for entry in view.history for weight in entry.contributions.values()]
        assert weights == [0.75] * 6  # as light evaluators find
        assert runner.machine.memories["weigh"] == Scores(last=dict.fromkeys("abc", 0.75), asked=6)
    _assert_sound(tmp_path, store, runner.id)


async def test_a_rule_that_fails_fails_the_job_which_keeps_the_model_that_its_journal_tells_of(
    tmp_path: Path, store: str
) -> None:
    spec = job(pace={"rounds": 5}, sample={"kind": "moody"}, sites={"min": 1})
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        runner = await ended(await served.federation.submit(spec, None, nothing()))
        before = runner.view()
        assert (before.status, before.reason) == (
            "failed",
            "the rule failed: sample 'moody': ValueError: out of patience",
        )
        key = runner.machine.state.current
        assert key is not None
    _assert_sound(tmp_path, store, runner.id)
    async with serving(tmp_path, store=store) as served:
        again = served.federation.runner(runner.id)
        assert again.view(since=0).history == before.history
        assert again.machine.state.model_dump() == runner.machine.state.model_dump()
        assert served.federation.store.has(key)


async def test_an_evaluation_plan_that_fails_is_named_and_the_job_can_still_be_shown(tmp_path: Path) -> None:
    spec = job(pace={"rounds": 3}, evaluate={"kind": "squeamish"}, sites={"min": 2})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b")
        runner = await ended(await served.federation.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.reason) == (
            "failed",
            "the rule failed: evaluate 'squeamish': ValueError: too much to bear",
        )
        assert view.history[1].contributions.keys() == {"a", "b"}
    _assert_sound(tmp_path, "", runner.id)
