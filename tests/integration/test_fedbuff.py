"""FedBuff over real gRPC: every community model computed again from what sites sent, with a restart."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.frames import Layout
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import Finding, verify
from tests.buffered import SITES, SPEC, Log, check
from tests.support import LightSite, Served, ended, job, model_of, nothing, serving


async def attend(served: Served, stack: AsyncExitStack, log: Log) -> None:
    for number, name in enumerate(SITES):
        site = LightSite(served.address, name, spec=SPEC, examples=10 + number, answer=log.answer)
        await stack.enter_async_context(site.attending())


def findings(folder: Path, job_id: str) -> list[Finding]:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return verify(backends, record)[2]


@pytest.mark.parametrize("normalise", ["count", "weights"])
@pytest.mark.parametrize("lr", [1.0, 0.5])
async def test_every_community_model_follows_from_what_sites_sent_also_after_a_restart(
    tmp_path: Path, normalise: str, lr: float
) -> None:
    log = Log()
    words: dict[str, Any] = {"rule": "fedbuff", "pace": {"updates": 23, "buffer": 4}, "server": {"lr": lr}}
    spec = job(**words, merge={"normalise": normalise}, sites={"min": 3, "wait": 60})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 2 or not runner.machine.state.unmerged:
            await runner.next_change().wait()
    assert not runner.machine.ended
    assert findings(tmp_path, runner.id) == [], "it can be checked in mid-job, too"
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        again = await ended(served.jobs.runner(runner.id))
        assert again.view().status == "completed", again.view().reason
        last = model_of(served, again)
    history = again.machine.state.history
    counts = [len(record.updates) for record in history]
    assert (counts[:6], sum(counts)) == ([0, 4, 4, 4, 4, 4], 23)
    assert max(update.staleness[0] for record in history for update in record.updates) > 0
    assert {update.metrics["shift"] for record in history for update in record.updates} == {1.0}
    assert {update.bytes_up for record in history for update in record.updates} == {Layout(SPEC).size}
    assert check(history, log, last, lr, by_weights=normalise == "weights") >= 3
    assert findings(tmp_path, runner.id) == []


async def test_a_changed_base_is_found_and_named(tmp_path: Path) -> None:
    log = Log()
    spec = job(rule="fedbuff", pace={"updates": 9, "buffer": 3}, sites={"min": 3})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        runner = await ended(await served.submit(spec, None, nothing()))
    state = runner.machine.state
    bases = {member.base for members in state.members.values() for member in members}
    for key in bases - {None}:
        path = tmp_path / "store" / "models" / str(key)
        whole = path.read_bytes()
        path.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
        assert [found.where for found in findings(tmp_path, runner.id)] == [f"model {key}"]
        path.write_bytes(whole)
    assert findings(tmp_path, runner.id) == []


async def test_rounds_of_differences_give_the_models_of_fedavg_bit_for_bit(tmp_path: Path) -> None:
    digests = []
    for number, merge in enumerate(({"kind": "mean"}, {"kind": "delta", "normalise": "weights"})):
        async with serving(tmp_path / str(number)) as served, AsyncExitStack() as sites:
            await attend(served, sites, Log())
            spec = job(rule="fedavg", pace={"rounds": 4}, merge=merge, sites={"min": 3})
            runner = await ended(await served.submit(spec, None, nothing()))
            digests.append([entry.digest for entry in runner.view().history])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 5
