"""What a hostile or broken caller can send, and the status it gets; everybody else goes on undisturbed.

Uploads and downloads are in test_hostile_transfers.py.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import tests.unit.engine.evaluated_updates  # noqa: F401 - registers a weigher that has updates evaluated
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.frames import FRAME
from hansa.common.models.model import MAX_TENSORS
from hansa.common.pki import files
from hansa.common.rpc.channel import METADATA, SERVER, Endpoint
from hansa.common.site.attendance import BEAT
from hansa.common.values.bounds import MOST_NAMED
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.tasks import Task, Terms
from hansa.controller.api.limits import SUBMISSIONS
from hansa.controller.engine.machine import Machine
from hansa.controller.transfers.sending import task_message
from hansa.protos import fleet_pb2, operator_pb2
from tests.consortium import Consortium, channel, fleet, operators
from tests.integration.attacker import CODE, QUICK, attend, bomb, enrolment, only_init, status, training
from tests.support import LightSite, Served, ended, fleet_stub, job, nothing, serving
from tests.unit.engine import evaluated_updates  # noqa: F401 - registers the weigher `evaluated`
from tests.waiting import eventually


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, limits=QUICK) as found:
        yield found


@pytest.mark.parametrize(
    "site", ["../../etc/passwd", "a/b", "a:b", "", ".", "a\nb", "a\0", "x" * 65, "ä", "a b"]
)
async def test_names_of_sites_cannot_lead_anywhere(served: Served, site: str) -> None:
    of, stub = fleet_stub(served.address)
    code, _ = await attend(stub, enrolment(site=site))
    assert code is CODE.INVALID_ARGUMENT
    await of.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "audit", "", "%2e%2e", "j" * 10_000, "\x1b[2J", "*"])
async def test_names_of_jobs_and_models_cannot_lead_anywhere(
    served: Served, name: str, tmp_path: Path
) -> None:
    of, stub = fleet_stub(served.address)
    asked = operators(of)
    assert (await status(asked.Show(operator_pb2.JobRequest(job=name))))[0] is CODE.NOT_FOUND
    for key in (name, f"{name}/v0", f"{name}/../../x"):
        call = stub.Fetch(fleet_pb2.FetchRequest(site="a", model=key))
        assert (await status(anext(aiter(call))))[0] is CODE.NOT_FOUND
    assert (await status(stub.Report(fleet_pb2.TaskReport(site="a", task=f"{name}-1"))))[0] is CODE.NOT_FOUND
    await of.close()


@pytest.mark.parametrize("app", ["../../etc/passwd:x", "os:system", "app.py:app\nimport os"])
async def test_an_app_that_the_site_does_not_allow_is_never_loaded(served: Served, app: str) -> None:
    async with LightSite(served.address, "a").attending(), AsyncClient(served.address) as client:
        of = operators(grpc.aio.insecure_channel(served.address))

        async def words() -> AsyncIterator[bytes]:
            document = json.dumps({"name": "n", "app": app})
            yield operator_pb2.SubmitHeader(job_json=document).SerializeToString()

        code, _ = await status(of.Submit(words()))
        if code is CODE.OK:
            view = (await client.jobs())[0]
            runner = await ended(await served.jobs.find(view.job))
            assert "not allowed there" in runner.machine.state.reason
        else:
            assert code is CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("weigh", ["examples", "evaluated"])
async def test_sites_are_told_whose_job_it_is_and_whether_others_would_see_their_models(
    served: Served, weigh: str
) -> None:
    told = asyncio.Queue[Task]()

    async def listen(site: LightSite, task: Task) -> None:
        told.put_nowait(task)
        await site.do(task)

    site = LightSite(served.address, "a", answer=listen)
    async with site.attending(), LightSite(served.address, "b").attending():
        spec = job(weigh={"kind": weigh}, sites={"min": 2}).model_copy(update={"operator": "alice"})
        await served.submit(spec, None, nothing())
        terms = (await told.get()).terms
    assert terms == Terms(operator="alice", sites=2, redistributes=weigh == "evaluated")


# Manifests.


@pytest.mark.parametrize("kind", ["many", "overflow", "negative", "absurd", "deep", "deep and wide"])
async def test_a_manifest_bomb_is_refused_before_anything_is_allocated(served: Served, kind: str) -> None:
    async with LightSite(served.address, "a", answer=only_init).attending() as site:
        _, task = await training(served)
        offer = fleet_pb2.OfferRequest(site="a", task=task.id, manifest=bomb(kind))
        offer.facts.n_train = 1
        code, text = await status(site.attendance.stub.Offer(offer))
        assert code in (CODE.RESOURCE_EXHAUSTED, CODE.DATA_LOSS)
        if kind in ("many", "overflow", "negative", "absurd"):
            assert code is CODE.RESOURCE_EXHAUSTED, text


async def test_a_million_empty_tensors_are_refused_before_they_are_decoded(served: Served) -> None:
    of = grpc.aio.insecure_channel(served.address)
    manifest = b"\x0a\x00" * 1_000_000
    length = bytes(
        [
            len(manifest) & 127 | 128,
            len(manifest) >> 7 & 127 | 128,
            len(manifest) >> 14 & 127 | 128,
            len(manifest) >> 21,
        ]
    )
    code, text = await status(of.unary_unary("/hansa.v1.Fleet/Offer")(b"\x0a\x01a\x1a" + length + manifest))
    assert (code, str(MAX_TENSORS) in text) == (CODE.RESOURCE_EXHAUSTED, True)
    await of.close()


async def test_an_absurd_first_model_is_refused(served: Served) -> None:
    of = operators(grpc.aio.insecure_channel(served.address))

    async def words() -> AsyncIterator[bytes]:
        document = json.dumps({"name": "n", "app": "a.py:app"})
        yield operator_pb2.SubmitHeader(job_json=document, manifest=bomb("absurd")).SerializeToString()

    code, text = await status(of.Submit(words()))
    assert (code, "--max-model" in text) == (CODE.RESOURCE_EXHAUSTED, True)


# Sizes and numbers.


async def test_messages_over_the_limit_are_refused_by_name(served: Served) -> None:
    of, stub = fleet_stub(served.address)
    long = "x" * (2 * FRAME)
    for code, text in (
        await attend(stub, enrolment(version=long)),
        await status(operators(of).Show(operator_pb2.JobRequest(job=long))),
        await status(of.unary_unary("/hansa.v1.Fleet/Report")(bytes(20 * FRAME))),
    ):
        assert code is CODE.RESOURCE_EXHAUSTED, text
        assert "at most" in text or "max" in text
    await of.close()


async def test_a_daemon_names_only_so_many_apps_and_tasks(served: Served) -> None:
    of, stub = fleet_stub(served.address)
    for fields in ({"tasks": ["j-1"] * 1001}, {"apps": [fleet_pb2.AppState(ref="x")] * 1001}):
        code, text = await attend(stub, enrolment(**fields))
        assert (code, "1000" in text) == (CODE.RESOURCE_EXHAUSTED, True)
    await of.close()


async def test_a_daemon_with_more_tasks_in_hand_than_it_may_name_connects_all_the_same(
    served: Served,
) -> None:
    """Evaluators of many jobs may have thousands; tasks that are not named are sent again, harmlessly."""
    hand = [TaskId(f"j-{number}") for number in range(MOST_NAMED + 1)]
    async with LightSite(served.address, "a", hand=hand).attending() as site:
        assert [session.site for session in served.federation.fleet.sessions] == ["a"]
        await eventually(lambda: len(site.cancelled) >= MOST_NAMED)  # there is no such job


async def test_huge_headers_are_refused(served: Served) -> None:
    of, _ = fleet_stub(served.address)
    huge = (("x-padding", "y" * (8 * METADATA)),)
    code, _ = await status(operators(of).List(operator_pb2.ListRequest(), metadata=huge))
    assert code is CODE.RESOURCE_EXHAUSTED
    assert (await status(operators(of).List(operator_pb2.ListRequest())))[0] is CODE.OK
    await of.close()


async def test_invalid_jobs_are_refused(served: Served) -> None:
    of = operators(grpc.aio.insecure_channel(served.address))
    for document, wanted in (
        ("[" * 100_000, CODE.INVALID_ARGUMENT),
        ('{"a":' * 100_000, CODE.INVALID_ARGUMENT),
        ("1" * 10_000, CODE.INVALID_ARGUMENT),
        ("NaN", CODE.INVALID_ARGUMENT),
        ('{"app": "a.py:app", "operator": "root"}', CODE.INVALID_ARGUMENT),
        (json.dumps({"app": "a.py:app", "name": "../x"}), CODE.INVALID_ARGUMENT),
        (json.dumps({"app": "a.py:app", "name": "x" * (2 << 20)}), CODE.RESOURCE_EXHAUSTED),
    ):

        async def words(text: str = document) -> AsyncIterator[bytes]:
            yield operator_pb2.SubmitHeader(job_json=text).SerializeToString()

        code, text = await status(of.Submit(words()))
        assert code is wanted, f"{document[:40]}: {text}"


async def test_submissions_have_a_rate(served: Served) -> None:
    of = operators(grpc.aio.insecure_channel(served.address))

    async def words() -> AsyncIterator[bytes]:
        yield operator_pb2.SubmitHeader(job_json="{}").SerializeToString()

    codes = [(await status(of.Submit(words())))[0] for _ in range(SUBMISSIONS + 1)]
    assert codes == [CODE.INVALID_ARGUMENT] * SUBMISSIONS + [CODE.RESOURCE_EXHAUSTED]


# Connections.


async def test_thousands_of_streams_of_one_caller_do_not_shut_out_the_others(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub"), limits=QUICK) as served:
        flood = fleet(channel(served.address, pki.issue("learner", "evil")))

        async def silent() -> AsyncIterator[fleet_pb2.FromSite]:
            await asyncio.Event().wait()
            yield enrolment()

        streams = [asyncio.create_task(status(anext(aiter(flood.Attend(silent()))))) for _ in range(2000)]
        async with AsyncClient(Endpoint(served.address, pki.issue("operator", "alice"))) as client:
            async with asyncio.timeout(20):
                assert await client.jobs() == []
        found = await asyncio.gather(*streams)
        codes = {code for code, _ in found}  # gRPC may hang up on such a caller altogether
        assert CODE.RESOURCE_EXHAUSTED in codes
        assert codes <= {CODE.RESOURCE_EXHAUSTED, CODE.UNAVAILABLE}
        assert any("50 calls under way" in text for _, text in found)
        assert any("no message arrived for 1 s" in text for _, text in found)
        assert not served.guard.calls
        assert not served.guard.callers


async def test_an_operator_watches_only_so_many_jobs_at_once(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub"), limits=QUICK) as served:
        runner = await served.submit(job(sites={"min": 1, "wait": 600}), None, nothing())
        watched = operator_pb2.JobRequest(job=runner.id)
        mine = operators(channel(served.address, pki.issue("operator", "alice")))
        calls = [mine.Watch(watched) for _ in range(QUICK.counted)]
        for call in calls:
            await anext(aiter(call))
        code, text = await status(anext(aiter(mine.Watch(watched))))
        assert (code, f"{QUICK.counted} watches" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        other = operators(channel(served.address, pki.issue("operator", "bob")))
        assert (await status(anext(aiter(other.Watch(watched)))))[0] is CODE.OK
        for call in calls:
            call.cancel()


async def test_progress_of_unknown_tasks_is_not_kept(served: Served) -> None:
    of, stub = fleet_stub(served.address)
    enrolled = asyncio.Event()

    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        yield enrolment()
        await enrolled.wait()
        for number in range(1000):
            yield fleet_pb2.FromSite(progress=fleet_pb2.Progress(task=f"j0-{number}"))

    call = aiter(stub.Attend(words()))
    await anext(call)
    (session,) = served.federation.fleet.sessions
    enrolled.set()
    assert [message async for message in call] == []  # it ends when all messages have been read
    assert not session.progress
    await of.close()


async def test_any_bytes_get_a_status(served: Served) -> None:
    of = grpc.aio.insecure_channel(served.address)
    from hansa.common.rpc.access import TABLE

    for method in TABLE:
        if method.startswith("/grpc"):
            continue
        for message in (b"", b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(1000), b"\x0a\x05a"):

            async def words(given: bytes = message) -> AsyncIterator[bytes]:
                yield given

            code, text = await status(anext(aiter(of.stream_stream(method)(words())), None))
            assert code not in (CODE.INTERNAL, CODE.UNKNOWN), f"{method} {message[:8]!r}: {text}"
    await of.close()


async def test_text_from_sites_cannot_forge_lines_or_steer_terminals(served: Served) -> None:
    of, stub = fleet_stub(served.address)
    evil = "fine\n2026-01-01 INFO root: all is well\x1b[2J\u2028\u202e"
    app = fleet_pb2.AppState(ref="a.py:app", error=evil)
    holding = asyncio.Event()

    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        yield enrolment(version=evil, apps=[app])
        await holding.wait()

    await anext(aiter(stub.Attend(words())))
    session = served.federation.fleet.sessions[0]
    for text in (session.version, session.apps["a.py:app"].error):
        assert text.startswith("fine 2026")
        assert text.isprintable()
    holding.set()
    await of.close()


@pytest.mark.parametrize("metrics", [{"\x1b[2J": 1.0}, {"accuracy": 1.0}, {f"m{i}": 1.0 for i in range(101)}])
async def test_metrics_of_sites_are_few_and_have_names(served: Served, metrics: dict[str, float]) -> None:
    answered = asyncio.Event()

    async def lie(site: LightSite, task: Task) -> None:
        report = fleet_pb2.TaskReport(site=site.name, task=task.id)
        report.evaluation.MergeFrom(fleet_pb2.Evaluation(n=1, loss_sum=1.0, metrics=metrics))
        code, _ = await status(site.attendance.stub.Report(report))
        assert code is CODE.INVALID_ARGUMENT
        answered.set()

    evaluator = LightSite(served.address, "b", role="evaluator", answer=lie)
    async with LightSite(served.address, "a").attending(), evaluator.attending():
        runner = await served.submit(job(), None, nothing())
        async with asyncio.timeout(20):
            await answered.wait()
            await ended(runner)
    assert not any(runner.machine.metrics(record) for record in runner.machine.state.history)


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("said", [None, b"", HELLO, HELLO + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])])
async def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """Not even a handshake; a handshake and no more; half of HTTP/2's greeting; all of it, and no call."""
    limits = ("grpc.server_handshake_timeout_ms", "grpc.max_connection_idle_ms")
    assert {name for name, _ in SERVER} >= set(limits)
    quick = [(name, 1000 if name in limits else value) for name, value in SERVER]
    monkeypatch.setattr("hansa.controller.server.SERVER", quick)
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        host, _, port = served.address.rpartition(":")
        secured = None if said is None else shown(pki.issue("learner", "a"))
        reader, writer = await asyncio.open_connection(host, int(port), ssl=secured)
        writer.write(said or b"")
        async with asyncio.timeout(15):
            while await reader.read(1000):
                pass
        writer.close()


def shown(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / files.CA))
    context.load_cert_chain(folder / files.CERTIFICATE, folder / files.KEY)
    context.set_alpn_protocols(["h2"])
    return context


# What a controller can do to a site.


async def test_a_task_that_a_site_cannot_read_fails_with_the_reason_and_the_site_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may be newer, or hostile."""

    def garbled(task: Task, machine: Machine) -> fleet_pb2.ToSite:
        wire = task_message(task, machine)
        if wire.task.HasField("train") and wire.task.app == "odd.py:app":
            wire.task.train.optimizer.kind = "quantum\x1b[2J"
        return wire

    monkeypatch.setattr("hansa.controller.api.fleet.task_message", garbled)
    async with LightSite(served.address, "a", app="odd.py:app").attending() as site:
        runner = await served.submit(job(app="odd.py:app"), None, nothing())
        async with asyncio.timeout(20):
            await ended(runner)
        assert runner.machine.state.status == "failed"
        assert "site a: Hansa" in runner.machine.state.reason
        assert "cannot read the task" in runner.machine.state.reason
        assert runner.machine.state.reason.isprintable()
        assert [held.site for held in served.federation.fleet.sessions] == ["a"]
        assert site.attendance.pulse(runner.id) == 0  # in reach


async def test_a_controller_cannot_crash_or_hurry_a_site() -> None:
    nested = fleet_pb2.Task(id="j-2", job="j", site="a", seed=1)
    nested.train.model, nested.train.optimizer.kind, nested.train.optimizer.lr = "j/v0", "sgd", 0.1
    nested.train.plugins.add(name="x", args='{"a":' * 100_000)
    said = [
        fleet_pb2.ToSite(pulse=fleet_pb2.Pulse(job="j", steps=1)),  # before it has enrolled the site
        fleet_pb2.ToSite(enrolled=fleet_pb2.Enrolled(controller="x", heartbeat_seconds=0)),
        fleet_pb2.ToSite(cancel=fleet_pb2.Cancel(task="\x1b[2J", reason="\n" * 100)),
        fleet_pb2.ToSite(task=fleet_pb2.Task(id="j-1")),
        fleet_pb2.ToSite(task=nested),
        fleet_pb2.ToSite(pulse=fleet_pb2.Pulse(job="j" * 1_000_000, steps=1)),
        fleet_pb2.ToSite(pulse=fleet_pb2.Pulse(job="j", steps=2)),
        fleet_pb2.ToSite(),
    ]
    still_there = asyncio.Event()

    async def attend(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        for message in said:
            yield message.SerializeToString()
        for _ in range(3):
            await anext(aiter(messages))
        still_there.set()
        await asyncio.Event().wait()

    kind = {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hansa.v1.Fleet", kind),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with LightSite(f"127.0.0.1:{port}", "a").attending() as site:
            await asyncio.wait_for(still_there.wait(), 20)
            assert site.attendance.heartbeat == BEAT[0]
            assert site.cancelled == ["\x1b[2J"]
            assert site.attendance.pulse(JobId("j")) == 2
            assert site.attendance.pulse(JobId("j" * 1_000_000)) == 0, "it is not the name of a job"
    finally:
        await server.stop(None)
