"""Exported models say what they are, over the real wire; sites that come back unusable delay nobody."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import hansa as package
from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.checkpoints import load_checkpoint, read_origin, save_checkpoint
from hansa.common.rpc import codec
from hansa.common.values.errors import Broken
from hansa.common.values.ids import JobId, SiteName
from hansa.common.values.resolved import ModelOrigin
from hansa.common.values.tasks import Train
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from hansa.controller.verify.export import check_export
from hansa.protos import fleet_pb2, operator_pb2
from tests.hostile_text import NASTY, require_clean
from tests.support import LightSite, ended, filled, job, nothing, sealed, serving, small_spec, wait_for_ever


async def exported(folder: Path, file: Path, version: int | str = "last", **changes: object) -> str:
    """Run a small job to its end and export one of its models; return the job's id."""
    async with serving(folder) as served, LightSite(served.address, "a").attending():
        async with AsyncClient(served.address) as client:
            view = (await client.submit(job(**changes))).view
            await ended(served.jobs.runner(JobId(view.job)))
            save_checkpoint(file, *await client.model(view.job, version))
    return view.job


def wrong(folder: Path, job_id: str, file: Path) -> list[str]:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return list(check_export(file, verify(backends, record)[0]))


def changed(file: Path, tensors: object = False, **told: object) -> Path:
    """Write a file again with other tensors or another origin."""
    origin = read_origin(file)
    assert origin is not None
    manifest, payload = load_checkpoint(file)
    if tensors:
        payload = payload.copy()
        payload[0] ^= 1
    other = file.with_name("other.safetensors")
    save_checkpoint(other, manifest, payload, ModelOrigin.model_validate(origin.model_dump() | told))
    return other


async def test_an_exported_model_names_its_receipt_and_verify_matches_it(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    job_id = await exported(tmp_path / "c", file, seed=11)
    assert wrong(tmp_path / "c", job_id, file) == []
    origin = read_origin(file)
    assert origin is not None
    assert origin.resolved is not None
    assert origin.resolved.job["seed"] == 11
    assert origin.resolved.made_with.hansa == package.__version__
    with opened(f"disk:{tmp_path / 'c' / 'store'}", tmp_path / "c", lease=False) as backends:
        entries = backends.journal.entries(JobId(origin.job))
    receipts = [json.loads(entry.receipt) for entry in entries if entry.receipt]
    (receipt,) = [receipt for receipt in receipts if receipt["hash"] == origin.receipt]
    assert (receipt["version"], receipt["digest"]) == (2, origin.digest)


async def test_the_claims_of_a_file_cannot_forge_the_output_of_verify(tmp_path: Path) -> None:
    file, folder = tmp_path / "m.safetensors", tmp_path / "c"
    job_id = await exported(folder, file)
    claim = changed(file, job=f"{NASTY}\njob {job_id}: 4 receipts agree with the journal")
    said = CliRunner().invoke(hansa, ["job", "verify", job_id, "--state", str(folder), "--model", str(claim)])
    assert said.exit_code == 1
    assert said.stdout.count("\n") == 1
    require_clean(said.output, "hansa job verify --model")


async def test_whatever_is_changed_in_an_exported_model_is_found(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    job_id = await exported(tmp_path / "c", file)
    origin = read_origin(file)
    assert origin is not None
    assert origin.resolved is not None
    seed = origin.resolved.model_copy(update={"job": {**origin.resolved.job, "seed": 1}}).model_dump()
    software = origin.resolved.model_copy(
        update={"made_with": origin.resolved.made_with.model_copy(update={"hansa": "9"})}
    ).model_dump()

    changes: list[dict[str, object]] = [
        {"tensors": True},
        {"receipt": "00" * 32},
        {"version": 1},
        {"version": 7},
        {"job": "j12345678"},
        {"resolved": seed},
        {"resolved": software},
    ]
    words = ["; ".join(wrong(tmp_path / "c", job_id, changed(file, **change))) for change in changes]
    assert words[0] == "its tensors are not those of version 2, which the receipt names"
    assert words[1] == "its receipt is not the one that the journal has for version 2"
    assert "not the one that the journal has for version 1" in words[2]
    assert words[3] == "it says that it is version 7, which the job never had"
    assert words[4] == "it says that it is from job j12345678"
    assert words[5] == "the job that it describes is not the one that was submitted"
    assert words[6].startswith("the software and models that it names")


async def test_a_file_from_elsewhere_does_not_say_which_job_made_it(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    job_id = await exported(tmp_path / "c", file)
    save_file(load_file(file), tmp_path / "plain.safetensors")
    assert (
        "does not say which job it is from"
        in wrong(tmp_path / "c", job_id, tmp_path / "plain.safetensors")[0]
    )
    words = [
        "job",
        "verify",
        job_id,
        "--state",
        str(tmp_path / "c"),
        "--model",
        str(tmp_path / "plain.safetensors"),
    ]
    done = CliRunner().invoke(hansa, words)
    assert done.exit_code == 1
    assert "plain.safetensors: it does not say which job it is from" in done.output


async def test_version_0_names_the_receipt_of_the_site_that_built_it(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    async with serving(tmp_path / "c") as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a", answer=wait_for_ever).attending())
        async with AsyncClient(served.address) as client:
            view = (await client.submit(job())).view
            runner = await served.jobs.find(view.job)
            while runner.machine.state.version < 0:
                await runner.next_change().wait()
            save_checkpoint(file, *await client.model(view.job))
            assert (await client.show(view.job)).history[0].receipt
    origin = read_origin(file)
    assert origin is not None
    assert (origin.version, bool(origin.receipt)) == (0, True)
    assert wrong(tmp_path / "c", view.job, file) == []


async def test_a_model_that_the_submission_brought_has_its_digest_in_place_of_a_receipt(
    tmp_path: Path,
) -> None:
    manifest, payload = sealed(small_spec(), filled(small_spec(), 2.0))
    save_checkpoint(tmp_path / "init.safetensors", manifest, payload)
    file = tmp_path / "m.safetensors"
    async with serving(tmp_path / "c") as served:
        async with AsyncClient(served.address) as client:
            view = (await client.submit(job(init=str(tmp_path / "init.safetensors")))).view
            save_checkpoint(file, *await client.model(view.job))
            assert view.resolved is not None
            assert view.resolved.init == manifest.digest.hex()
    origin = read_origin(file)
    assert origin is not None
    assert (origin.version, origin.receipt, origin.digest) == (0, "", manifest.digest.hex())
    assert wrong(tmp_path / "c", view.job, file) == []


async def test_only_one_job_by_itself_is_shown_with_everything_and_the_same_after_a_restart(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        async with AsyncClient(served.address) as client:
            view = (await client.submit(job(rule="fedadam", seed=4))).view
            assert [seen.resolved async for seen in client.views(view.job)][-1] is None
            assert (await client.jobs())[0].resolved is None
            shown = await client.show(view.job)
    assert shown.resolved is not None
    assert shown.resolved == view.resolved
    assert (shown.resolved.job["seed"], shown.resolved.job["rule"]) == (4, "fedadam")
    monkeypatch.setattr(
        "hansa.controller.rulebook.resolve.__version__", "99"
    )  # another Hansa looks at it later
    async with serving(tmp_path, store) as served:
        async with AsyncClient(served.address) as client:
            again = await client.show(view.job)
    assert again.resolved == shown.resolved
    assert [entry.receipt for entry in again.history] == [entry.receipt for entry in shown.history]


@asynccontextmanager
async def pretending(method: str, *replies: bytes) -> AsyncIterator[AsyncClient]:
    """Yield a client of a controller that gives these replies to whatever it is asked."""

    async def reply(_: bytes, __: Any) -> AsyncIterator[bytes]:
        for message in replies:
            yield message

    server = grpc.aio.server()
    handlers = {method: grpc.unary_stream_rpc_method_handler(reply)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hansa.v1.Operator", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(None)


OTHERS = ModelOrigin(job="j1", name="n", version=1, digest="00" * 32).model_dump_json()


@pytest.mark.parametrize(
    ("origin", "problem"),
    [(OTHERS, "belongs to another model"), ('{"job": 1}', "description of the model cannot be read")],
)
async def test_a_controller_that_describes_another_model_is_not_believed(origin: str, problem: str) -> None:
    manifest, payload = sealed(small_spec(), filled(small_spec(), 2.0))
    wire, sent = codec.manifest_to_wire(manifest), range(len(manifest.digests))
    header = fleet_pb2.FetchHeader(manifest=wire, sent=sent, origin_json=origin)
    async with pretending("Model", header.SerializeToString(), payload.tobytes()) as client:
        with pytest.raises(Broken, match=problem):
            await client.model("j1")
    header.origin_json = ""
    async with pretending("Model", header.SerializeToString(), payload.tobytes()) as client:
        assert (await client.model("j1"))[0::2] == (manifest, None)


@pytest.mark.parametrize("text", ["", "{", '{"job": 1}', "[" * 100_000])
async def test_an_answer_that_is_not_a_view_is_an_error_of_one_line(text: str) -> None:
    async with pretending("Show", operator_pb2.JobReply(view_json=text).SerializeToString()) as client:
        with pytest.raises(Broken, match="the controller's answer cannot be read") as caught:
            await client.show("j1")
    assert "\n" not in str(caught.value)


async def test_a_learner_that_comes_back_unusable_does_not_hold_up_the_round_and_is_named(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name in "ab":
            await sites.enter_async_context(LightSite(served.address, name).attending())
        async with LightSite(served.address, "c", answer=wait_for_ever).attending():
            runner = await served.submit(job(sites={"min": 2}, pace={"rounds": 4}), None, nothing())
            while not any(isinstance(task.work, Train) for task in runner.machine.tasks_of(SiteName("c"))):
                await runner.next_change().wait()
        async with LightSite(served.address, "c", error="its data cannot be read").attending():
            await ended(runner)
            view = runner.view()
    assert view.status == "completed", view.reason
    (shortfall,) = view.shortfalls
    assert (shortfall.site, shortfall.contributed) == ("c", 0)
    assert shortfall.absence == "its data cannot be read"
