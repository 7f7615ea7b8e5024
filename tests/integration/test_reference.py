"""A job's reference over real gRPC: the distance of every version from it, restarts and refusals."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.models.frames import FRAME, cut
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.values.errors import HansaError, InvalidJob, Refused, Rejected
from hansa.common.values.ids import reference_key
from hansa.common.values.tasks import Task, Train
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.redis_server import RedisServer
from tests.support import (
    LightSite,
    Served,
    ended,
    filled,
    job,
    model_of,
    nothing,
    sealed,
    serving,
    small_spec,
)

SPEC = small_spec()
VALUES = {"a": 1.0, "b": 4.0, "c": -2.0, "d": 0.5, "e": 3.0}
Arrays = dict[str, np.ndarray]


def drawn(seed: int, spec: ModelSpec = SPEC) -> Arrays:
    chance = np.random.default_rng(seed)
    return {
        name: array + np.asarray(10 * chance.normal(), array.dtype) for name, array in filled(spec, 1).items()
    }


def saved(folder: Path, name: str, arrays: Arrays, spec: ModelSpec = SPEC) -> str:
    save_checkpoint(folder / name, *sealed(spec, arrays))
    return str(folder / name)


def apart(model: Arrays, reference: Arrays) -> float:
    """Return DC by the book: parameters only, in float64."""
    here, there = (arrays["layer.weight"].astype(np.float64).reshape(-1) for arrays in (model, reference))
    return float(np.sqrt(np.square(there - here).sum() / np.square(there).sum()))


def told(runner: JobRunner) -> list[float | None]:
    return [entry.distance for entry in runner.view().history]


async def stream(*payloads: np.ndarray) -> AsyncIterator[bytes]:
    for payload in payloads:
        for frame in cut(payload):
            yield bytes(frame)


async def submit(
    served: Served,
    spec: JobSpec,
    reference: tuple[Manifest, np.ndarray],
    first: tuple[Manifest, np.ndarray] | None = None,
) -> JobRunner:
    """Submit a job with a reference as a servicer does."""
    spec = spec.model_copy(update={"reference": reference[0].digest.hex()})
    payloads = [first[1], reference[1]] if first else [reference[1]]
    return await served.submit(spec, first[0] if first else None, stream(*payloads), reference=reference[0])


async def attend(served: Served, sites: AsyncExitStack, names: Iterable[str] = VALUES, **more: Any) -> None:
    for name in names:
        await sites.enter_async_context(
            LightSite(served.address, name, value=VALUES[name], **more).attending()
        )


PACES = {
    "fedavg": {"rounds": 4},
    "async-fedavg": {"updates": 12},
    "fedasync": {"updates": 12},
    "fedadam": {"rounds": 4},
    "median": {"rounds": 3},
    "krum": {"rounds": 3},
    "radfed": {"rounds": 3, "hops": 2},
}


@pytest.mark.parametrize("rule", PACES)
async def test_every_version_has_its_distance_whatever_the_rule(tmp_path: Path, rule: str) -> None:
    reference = drawn(7)
    seen: dict[int, Arrays] = {}

    async def answer(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.hop <= 1:  # later hops begin with a slot's model
            seen[task.work.version] = await site.fetch(task.work.model)
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, answer=answer)
        async with AsyncClient(served.address) as client:
            words = {"rule": rule, "pace": PACES[rule], "sites": {"min": 5}}
            spec = job(reference=saved(tmp_path, "central.safetensors", reference), **words)
            view = (await client.submit(spec)).view
            runner = await ended(served.jobs.runner(view.job))  # type: ignore[arg-type]
            shown = await client.show(view.job)
        assert shown.status == "completed", shown.reason
        seen[shown.version] = model_of(served, runner)
        assert len(seen) > 3
        assert [entry.distance for entry in shown.history] == told(runner)
        for version, arrays in seen.items():
            assert shown.history[version].distance == apart(arrays, reference), f"version {version}"
        assert None not in told(runner)
        assert len(set(told(runner))) > 2
        plain = await ended(await served.submit(job(**words), None, nothing()))
        assert set(told(plain)) == {None}
        if rule in (
            "fedavg",
            "fedadam",
            "median",
            "krum",
        ):  # the same sites, round by round: nothing else has changed
            ends = [[(u.site, u.weight, u.steps) for u in e.updates] for e in plain.view().history]
            assert ends == [[(u.site, u.weight, u.steps) for u in e.updates] for e in shown.history]
            assert (
                model_of(served, plain)["layer.weight"].tobytes()
                == seen[shown.version]["layer.weight"].tobytes()
            )
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        for record in backends.journal.jobs():
            assert verify(backends, record)[2] == []
        assert not backends.store.has(reference_key(runner.id))


async def test_a_reference_may_come_with_a_first_model_and_both_may_have_many_frames(tmp_path: Path) -> None:
    large = ModelSpec((TensorInfo("layer.weight", "float32", (FRAME // 3,), Role.PARAM), *SPEC.tensors[1:]))
    chance = np.random.default_rng(3)
    first, reference = (
        filled(large, 1) | {"layer.weight": chance.normal(size=FRAME // 3).astype(np.float32)}
        for _ in range(2)
    )
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        files = {
            "init": saved(tmp_path, "first", first, large),
            "reference": saved(tmp_path, "other", reference, large),
        }
        spec = job(pace={"rounds": 2}, **files)
        view = (await client.submit(spec)).view
        runner = served.jobs.runner(view.job)  # type: ignore[arg-type]
        held = runner.machine.spec
        assert (held.init, held.reference) == tuple(
            sealed(large, each)[0].digest.hex() for each in (first, reference)
        )
        async with LightSite(served.address, "a", spec=large).attending():
            await ended(runner)
        assert runner.view().status == "completed", runner.view().reason
        there = reference["layer.weight"].astype(np.float64)
        for version, distance in enumerate(told(runner)):
            arrays = first["layer.weight"].copy()
            for _ in range(version):
                arrays = arrays + np.float32(1)
            wanted = np.linalg.norm(arrays.astype(np.float64) - there) / np.linalg.norm(there)
            assert distance == pytest.approx(float(wanted), rel=1e-12)


async def test_a_reference_of_another_origin_has_other_roles_and_another_order(tmp_path: Path) -> None:
    """A plain state dict says nothing about roles; the job's model does."""
    turned = ModelSpec(
        tuple(
            TensorInfo(i.name, i.dtype, i.shape, Role.PARAM if i.is_float else i.role)
            for i in SPEC.tensors[::-1]
        )
    )
    reference = drawn(7)
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await ended(await submit(served, job(), sealed(turned, reference)))
        assert runner.view().status == "completed", runner.view().reason
        assert told(runner)[-1] == apart(model_of(served, runner), reference)


@pytest.mark.parametrize("kind", ["disk", "redis"])
@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
async def test_distances_survive_a_restart(
    tmp_path: Path, rule: str, kind: str, request: pytest.FixtureRequest
) -> None:
    store = f"disk:{tmp_path / 'store'}"
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        store = f"{server.url}?prefix=reference-{rule}"
    reference = drawn(7)
    spec = job(rule=rule, pace={"rounds": 20} if rule == "fedavg" else {"updates": 20})
    async with serving(tmp_path, store=store) as served:
        async with LightSite(served.address, "a").attending():
            runner = await submit(served, spec, sealed(SPEC, reference))
            while runner.machine.state.version < 5:
                await runner.next_change().wait()
        before = told(runner)
    async with serving(tmp_path, store=store) as served:
        again = served.jobs.runner(runner.id)
        key = reference_key(runner.id)
        assert again.machine.state.reference == key
        assert key in served.federation.store.keys(f"{runner.id}/")
        kept = told(again)
        assert kept == before[: len(kept)]
        assert len(kept) >= len(before) - 1  # the last version may not have been durable yet
        async with LightSite(served.address, "a").attending():
            assert (await ended(again)).view().status == "completed"
        # Each update adds one to every number: version n is n everywhere.
        assert told(again) == [apart(filled(SPEC, version), reference) for version in range(21)]
    with opened(store, tmp_path, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == runner.id]
        machine, _, findings = verify(backends, record)
        assert findings == []
        assert machine.state.model_dump() == again.machine.state.model_dump()
        assert key not in backends.store.keys(f"{runner.id}/")


async def test_a_job_that_nothing_has_happened_to_keeps_its_reference_through_a_restart(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        runner = await submit(served, job(), sealed(SPEC, drawn(7)))
        assert runner.machine.state.sequence == 0
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        assert verify(backends, backends.journal.jobs()[0])[2] == []
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        again = await ended(served.jobs.runner(runner.id))
        assert again.view().status == "completed", again.view().reason
        assert None not in told(again)


async def test_a_submission_that_was_interrupted_before_its_reference_was_stored_has_failed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        runner = await submit(served, job(), sealed(SPEC, drawn(7)))
    with opened(f"disk:{tmp_path / 'store'}", tmp_path) as backends:
        backends.store.delete(reference_key(runner.id))
    async with serving(tmp_path) as served:
        again = await ended(served.jobs.runner(runner.id))
        assert (again.view().status, again.view().reason) == ("failed", "the submission was interrupted")


async def test_training_goes_on_without_distances_when_the_reference_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        waiting = await submit(served, job(pace={"rounds": 3}), sealed(SPEC, drawn(7)))

        async def answer(site: LightSite, task: Task) -> None:
            if isinstance(task.work, Train) and task.work.version == 1:
                while waiting.machine.state.orders:
                    await waiting.next_change().wait()
                served.federation.store.delete(reference_key(waiting.id))
            await site.do(task)

        await attend(served, sites, "a", answer=answer)
        view = (await ended(waiting)).view()
        assert view.status == "completed", view.reason
        assert [entry.distance is None for entry in view.history] == [False, False, True, True]
        assert "no distance: the store has no model" in view.history[2].note
        assert (model_of(served, waiting)["layer.weight"] == 3).all()


# What is refused.


async def test_a_reference_of_another_model_is_refused_at_submission_if_the_first_model_comes_too(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        other = small_spec(5)
        files = {
            "init": saved(tmp_path, "first", drawn(1)),
            "reference": saved(tmp_path, "other", drawn(2, other), other),
        }
        with pytest.raises(
            HansaError, match=r"reference: it does not fit .*layer\.weight \(float32 \[5, 4\]\) should"
        ) as e:
            await client.submit(job(**files))
        assert e.value.exit_code == 2
        assert served.jobs.newest_first == []
        assert served.federation.store.keys() == []


async def test_a_reference_of_another_model_fails_the_job_when_a_site_has_built_the_first(
    tmp_path: Path,
) -> None:
    other = ModelSpec(SPEC.tensors[:2])
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await submit(served, job(pace={"rounds": 1000}), sealed(other, drawn(2, other))))
        view = runner.view()
        assert view.status == "failed"
        assert view.reason == "reference: it does not fit the job's model: missing norm.count"
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        machine, _, findings = verify(backends, backends.journal.jobs()[0])
        assert findings == []
        assert machine.state.reason == view.reason
        assert not backends.store.has(reference_key(runner.id))


def _with(name: str, value: float) -> Arrays:
    return drawn(2) | {name: np.full(SPEC.tensors[SPEC.index[name]].shape, value, np.float32)}


async def test_invalid_references_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    good, first = sealed(SPEC, drawn(2)), sealed(SPEC, drawn(1))
    nan, zero = (sealed(SPEC, _with("layer.weight", value)) for value in (float("nan"), 0.0))
    nil = sealed(SPEC, filled(SPEC, 0))
    async with serving(tmp_path) as served:
        for version0 in (None, first):
            with pytest.raises(Rejected, match=r"^reference: tensor layer\.weight holds NaN"):
                await submit(served, job(), nan, version0)
            with pytest.raises(InvalidJob, match="only zeros"):
                await submit(served, job(), nil, version0)
            with pytest.raises(Refused, match="the reference ended after 0 frames"):
                await submit(served, job(), (good[0], np.zeros(0, np.uint8)), version0)
            with pytest.raises(Rejected, match=r"reference: .*does not match its digest"):
                await submit(served, job(), (good[0], zero[1]), version0)
            with pytest.raises(Rejected, match="reference: frame 0 has 64 bytes"):
                await submit(served, job(), (good[0], good[1][:64]), version0)
        with pytest.raises(Rejected, match="first model: tensor layer"):
            await submit(served, job(), good, nan)
        named = job().model_copy(update={"reference": good[0].digest.hex()})
        spec_less = job()
        for spec, brought in ((named, None), (named, first[0]), (spec_less, good[0])):
            with pytest.raises(InvalidJob, match="does not contain the model that the job names"):
                await served.submit(spec, None, stream(good[1]), reference=brought)
        with pytest.raises(Rejected, match="reference: more than the 1 frames"):
            await served.submit(named, None, stream(good[1], good[1]), reference=good[0])
        assert served.jobs.newest_first == []
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        assert backends.store.keys() == []
        assert list((tmp_path / "store").rglob("*draft*/*")) == []


async def test_a_job_that_ends_while_its_first_model_is_measured_lets_everything_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        runner = await submit(served, job(sites={"min": 2}), sealed(SPEC, drawn(2)), sealed(SPEC, drawn(1)))
        await attend(served, sites, "a")
        async with AsyncClient(served.address) as client:
            await client.cancel(runner.id)
        state = (await ended(runner)).machine.state
        assert (state.reference, state.orders) == (None, {})
        assert {key.partition("/")[2] for key in state.models} == {"v0"}
