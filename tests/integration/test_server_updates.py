"""Server updates and robust aggregators in whole jobs over real gRPC: restarts, verification, clean-up."""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.registry import register
from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Task, Train
from hansa.controller.plugin.arithmetic import Coordinatewise, MergeInfo, Moments, Selecting, ServerUpdate
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import Finding, verify
from tests.support import LightSite, Served, ended, job, model_of, nothing, serving

ROUNDS = 6
VALUES = (1.0, 4.0, -2.0, 0.5, 3.0)


@register("server", "capricious")
class Capricious(ServerUpdate):
    """Accepts proposals, until the fifth version."""

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Raise in the fifth version."""
        if info.version == 5:
            raise ValueError("not today")
        return proposal, moments


@register("server", "sloppy")
class SloppyUpdate(ServerUpdate):
    """Returns something that is not a step, from the third version on."""

    how: str = "scalar"

    @property
    def moments(self) -> dict[str, float]:
        """One moment."""
        return {"m": 0.0}

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Return something else."""
        if info.version < 3:
            return proposal, moments
        odd: dict[str, Any] = {
            "first": (proposal[:1], moments),
            "scalar": (np.float64(1), moments),
            "square": (proposal[:, None], moments),
            "whole": (proposal.astype(np.int64), moments),
            "list": (list(proposal), moments),
            "nan": (proposal * np.nan, moments),
            "alone": proposal,
            "three": (proposal, moments, info),
            "nothing": None,
            "lost": (proposal, {}),
            "more": (proposal, {**moments, "n": proposal}),
            "no-moments": (proposal, None),
            "short-moment": (proposal, {"m": moments["m"][:1]}),
            "nan-moment": (proposal, {"m": moments["m"] * np.nan}),
        }
        return odd[self.how]  # type: ignore[no-any-return]


@register("merge", "sloppy")
class SloppyMiddle(Coordinatewise):
    """Returns something that is not a row of numbers, from the third merge on."""

    how: str = "scalar"

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return something else once the numbers have grown."""
        middle = np.asarray(np.median(rows, axis=0))
        if np.abs(rows).max() < 6.5:
            return middle
        odd: dict[str, Any] = {
            "nan": middle * np.nan,
            "one-nan": np.where(np.arange(len(middle)) == len(middle) - 1, np.nan, middle),
            "huge": middle + 1e300,  # too large for float32
            "scalar": np.float64(1),
            "number": 1.0,
            "first": middle[:1],
            "square": rows,
            "nothing": None,
            "whole": middle.astype(np.int64),
            "words": middle.astype(str),
        }
        return odd.get(self.how, middle)  # type: ignore[no-any-return]

    def remark(self, count: int) -> str:
        """Say nothing, not even that."""
        return None if self.how == "silent" else ""  # type: ignore[return-value]


@register("merge", "picky")
class Picky(Selecting):
    """Chooses an update that does not exist, or the same one twice."""

    how: str = "none"

    def select(self, distances: np.ndarray) -> Sequence[int]:
        """Return something else."""
        odd: dict[str, Any] = {
            "none": None,
            "nobody": [],
            "twice": [1, 1],
            "beyond": [0, 5],
            "before": [-1],
            "halves": [0.5],
            "mask": np.ones(5, bool),
        }
        return odd.get(self.how, np.arange(2))  # type: ignore[no-any-return]


def spec_of(rule: str, **changes: Any) -> JobSpec:
    without_rounds = rule.startswith("fedasync") or rule == "fedbuff"
    pace = {"updates": 5 * ROUNDS} if without_rounds else {"rounds": ROUNDS}
    return job(rule=rule, pace=pace, sites={"min": 5, "wait": 60}, **changes)


async def attend(served: Served, sites: AsyncExitStack, **given: Any) -> None:
    for number, value in enumerate(VALUES):
        site = LightSite(served.address, f"s{number}", value=value, examples=number + 1, **given)
        await sites.enter_async_context(site.attending())


def findings(folder: Path, store: str, job_id: str) -> list[Finding]:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return verify(backends, record)[2]


def kept(folder: Path, store: str, job_id: str) -> set[str]:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        return {key.partition("/")[2] for key in backends.store.keys(f"{job_id}/")}


SYNCHRONOUS = [
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedavgm",
    "server-mix",
    "fednova",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
]


@pytest.mark.parametrize("rule", [*SYNCHRONOUS, "fedasync", "fedbuff"])
async def test_a_job_of_every_rule_completes_is_sound_and_leaves_only_what_verification_needs(
    tmp_path: Path, rule: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await served.submit(spec_of(rule), None, nothing()))
        view = runner.view()
        assert view.status == "completed", view.reason
        arrays = model_of(served, runner)
        state = runner.machine.state
    async with serving(tmp_path):
        pass  # it sweeps what the first one had no time to delete
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert findings(tmp_path, "", runner.id) == []
    members = {key for held in state.members.values() for member in held for key in member.models}
    wanted = {key.partition("/")[2] for key in members | {str(state.current)} | set(state.basis)}
    assert kept(tmp_path, "", runner.id) == wanted
    moments = len(runner.machine.rule.server.moments)
    assert len(state.basis) == (0 if runner.machine.rule.server.plain else 1 + 2 * moments)
    if rule == "krum":
        assert [entry.note for entry in view.history[1:]] == [view.history[1].note] * ROUNDS
        assert view.history[1].note.endswith("of 5 updates")


@pytest.mark.parametrize("rule", ["fedadam", "fedavgm", "server-mix", "fednova"])
async def test_a_controller_that_is_stopped_in_mid_job_makes_the_same_models_bit_for_bit(
    tmp_path: Path, store: str, rule: str
) -> None:
    """The other site is held back in round 4 until the controller has been restarted."""
    digests: list[list[str]] = []
    for stops in (False, True):
        folder = tmp_path / str(stops)
        held = f"{store}{stops}" if store else ""
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(serving(folder, store=held))
            sites = await stack.enter_async_context(AsyncExitStack())
            reached: list[int] = []

            async def answer(site: LightSite, task: Task) -> None:
                if isinstance(task.work, Train) and task.round == 4 and site.name == "s3" and stops:  # noqa: B023
                    reached.append(task.round)  # noqa: B023
                    return  # it never answers this controller
                await site.do(task)

            await attend(served, sites, answer=answer)
            runner = await served.submit(spec_of(rule), None, nothing())
            if stops:
                while not reached or runner.machine.state.version < 3:
                    await runner.next_change().wait()
                await stack.aclose()
            else:
                await ended(runner)
                digests.append([record.digest for record in runner.machine.state.history])
        if stops:
            async with serving(folder, store=held) as again, AsyncExitStack() as sites:
                resumed = again.jobs.runner(runner.id)
                assert resumed.machine.moments(3).keys() == resumed.machine.rule.server.moments.keys()
                await attend(again, sites)
                await ended(resumed)
                digests.append([record.digest for record in resumed.machine.state.history])
        assert findings(folder, held, runner.id) == []
    assert digests[0] == digests[1]
    assert len(digests[0]) == ROUNDS + 1


async def test_a_changed_byte_in_the_basis_of_a_version_is_found_and_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await served.submit(spec_of("fedyogi"), None, nothing()))
    assert findings(tmp_path, "", runner.id) == []
    for key in runner.machine.state.basis:
        path = tmp_path / "store" / "models" / key
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        assert [found.where for found in findings(tmp_path, "", runner.id)] == [f"model {key}"]
        path.unlink()
        assert [found.where for found in findings(tmp_path, "", runner.id)] == [f"model {key}"]
        path.write_bytes(whole)
    assert findings(tmp_path, "", runner.id) == []


async def test_moments_that_fit_their_digest_but_not_the_updates_are_found(tmp_path: Path) -> None:
    """Consistent changes to the moments and the journal are found by computing the version again."""
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await served.submit(spec_of("fedadam"), None, nothing()))
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        version = runner.machine.state.version
        honest = backends.store.open(ModelKey(f"{runner.id}/v{version - 1}.m"))
        forged = backends.store.draft(ModelKey(f"{runner.id}/v{version}.m"), honest.manifest.spec)
        for index in range(honest.layout.frames):
            forged.write(index, honest.read(index))
        forged.publish(honest.manifest, honest.peaks)
        found = verify(backends, record)[2]
        honest.close()
    assert [finding.where for finding in found] == [f"model {runner.id}/v{version}.m"]


async def test_a_server_update_that_raises_fails_the_job_which_keeps_the_last_model_and_names_the_plugin(
    tmp_path: Path, store: str
) -> None:
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        spec = spec_of("fedavg", server={"kind": "capricious"})
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert view.status == "failed"
        assert view.reason == "merging version 5: server 'capricious': ValueError: not today"
        assert view.version == 4
        assert np.isfinite(model_of(served, runner)["layer.weight"]).all()
    assert findings(tmp_path, store, runner.id) == []


NUMBERS = r"floating-point numbers"
UPDATE = {
    "first": f"it returned float64 \\[1\\] instead of .* {NUMBERS}",
    "scalar": f"it returned float64 instead of .* {NUMBERS}",
    "square": f"it returned float64 \\[.*, 1\\] instead of .* {NUMBERS}",
    "whole": f"it returned int64 .* {NUMBERS}",
    "list": f"it returned list instead of .* {NUMBERS}",
    "nan": "it produced NaN or infinite numbers in tensor layer",
    "alone": "it did not return the next numbers and a mapping of moments",
    "three": "it did not return the next numbers and a mapping of moments",
    "nothing": "it did not return the next numbers and a mapping of moments",
    "lost": "it returned the wrong moments: none instead of m",
    "more": "it returned the wrong moments: m, n instead of m",
    "no-moments": "it did not return the next numbers and a mapping of moments",
    "short-moment": f"it returned float64 \\[1\\] instead of .* {NUMBERS}",
    "nan-moment": "it produced NaN or infinite numbers in tensor layer",
}
MIDDLE = {
    "nan": "it produced NaN or infinite numbers in tensor layer",
    "one-nan": "it produced NaN or infinite numbers in tensor layer",
    "huge": "it produced NaN or infinite numbers in tensor layer",
    "scalar": f"it returned float64 instead of .* {NUMBERS}",
    "number": f"it returned float instead of .* {NUMBERS}",
    "first": f"it returned float64 \\[1\\] instead of .* {NUMBERS}",
    "square": f"it returned float64 \\[5, .*\\] instead of .* {NUMBERS}",
    "nothing": f"it returned NoneType instead of .* {NUMBERS}",
    "whole": f"it returned int64 .* {NUMBERS}",
    "words": f"it returned <U.* {NUMBERS}",
}


async def _failed(tmp_path: Path, spec: JobSpec, version: int, why: str) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.version) == ("failed", version), view.reason
        assert re.match(f"merging version {version + 1}: {why}", view.reason), view.reason
        assert np.isfinite(model_of(served, runner)["layer.weight"]).all()
    assert findings(tmp_path, "", runner.id) == []


@pytest.mark.parametrize("how", UPDATE)
async def test_a_server_update_that_returns_no_step_is_named_and_the_last_model_stays(
    tmp_path: Path, how: str
) -> None:
    spec = spec_of("fedavg", server={"kind": "sloppy", "how": how})
    await _failed(tmp_path, spec, 2, f"server 'sloppy': {UPDATE[how]}")


@pytest.mark.parametrize("how", MIDDLE)
async def test_an_aggregator_that_returns_no_numbers_is_named_and_the_last_model_stays(
    tmp_path: Path, how: str
) -> None:
    spec = spec_of("fedavg", merge={"kind": "sloppy", "how": how})
    await _failed(tmp_path, spec, 3, f"merge 'sloppy': {MIDDLE[how]}")


async def test_an_aggregator_whose_remark_is_not_a_text_is_named(tmp_path: Path) -> None:
    spec = spec_of("fedavg", merge={"kind": "sloppy", "how": "silent"})
    await _failed(tmp_path, spec, 0, "merge 'sloppy': it returned None, which is not text")


@pytest.mark.parametrize("how", ["none", "nobody", "twice", "beyond", "before", "halves", "mask"])
async def test_an_aggregator_that_chooses_an_unknown_update_is_named(tmp_path: Path, how: str) -> None:
    spec = spec_of("fedavg", merge={"kind": "picky", "how": how})
    await _failed(tmp_path, spec, 0, r"merge 'picky': it chose .* from 5 updates")


async def test_an_aggregator_may_choose_with_numbers_of_numpys(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        spec = spec_of("fedavg", merge={"kind": "picky", "how": "well"})
        runner = await ended(await served.submit(spec, None, nothing()))
        assert runner.view().status == "completed", runner.view().reason


async def test_krum_outvotes_a_site_that_sends_nonsense_where_the_mean_does_not(tmp_path: Path) -> None:
    async def lie(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and site.name == "s2":
            arrays = await site.fetch(task.work.model)
            await site.send(
                task, {n: np.full_like(a, 1e6 if a.dtype.kind == "f" else 1) for n, a in arrays.items()}
            )
        else:
            await site.do(task)

    found = {}
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, answer=lie)
        for rule in ("fedavg", "krum", "median", "multi-krum"):
            runner = await ended(await served.submit(spec_of(rule), None, nothing()))
            found[rule] = float(np.abs(model_of(served, runner)["layer.weight"]).max())
    assert found.pop("fedavg") > 1e5
    assert max(found.values()) < 10 * ROUNDS
