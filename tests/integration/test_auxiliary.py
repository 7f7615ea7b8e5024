"""Auxiliary tensors over real gRPC: down, up, merged, restarted, verified, quarantined and left at home."""

import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.models.frames import Layout, cut, pack, seal
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.site.transfer import Fetcher, hand_in
from hansa.common.values.errors import Rejected
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Task, Train
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import Finding, verify
from hansa.controller.verify.export import check_export
from tests.support import LightSite, Served, ended, filled, job, model_of, nothing, serving, small_spec
from tests.unit.engine import beside

SPEC = small_spec()
LOCAL = {"kind": beside.BesideTheModel.kind}
VALUES = {"a": 1.0, "b": 4.0, "c": -2.5}
Arrays = dict[str, np.ndarray]
Change = Callable[[ModelSpec, Arrays], tuple[ModelSpec, Arrays]]


@dataclass
class Trainee:
    """A site that returns with its update what a job's auxiliary tensors are made from."""

    site: LightSite
    pool: ThreadPoolExecutor
    change: Change = lambda spec, arrays: (spec, arrays)
    stops_in: int = 0  # the round in which it does not answer
    seen: dict[int, Arrays] = field(default_factory=dict)  # what it started from, by round
    evaluated: list[tuple[str, ...]] = field(default_factory=list)  # the tensors that it was sent
    rejections: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site.answer = self.answer
        self.site.spec = SPEC

    async def answer(self, site: LightSite, task: Task) -> None:
        fetcher = Fetcher(site.attendance, self.pool)
        match task.work:
            case Init():
                await self._hand_in(task, SPEC, filled(SPEC, 0))
            case Train() as work:
                if task.round == self.stops_in:
                    return
                down = [each.name for each in work.auxiliary if each.down and not each.reset]
                start, arrays = await fetcher.fetch(work.model, work.base, down)
                self.seen[task.round] = arrays
                own = start.spec.own.subset(work.tensors) if work.tensors else start.spec.own
                spec = with_auxiliary(own, [each.name for each in work.auxiliary if each.up])
                update = filled(spec, site.value * task.round)
                await self._hand_in(task, *self.change(spec, update))
            case Evaluate() as work:
                _, arrays = await fetcher.fetch(work.model, work.base)
                self.evaluated.append(tuple(arrays))
                await LightSite.do(site, task)
            case _:
                await LightSite.do(site, task)

    async def _hand_in(self, task: Task, spec: ModelSpec, arrays: Arrays) -> None:
        payload = pack(spec, arrays)
        facts = UpdateFacts(n_train=self.site.examples, n_used=10, steps=1, epochs=1, seconds=0)
        try:
            await hand_in(self.site.attendance, task.id, seal(spec, payload), payload, facts)
        except Rejected as error:
            self.rejections.append(str(error))


async def attend(
    served: Served, stack: AsyncExitStack, role: str = "learner", **changes: Any
) -> dict[str, Trainee]:
    pool = stack.enter_context(ThreadPoolExecutor(1))
    trainees = {}
    for number, (name, value) in enumerate(VALUES.items(), 1):
        site = LightSite(served.address, name, role=role, value=value, examples=number)
        trainees[name] = Trainee(site, pool, **changes.get(name, {}))
        await stack.enter_async_context(site.attending())
    return trainees


async def submit(served: Served, **changes: Any) -> JobRunner:
    base: dict[str, Any] = {"local": LOCAL, "sites": {"min": 3}, "pace": {"rounds": 3}}
    return await served.submit(job(**(base | changes)), None, nothing())


def findings(folder: Path, job_id: str, store: str = "") -> list[Finding]:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return verify(backends, record)[2]


def weighted_mean(round_: int) -> float:
    return round_ * sum(n * value for n, value in enumerate(VALUES.values(), 1)) / 6


async def test_they_travel_down_and_up_and_are_merged_by_their_own_rule(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        sites = await attend(served, stack)
        runner = await ended(await submit(served, local=LOCAL | {"reset_after": 2}))
        assert runner.view().status == "completed", runner.view().reason
        final = model_of(served, runner)
        assert served.federation.store.keys(f"{runner.id}/"), "the store has the job's models"
    share = sum(VALUES.values()) / 3
    for site in sites.values():
        assert [sorted(site.seen[number]) for number in (1, 2, 3)] == [
            sorted(SPEC.names),
            sorted((*SPEC.names, "mean/layer.weight", "sum/layer.weight")),
            sorted((*SPEC.names, "mean/layer.weight")),  # the sum starts from zero again
        ]
        np.testing.assert_allclose(site.seen[2]["mean/layer.weight"], weighted_mean(1), rtol=1e-6)
        np.testing.assert_allclose(site.seen[2]["sum/layer.weight"], share, rtol=1e-6)
    np.testing.assert_allclose(final["mean/layer.weight"], weighted_mean(3), rtol=1e-6)
    np.testing.assert_allclose(final["sum/layer.weight"], 3 * share, rtol=1e-6)
    whole = with_auxiliary(SPEC, ["mean", "sum"])
    history = runner.view().history
    assert [entry.bytes_up for entry in history[2:]] == [3 * Layout(whole).size] * 2
    assert [bool(entry.auxiliary) for entry in history] == [False, True, True, True]
    assert findings(tmp_path, runner.id) == []


async def test_evaluators_and_exports_leave_them_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack)
        evaluators = await attend(served, stack, role="evaluator")
        runner = await ended(await submit(served, weigh={"kind": "dvw"}))
        assert runner.view().status == "completed", runner.view().reason
        client = await stack.enter_async_context(AsyncClient(served.address))
        manifest, payload, origin = await client.model(runner.id)
    seen = [tensors for each in evaluators.values() for tensors in each.evaluated]
    assert len(seen) >= 3 * 3, "updates and versions were evaluated"
    assert set(seen) == {SPEC.names}
    assert manifest.spec.names == SPEC.names
    assert manifest.digest.hex() == runner.view().history[-1].digest
    save_checkpoint(tmp_path / "out.safetensors", manifest, payload, origin)
    assert list(check_export(tmp_path / "out.safetensors", runner.machine)) == []
    assert findings(tmp_path, runner.id) == []


@pytest.mark.parametrize("server", ["plain", "adam"])
async def test_a_controller_that_is_stopped_in_mid_job_makes_the_same_ones(
    tmp_path: Path, store: str, server: str
) -> None:
    records: list[list[tuple[str, str]]] = []
    for stops in (False, True):
        folder, place = tmp_path / str(stops), f"{store}{stops}" if store else ""
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(serving(folder, store=place))
            await attend(served, stack, c={"stops_in": 3 if stops else 0})
            runner = await submit(served, server={"kind": server}, pace={"rounds": 4})
            while runner.machine.state.version < 2 or (stops and not runner.machine.state.unmerged):
                await runner.next_change().wait()
            if not stops:
                await ended(runner)
        if stops:
            async with serving(folder, store=place) as again, AsyncExitStack() as stack:
                await attend(again, stack)
                runner = await ended(again.jobs.runner(runner.id))
        history = runner.machine.state.history
        records.append([(record.digest, record.auxiliary) for record in history])
        assert findings(folder, runner.id, place) == []
    assert records[0] == records[1]
    assert len({auxiliary for _, auxiliary in records[0]}) == 5


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("fedavg", {"merge": {"kind": "latest"}, "sample": {"kind": "uniform", "fraction": 0.7}}),
        ("async-fedavg", {"pace": {"updates": 9}}),
        ("fedavg", {"layers": {"kind": "parameters"}}),
        ("async-fedavg", {"pace": {"updates": 9}, "layers": {"kind": "parameters"}}),
        ("median", {}),
        ("krum", {"merge": {"attackers": 0}}),
        ("fedyogi", {}),
        ("fedbuff", {"pace": {"updates": 10, "buffer": 4}}),
        ("fedavg", {"merge": {"kind": "delta", "normalise": "weights"}}),
    ],
)
async def test_they_go_with_every_kind_of_merge_and_are_verified(
    tmp_path: Path, rule: str, parts: dict[str, Any]
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack)
        runner = await ended(await submit(served, rule=rule, **parts))
        assert runner.view().status == "completed", runner.view().reason
        assert {"mean/layer.weight", "sum/layer.weight"} < set(model_of(served, runner))
    assert findings(tmp_path, runner.id) == []


async def test_a_changed_number_in_them_is_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack)
        runner = await ended(await submit(served))
    assert runner.machine.state.current is not None
    for key in (runner.machine.state.current, *runner.machine.state.basis):
        path = tmp_path / "store" / "models" / key
        whole = path.read_bytes()
        at = whole.rindex(np.float32(model_value(runner, key)).tobytes())
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert [found.where for found in findings(tmp_path, runner.id)] == [f"model {key}"]
        path.write_bytes(whole)
    assert findings(tmp_path, runner.id) == []


def model_value(runner: JobRunner, key: str) -> float:
    """Return a number of the sum in a version."""
    share = sum(VALUES.values()) / 3
    version = int(key.rpartition("v")[2])
    return share * version * (version + 1) / 2


def without(name: str) -> Change:
    return lambda spec, arrays: (spec.subset(set(spec.names) - {name}), arrays)


def renamed(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
    infos = [*spec.tensors[:-1], TensorInfo("other/layer.weight", "float32", (3, 4), Role.AUX)]
    return ModelSpec(tuple(infos), spec.layers), arrays | {"other/layer.weight": arrays["sum/layer.weight"]}


def reshaped(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
    infos = [*spec.tensors[:-1], TensorInfo("sum/layer.weight", "float32", (4, 3), Role.AUX)]
    return ModelSpec(tuple(infos), spec.layers), arrays | {"sum/layer.weight": np.ones((4, 3), np.float32)}


def retyped(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
    infos = [*spec.tensors[:-1], TensorInfo("sum/layer.weight", "float64", (3, 4), Role.AUX)]
    return ModelSpec(tuple(infos), spec.layers), arrays | {"sum/layer.weight": np.ones((3, 4))}


def promoted(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
    infos = [*spec.tensors[:-1], TensorInfo("sum/layer.weight", "float32", (3, 4), Role.PARAM)]
    return ModelSpec(tuple(infos), spec.layers), arrays


def infinite(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
    return spec, arrays | {"sum/layer.weight": np.full((3, 4), np.nan, np.float32)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("sum/layer.weight"), "missing sum/layer.weight"),
        (renamed, "missing sum/layer.weight; unexpected other/layer.weight"),
        (reshaped, "sum/layer.weight (float32 [4, 3]) should be sum/layer.weight (float32 [3, 4])"),
        (retyped, "sum/layer.weight: a float64 tensor cannot have role AUX"),
        (promoted, "sum/layer.weight (float32 [3, 4]) should be sum/layer.weight (float32 [3, 4])"),
        (infinite, "tensor sum/layer.weight holds NaN or infinite values"),
    ],
    ids=["missing", "renamed", "reshaped", "retyped", "promoted", "NaN"],
)
async def test_wrong_ones_are_quarantined_as_wrong_models_are(
    tmp_path: Path, change: Change, reason: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        sites = await attend(served, stack, b={"change": change})
        runner = await ended(await submit(served, pace={"rounds": 1}))
        assert runner.view().status == "completed", runner.view().reason
    assert reason in runner.view().history[1].lost["b"]
    assert any(reason in rejection for rejection in sites["b"].rejections)
    assert sorted(runner.view().history[1].contributions) == ["a", "c"]


async def test_an_update_of_a_job_without_them_must_not_bring_any(tmp_path: Path) -> None:
    def extended(spec: ModelSpec, arrays: Arrays) -> tuple[ModelSpec, Arrays]:
        whole = with_auxiliary(spec, ["sum"])
        return whole, filled(whole, 1)

    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack, b={"change": extended})
        runner = await ended(await submit(served, local={"kind": "plain"}, pace={"rounds": 1}))
    assert "unexpected sum/layer.weight" in runner.view().history[1].lost["b"]


CROSSED = ModelSpec(
    (
        TensorInfo("w", "float32", (2,), Role.PARAM),
        TensorInfo("sum/w", "float32", (2,), Role.PARAM),
    )
)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (CROSSED, "tensor sum/w must be renamed"),
        (with_auxiliary(SPEC, ["sum"]), "the first model has auxiliary tensors"),
    ],
)
async def test_a_first_model_that_does_not_go_with_them_is_refused(
    tmp_path: Path, spec: ModelSpec, message: str
) -> None:
    payload = pack(spec, filled(spec, 1))
    manifest: Manifest = seal(spec, payload)

    async def frames() -> AsyncIterator[bytes]:
        for frame in cut(payload):
            yield bytes(frame)

    async def answer(site: LightSite, task: Task) -> None:
        with pytest.raises(Rejected, match=re.escape(message)):
            await site.send(task, filled(spec, 1))

    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        with pytest.raises(Rejected, match=re.escape(message)):
            await served.submit(job(local=LOCAL), manifest, frames())
        site = LightSite(served.address, "a", spec=spec, answer=answer)
        await stack.enter_async_context(site.attending())
        runner = await ended(await submit(served, sites={"min": 1}))
        assert runner.view().status == "failed"
        assert message in runner.view().reason
