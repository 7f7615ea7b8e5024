"""Divide-and-Conquer over real gRPC with light sites: what travels and stays (divide-and-conquer §5, §8)."""

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.models.frames import Layout, cut, pack, seal, views
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo
from hansa.common.rpc.incoming import Incoming
from hansa.common.site.transfer import Fetcher, hand_in
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import ModelKey, community_key, moment_key
from hansa.common.values.results import Anatomy, Evaluation, UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Task, Train
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from hansa.protos import fleet_pb2
from tests.support import LightSite, Served, ended, filled, job, model_of, nothing, serving

SPEC = ModelSpec(
    tuple(
        TensorInfo(f"{name}.{part}", "int64" if part == "count" else "float32", shape, role, layer)
        for layer, name in enumerate(("one", "two", "three"))
        for part, shape, role in (
            ("weight", (60, 70), Role.PARAM),
            ("bias", (60,), Role.PARAM),
            ("mean", (60,), Role.STAT),
            ("count", (), Role.COUNT),
        )
    ),
    ("one", "two", "three"),
)
FIRST = tuple(name for name in SPEC.names if not name.startswith("three."))
LAST = tuple(name for name in SPEC.names if name.startswith("three."))
Arrays = dict[str, np.ndarray]


def floats(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not name.endswith(".count"))


def stored(served: Served, key: ModelKey) -> Arrays:
    with served.federation.store.open(key) as model:
        payload = np.frombuffer(b"".join(model.read(i) for i in range(model.layout.frames)), np.uint8)
        return views(model.layout, payload)


class Counting(Fetcher):
    """A fetcher that records what it receives."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.got: list[tuple[str, ...]] = []

    async def receive(self, key: ModelKey, incoming: Incoming, auxiliary: Sequence[str]) -> None:
        await super().receive(key, incoming, auxiliary)
        # Counters are ignored: a site that holds a number is not sent the same number for another tensor.
        self.got.append(tuple(info.name for info in incoming.part.tensors if info.role is not Role.COUNT))


class Trainee:
    """A site that trains exactly the tensors of its task: it adds its value to every number."""

    def __init__(self, site: LightSite, pool: ThreadPoolExecutor, absent: Sequence[int] = ()) -> None:
        self.site, self.pool, self.absent = site, pool, absent
        self.fetcher: Counting | None = None
        self.held: dict[int, Arrays] = {}  # what it started from, by round
        self.measured: list[tuple[ModelKey, float]] = []
        site.answer = self.answer
        site.spec = SPEC

    async def answer(self, site: LightSite, task: Task) -> None:
        if self.fetcher is None:
            self.fetcher = Counting(site.attendance, self.pool)
        match task.work:
            case Init():
                arrays = {
                    name: np.random.default_rng(1).random(a.shape).astype(a.dtype)
                    for name, a in _zeros().items()
                }
                await self._hand_in(task, SPEC, arrays, anatomy=Anatomy(blocks=(0, 1, 2)))
            case Train() as work:
                if task.round in self.absent:
                    return
                start, arrays = await self.fetcher.fetch(work.model, work.base)
                self.held[task.round] = {name: array.copy() for name, array in arrays.items()}
                spec = start.spec.subset(work.tensors) if work.tensors else start.spec
                noise = np.random.default_rng([task.round, ord(site.name)])
                made = {
                    info.name: arrays[info.name]
                    + np.asarray(site.value * noise.random(info.shape) + 1, info.dtype)
                    for info in spec.tensors
                }
                own = Evaluation(n=4, loss_sum=2.0, confusion=((3, 1), (0, 0)))
                await self._hand_in(task, spec, made, evaluation=own if work.validate_update else None)
            case Evaluate() as work:
                _, arrays = await self.fetcher.fetch(work.model, work.base)
                assert set(arrays) == set(SPEC.names)
                self.measured.append((work.model, float(sum(array.sum() for array in arrays.values()))))
                report = fleet_pb2.TaskReport(site=site.name, task=task.id)
                report.evaluation.MergeFrom(
                    fleet_pb2.Evaluation(n=4, loss_sum=2.0, classes=2, confusion=[2, 1, 0, 1])
                )
                await site.attendance.insist(lambda: site.attendance.stub.Report(report))
            case _:
                await LightSite.do(site, task)

    async def _hand_in(self, task: Task, spec: ModelSpec, arrays: Arrays, **facts: Any) -> None:
        payload = pack(spec, arrays)
        said = UpdateFacts(n_train=10, n_used=10, steps=1, epochs=1, seconds=0, **facts)
        await hand_in(self.site.attendance, task.id, seal(spec, payload), payload, said)


def _zeros() -> Arrays:
    return filled(SPEC, 0)


async def submit(served: Served, **changes: Any) -> JobRunner:
    base: dict[str, Any] = {"rule": "divide", "sites": {"min": 2}, "evaluate": {"every": 1000}}
    return await served.submit(job(**(base | changes)), None, nothing())


async def attend(
    served: Served, stack: AsyncExitStack, names: str, role: str = "learner", **more: Any
) -> list[Trainee]:
    pool = stack.enter_context(ThreadPoolExecutor(1))
    made = []
    for number, name in enumerate(names):
        site = LightSite(served.address, name, role=role, value=1.0 + number)
        made.append(Trainee(site, pool, more.get(name, ())))
        await stack.enter_async_context(site.attending())
    return made


def same(one: Arrays, other: Arrays, names: Sequence[str]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in names)


def check(folder: Path, runner: JobRunner) -> None:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == runner.id]
        assert verify(backends, record)[2] == []


async def test_only_the_trained_group_goes_up_and_only_the_merged_one_comes_down(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        a, b = await attend(served, stack, "ab")
        runner = await ended(await submit(served, pace={"rounds": 7}, layers={"prepass": 0, "split": 2}))
        assert runner.view().status == "completed", runner.view().reason
        final = model_of(served, runner)
        for site in (a, b):
            assert site.fetcher is not None
            assert site.fetcher.got == [floats(SPEC.names), *[floats(FIRST), floats(LAST)] * 3]
            for number in range(2, 8):
                frozen = LAST if number % 2 == 0 else FIRST  # what the round before left alone
                assert same(site.held[number], site.held[number - 1], frozen)
        assert same(final, a.held[7], LAST)
        assert not same(final, a.held[7], FIRST[:1])
        history = runner.view().history[1:]
        assert [entry.phase for entry in history] == ["feature", "fine-tuning"] * 3 + ["feature"]
        whole = 2 * Layout(SPEC).size
        assert history[2].bytes_up == 2 * Layout(SPEC.subset(FIRST)).size
        assert history[3].bytes_up == 2 * Layout(SPEC.subset(LAST)).size
        for one, other in zip(history[1:5:2], history[2:6:2], strict=True):
            assert one.bytes_up + other.bytes_up == whole
            assert whole <= one.bytes_down + other.bytes_down < 1.2 * whole
    check(tmp_path, runner)


async def test_a_site_that_was_absent_for_two_rounds_gets_both_groups_and_then_holds_the_community_model(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        a, _, c = await attend(served, stack, "abc", c=(2, 3))
        pace = {"rounds": 4, "deadline": 0.4, "quorum": 2}
        layers = {"prepass": 0, "split": 2}
        runner = await ended(await submit(served, pace=pace, layers=layers, sites={"min": 3}))
        assert runner.view().status == "completed", runner.view().reason
        assert set(c.held) == {1, 4}
        assert c.fetcher is not None
        assert c.fetcher.got[-1] == floats(SPEC.names)
        assert same(c.held[4], a.held[4], SPEC.names)
    check(tmp_path, runner)


async def test_the_prepass_compares_what_sites_sent_and_its_split_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack, "ab")
        runner = await ended(await submit(served, pace={"rounds": 4}, layers={"prepass": 2}))
    assert runner.view().status == "completed", runner.view().reason
    told = [entry.diagnostics["layers"] for entry in runner.view().history[1:]]
    found: Any = told[1]["divergences"]
    assert all(
        len(found[metric]) == 3 and min(found[metric]) > 0 for metric in ("eq3", "cosine", "relative_l2")
    )
    assert told[1]["split"] == told[2]["split"] == told[3]["split"] in (1, 2)
    assert [entry.phase for entry in runner.view().history[1:]] == [
        "prepass",
        "prepass",
        "feature",
        "fine-tuning",
    ]
    check(tmp_path, runner)


async def test_a_restart_begins_again_from_version_0_bit_for_bit(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        (a, _) = await attend(served, stack, "ab")
        runner = await ended(await submit(served, pace={"rounds": 4}, layers={"prepass": 2, "restart": True}))
        assert runner.view().status == "completed", runner.view().reason
        assert same(a.held[3], a.held[1], SPEC.names)
        assert not same(a.held[2], a.held[1], FIRST)
    check(tmp_path, runner)


async def test_evaluators_measure_the_whole_model_behind_a_partial_update(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        a, b = await attend(served, stack, "ab")
        judges = await attend(served, stack, "ab", role="evaluator")
        layers = {"prepass": 0, "split": 2}
        runner = await ended(await submit(served, pace={"rounds": 3}, layers=layers, weigh={"kind": "dvw"}))
        assert runner.view().status == "completed", runner.view().reason
        assert all(score.basis == "pooled" for score in runner.view().history[-1].scores.values())
        assert [len(judge.measured) for judge in judges] == [
            4,
            4,
        ]  # each other's three updates, and the last version
        changed = {name: array.sum() for name, array in a.held[3].items()}
        noise = np.random.default_rng([3, ord("b")])
        wanted = sum(changed.values()) + sum(
            np.asarray(2.0 * noise.random(info.shape) + 1, info.dtype).sum()
            for info in SPEC.subset(FIRST).tensors
        )
        assert judges[0].measured[2][1] == pytest.approx(wanted, rel=1e-5)
        assert judges[0].fetcher is not None
        assert judges[0].fetcher.got[:2] == [floats(SPEC.names), floats(FIRST)]  # the base, once
        assert b.held


@pytest.mark.parametrize("merge", ["incremental", "mean"])
async def test_without_rounds_stale_parts_are_measured_over_what_their_sites_started_from(
    tmp_path: Path, merge: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack, "abc")
        judges = await attend(served, stack, "abc", role="evaluator")
        parts = {
            "layers": {"kind": "divide", "prepass": 0, "split": 2},
            "weigh": {"kind": "dvw"},
            "merge": {"kind": merge},
        }
        runner = await ended(
            await submit(served, rule="async-fedavg", pace={"updates": 12}, sites={"min": 3}, **parts)
        )
        assert runner.view().status == "completed", runner.view().reason
    history = runner.view().history[1:]
    assert all(score.basis == "pooled" for entry in history for score in entry.scores.values())
    assert max(stale for entry in history for stale, _ in entry.staleness.values()) > 0
    for site in "abc":
        phases = [entry.phase for entry in history if site in entry.contributions]
        assert phases == (["feature", "fine-tuning"] * len(phases))[: len(phases)]
    assert sum(len(judge.measured) for judge in judges) >= 24  # two others for each of twelve updates
    check(tmp_path, runner)


async def test_parts_of_models_travel_from_site_to_site_and_a_server_optimizer_takes_them(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        sites = await attend(served, stack, "ab")
        parts: dict[str, Any] = {
            "layers": {"kind": "divide", "prepass": 1},
            "server": {"kind": "yogi", "lr": 0.01},
        }
        parts["sample"] = {"kind": "all"}  # two models travel
        runner = await ended(await submit(served, rule="radfed", pace={"rounds": 4, "hops": 3}, **parts))
        assert runner.view().status == "completed", runner.view().reason
        history = runner.view().history[1:]
        assert [entry.phase for entry in history] == ["prepass", "feature", "fine-tuning", "feature"]
        split = history[0].diagnostics["layers"]["split"]
        assert isinstance(split, int)
        last = tuple(info.name for info in SPEC.tensors if info.layer >= split)
        final = model_of(served, runner)
        for (
            site
        ) in sites:  # what it held in the last hop of the last round: the frozen part is the community's
            assert same(site.held[4], final, last)
            assert not same(site.held[4], final, [name for name in floats(SPEC.names) if name not in last])
        whole, part = history[0].bytes_up, history[1].bytes_up
        assert whole > 6 * Layout(SPEC).size  # two slots, three hops, and version 0
        assert part == 6 * Layout(SPEC.subset([name for name in SPEC.names if name not in last])).size
    check(tmp_path, runner)


@pytest.mark.parametrize("merge", ["mean", "incremental", "latest"])
async def test_moments_of_frozen_tensors_are_neither_used_nor_changed(tmp_path: Path, merge: str) -> None:
    seen: list[dict[str, Arrays]] = []

    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack, "ab")
        parts = {"layers": {"prepass": 1, "split": 2}, "merge": {"kind": merge}}
        runner = await submit(served, pace={"rounds": 5}, server={"kind": "yogi", "lr": 0.01}, **parts)
        while not runner.machine.ended:
            await runner.next_change().wait()
            version = runner.machine.state.version
            key = moment_key(runner.id, version, "m")
            if version == len(seen) + 1 and key in runner.machine.state.basis:
                keys = {
                    "m": key,
                    "v": moment_key(runner.id, version, "v"),
                    "w": community_key(runner.id, version),
                }
                seen.append({name: stored(served, each) for name, each in keys.items()})
        assert runner.view().status == "completed", runner.view().reason
    assert len(seen) == 5
    params = [name for name in SPEC.names if name.endswith((".weight", ".bias"))]
    for number, (one, other) in enumerate(pairwise(seen)):  # versions 2 to 5 after the one before
        trained = FIRST if number % 2 == 0 else LAST
        for kind in ("m", "v", "w"):
            assert all(same(one[kind], other[kind], [name]) is (name not in trained) for name in params)
    check(tmp_path, runner)


async def test_the_distance_from_a_reference_includes_tensors_that_were_not_trained(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    held = {info.name: chance.normal(size=info.shape).astype(DTYPES[info.dtype]) for info in SPEC.tensors}
    params = [info.name for info in SPEC.tensors if info.role is Role.PARAM]
    payload = pack(SPEC, held)
    manifest = seal(SPEC, payload)

    async def frames() -> AsyncIterator[bytes]:
        for frame in cut(payload):
            yield bytes(frame)

    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        one, *_ = await attend(served, stack, "ab")
        words = {
            "rule": "divide",
            "sites": {"min": 2},
            "pace": {"rounds": 4},
            "layers": {"prepass": 0, "split": 2},
        }
        spec = job(reference=manifest.digest.hex(), **words)
        runner = await ended(await served.submit(spec, None, frames(), reference=manifest))
        assert runner.view().status == "completed", runner.view().reason
        models = [one.held[number] for number in sorted(one.held)] + [model_of(served, runner)]
        there = np.concatenate([held[name].astype(np.float64).reshape(-1) for name in params])
        for entry, arrays in zip(runner.view().history, models, strict=True):
            here = np.concatenate([arrays[name].astype(np.float64).reshape(-1) for name in params])
            wanted = np.linalg.norm(here - there) / np.linalg.norm(there)
            assert entry.distance == pytest.approx(float(wanted), rel=1e-12)
    check(tmp_path, runner)


async def test_a_model_that_cannot_be_divided_is_refused_at_submission(tmp_path: Path) -> None:
    flat = ModelSpec((TensorInfo("weight", "float32", (3, 3), Role.PARAM, 0),), ("weight",))
    payload = pack(flat, filled(flat, 0))

    async def frames() -> AsyncIterator[bytes]:
        for frame in cut(payload):
            yield bytes(frame)

    async with serving(tmp_path) as served:
        with pytest.raises(InvalidJob, match="the model has one layer"):
            await served.submit(job(rule="divide"), seal(flat, payload), frames())


FOREIGN = ModelSpec(  # as somebody else's file tells it: no layers, no roles, in its own order
    tuple(
        TensorInfo(info.name, info.dtype, info.shape, Role.COUNT if info.dtype == "int64" else Role.PARAM)
        for info in sorted(SPEC.tensors, key=lambda info: info.name)
    )
)


async def submit_file(served: Served, spec: ModelSpec, **changes: Any) -> JobRunner:
    payload = pack(spec, filled(spec, 2))

    async def frames() -> AsyncIterator[bytes]:
        for frame in cut(payload):
            yield bytes(frame)

    base: dict[str, Any] = {"rule": "divide", "sites": {"min": 2}, "evaluate": {"every": 1000}}
    return await served.submit(job(**(base | changes)), seal(spec, payload), frames())


@pytest.mark.parametrize("spec", [FOREIGN, SPEC], ids=["foreign", "own"])
async def test_version_0_may_come_from_a_file_and_a_site_describes_what_the_file_lacks(
    tmp_path: Path, spec: ModelSpec
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        a, b = await attend(served, stack, "ab")
        runner = await submit_file(
            served, spec, pace={"rounds": 4}, layers={"prepass": 0, "split": 2, "blocks": True}
        )
        await ended(runner)
        view = runner.view()
        assert view.status == "completed", view.reason
        assert all((array == 2).all() for array in a.held[1].values()), "the numbers are the file's"
        assert [entry.phase for entry in view.history[1:]] == ["feature", "fine-tuning"] * 2
        assert same(a.held[2], a.held[1], LAST)
        assert same(b.held[3], b.held[2], FIRST)
        ups = [entry.bytes_up for entry in view.history]
        assert ups[1] == 2 * Layout(spec.subset(FIRST)).size, "what was built to tell of it did not travel"
        assert f"{runner.id}/u1" not in served.federation.store.keys(f"{runner.id}/"), "nor was it stored"
    check(tmp_path, runner)


async def test_a_file_that_does_not_fit_the_apps_model_ends_the_job_and_says_where(tmp_path: Path) -> None:
    less = ModelSpec(tuple(info for info in FOREIGN.tensors if info.name != "two.bias"))
    async with serving(tmp_path) as served, AsyncExitStack() as stack:
        await attend(served, stack, "ab")
        runner = await ended(await submit_file(served, less, layers={"prepass": 0, "split": 2}))
        assert runner.view().status == "failed"
        misfit = "update quarantined: init: the file does not fit the app's model: "
        assert f"could not describe the first model: {misfit}" in runner.view().reason
        assert "missing two.bias" in runner.view().reason


async def test_a_rule_that_no_description_can_save_is_refused_at_submission(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(InvalidJob, match=r"layers\.split: 3 is out of range"):
            await submit_file(served, SPEC, layers={"prepass": 0, "split": 3, "blocks": True})
