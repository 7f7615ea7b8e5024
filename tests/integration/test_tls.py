"""Who is let in, and as whom: every way to pretend to be somebody else, and the status that it gets."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.pki import files
from hansa.common.pki.caller import Role
from hansa.common.rpc.access import EVERYBODY, TABLE
from hansa.common.rpc.channel import Endpoint
from hansa.common.rpc.tls import TlsFolder
from hansa.common.values.errors import InvalidInput, Unproven, Unreachable
from hansa.common.values.ids import PROTOCOL
from hansa.common.values.tasks import Task, Train
from hansa.protos import fleet_pb2, operator_pb2
from tests.consortium import Consortium, channel, fleet, later, operators, raw_channel
from tests.support import LightSite, Served, ended, job, nothing, serving, wait_for_ever
from tests.waiting import eventually

CODE = grpc.StatusCode


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path / "pki")


@pytest.fixture
async def served(consortium: Consortium, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "state", tls=consortium.issue("controller", "hub"), heartbeat=0.5) as found:
        yield found


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, 20)
    return caught.value.code(), str(caught.value.details())


def light(served: Served, folder: Path, name: str, role: str = "learner", **more: Any) -> LightSite:
    return LightSite(served.address, name, role=role, tls=folder, **more)


async def test_a_job_runs_over_tls_and_everybody_is_who_their_certificate_says(
    served: Served, consortium: Consortium
) -> None:
    learner, evaluator = (consortium.issue(role, "a") for role in ("learner", "evaluator"))
    async with (
        light(served, learner, "a").attending(),
        light(served, evaluator, "a", "evaluator").attending(),
    ):
        async with AsyncClient(Endpoint(served.address, consortium.issue("operator", "alice"))) as client:
            view = (await client.submit(job())).view
            await ended(await served.jobs.find(view.job))
            assert (await client.show(view.job)).status == "completed"
            manifest, _, _ = await client.model(view.job)
            assert len(manifest.digests) == 3


# Connections that never become calls: TLS refuses them, and a caller sees a closed connection.


async def test_nobody_gets_in_without_tls(served: Served) -> None:
    code, _ = await refused(operators(raw_channel(served.address, None)).List(operator_pb2.ListRequest()))
    assert code is CODE.UNAVAILABLE


async def test_nobody_gets_in_without_a_certificate(served: Served, consortium: Consortium) -> None:
    ca = consortium.authority.folder / files.CA
    code, _ = await refused(operators(raw_channel(served.address, None, ca)).List(operator_pb2.ListRequest()))
    assert code is CODE.UNAVAILABLE


async def test_another_authority_is_not_ours(served: Served, consortium: Consortium, tmp_path: Path) -> None:
    """Not even one of the same name."""
    forged = Consortium(tmp_path / "other").issue("operator", "alice")
    ca = consortium.authority.folder / files.CA
    code, _ = await refused(
        operators(raw_channel(served.address, forged, ca)).List(operator_pb2.ListRequest())
    )
    assert code is CODE.UNAVAILABLE


async def test_an_expired_certificate_is_refused(served: Served, consortium: Consortium) -> None:
    old = consortium.issue("operator", "alice", life=timedelta(minutes=1), age=timedelta(hours=2))
    code, _ = await refused(operators(raw_channel(served.address, old)).List(operator_pb2.ListRequest()))
    assert code is CODE.UNAVAILABLE
    with pytest.raises(InvalidInput, match="expired"):
        AsyncClient(Endpoint(served.address, old))


async def test_a_site_cannot_pass_for_the_controller(consortium: Consortium, tmp_path: Path) -> None:
    """Its certificate names no host and is not for servers, so no client accepts it."""
    learner, operator = consortium.issue("learner", "evil"), consortium.issue("operator", "alice")
    pair = [(learner / name).read_bytes() for name in (files.KEY, files.CERTIFICATE)]
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair[0], pair[1])]))
    await server.start()
    try:
        async with AsyncClient(Endpoint(f"localhost:{port}", operator)) as client:
            with pytest.raises(Unreachable):
                await client.jobs()
    finally:
        await server.stop(None)


async def test_a_controller_of_another_host_is_not_believed(consortium: Consortium, tmp_path: Path) -> None:
    elsewhere = consortium.issue("controller", "hub", host="hub.example.org")
    async with serving(tmp_path / "state", tls=elsewhere) as served:
        async with AsyncClient(Endpoint(served.address, consortium.issue("operator", "alice"))) as client:
            with pytest.raises(Unreachable):
                await client.jobs()


@pytest.mark.parametrize(("version", "works"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
async def test_tls_is_1_2_or_newer(served: Served, consortium: Consortium, version: str, works: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    mine = consortium.issue("operator", "alice")
    context.load_cert_chain(mine / files.CERTIFICATE, mine / files.KEY)

    def shake() -> str | None:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            with context.wrap_socket(plain) as secured:
                return secured.version()

    if works:
        assert await asyncio.to_thread(shake) == version.replace("_", ".")
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(shake)


# Calls with a good certificate that are not for its bearer.


async def test_a_revoked_certificate_is_refused_at_once_and_its_stream_is_ended(
    served: Served, consortium: Consortium, tmp_path: Path
) -> None:
    mine, good = consortium.issue("learner", "a"), consortium.issue("operator", "alice")
    async with light(served, mine, "a").attending():
        consortium.revoke(mine)
        consortium.hand_on_revoked(consortium.place / "controller-hub")
        served.guard.sweep()
        async with AsyncClient(Endpoint(served.address, good)) as client:

            async def is_away() -> bool:
                return [site.state for site in await client.sites()] != ["attending"]

            await eventually(is_away)
    with pytest.raises(Unproven, match="is revoked"):
        async with light(served, mine, "a").attending():
            pass


async def test_a_list_of_revoked_certificates_that_others_signed_or_that_is_lost_pardons_nobody(
    served: Served, consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, hub = consortium.issue("operator", "mallory"), consortium.place / "controller-hub"
    before = files.read(hub / files.REVOKED)
    # Lists say when they were made to the second.
    monkeypatch.setattr("hansa.common.pki.authority.datetime", later(timedelta(seconds=2)))
    consortium.revoke(mine)
    consortium.hand_on_revoked(hub)
    served.guard.sweep()
    forged = Consortium(tmp_path / "other").authority.folder / files.REVOKED
    for content in (forged.read_bytes(), b"nonsense", before, None):
        if content is None:
            (hub / files.REVOKED).unlink()
        else:
            files.write(hub / files.REVOKED, content, files.PUBLIC)
        served.guard.sweep()
        code, _ = await refused(operators(channel(served.address, mine)).List(operator_pb2.ListRequest()))
        assert code is CODE.UNAUTHENTICATED


async def test_two_authorities_can_revoke_while_members_change_over(tmp_path: Path) -> None:
    """Both have the same name, the one that `hansa pki init` gives."""
    old, new = Consortium(tmp_path / "old"), Consortium(tmp_path / "new")
    members = {
        name: pki.issue("operator", name)
        for pki, name in ((old, "ann"), (old, "bob"), (new, "eve"), (new, "joe"))
    }
    old.revoke(members["ann"])
    new.revoke(members["eve"])
    hub = new.issue("controller", "hub")
    for name in (files.CA, files.REVOKED):
        both = [files.read(pki.authority.folder / name) for pki in (old, new)]
        files.write(hub / name, b"".join(both), files.PUBLIC)
    both_ca = hub / files.CA
    async with serving(tmp_path / "state", tls=hub) as served:
        for attempt in range(2):
            for name, folder in members.items():
                code, text = await _status(
                    raw_channel(served.address, folder, both_ca).unary_stream("/hansa.v1.Operator/List")(b"")
                )
                assert code is (CODE.UNAUTHENTICATED if name in ("ann", "eve") else CODE.OK), (
                    f"{attempt} {name}: {text}"
                )
            new.hand_on_revoked(hub)  # somebody forgets the old one's list
            served.guard.sweep()


async def test_a_learner_cannot_act_as_another_site(served: Served, consortium: Consortium) -> None:
    a, b = consortium.issue("learner", "a"), consortium.issue("learner", "b")
    with pytest.raises(InvalidInput, match="not for b"):  # it would not even try
        async with light(served, a, "b").attending():
            pass
    stub = fleet(channel(served.address, a))

    async def enrolment(
        site: str, role: "fleet_pb2.DaemonRole.ValueType"
    ) -> AsyncIterator[fleet_pb2.FromSite]:
        yield fleet_pb2.FromSite(enrol=fleet_pb2.Enrol(protocol=PROTOCOL, site=site, role=role))

    async def upload() -> AsyncIterator[bytes]:
        yield fleet_pb2.UploadHeader(site="b", task="j00000000-1").SerializeToString()

    async with light(served, b, "b").attending():
        attempts: dict[str, Awaitable[Any]] = {
            "another site": anext(aiter(stub.Attend(enrolment("b", fleet_pb2.LEARNER)))),
            "another daemon of the site": anext(aiter(stub.Attend(enrolment("a", fleet_pb2.EVALUATOR)))),
            "nobody": anext(aiter(stub.Attend(enrolment("", fleet_pb2.LEARNER)))),
            "fetch": anext(aiter(stub.Fetch(fleet_pb2.FetchRequest(site="b", model="j00000000/v0")))),
            "offer": stub.Offer(fleet_pb2.OfferRequest(site="b", task="j00000000-1")),
            "offer of nobody": stub.Offer(fleet_pb2.OfferRequest(task="j00000000-1")),
            "upload": stub.Upload(upload()),
            "report": stub.Report(fleet_pb2.TaskReport(site="b", task="j00000000-1")),
        }
        for what, call in attempts.items():
            code, text = await refused(call)
            assert (code, "learner a cannot act as" in text) == (CODE.PERMISSION_DENIED, True), (
                f"{what}: {text}"
            )
        assert [(held.site, held.role) for held in served.federation.fleet.sessions] == [("b", "learner")]


async def test_an_evaluator_cannot_answer_its_learners_task(served: Served, consortium: Consortium) -> None:
    learner, evaluator = consortium.issue("learner", "a"), consortium.issue("evaluator", "a")
    async with light(served, learner, "a", answer=wait_for_ever).attending() as site:
        runner = await served.submit(job(), None, nothing())
        while not (training := [t for t in runner.machine.state.tasks.values() if isinstance(t.work, Train)]):
            await runner.next_change().wait()
        report = fleet_pb2.TaskReport(site="a", task=training[0].id)
        report.failure.reason = "so there"
        code, text = await refused(fleet(channel(served.address, evaluator)).Report(report))
        assert (code, "learner" in text) == (CODE.PERMISSION_DENIED, True)
        await fleet(channel(served.address, learner)).Report(report)
        assert site.name == "a"


@pytest.mark.parametrize("role", sorted(EVERYBODY))
async def test_each_role_can_call_what_the_table_allows_and_nothing_else(
    served: Served, consortium: Consortium, role: Role
) -> None:
    of = channel(served.address, consortium.issue(role, "x"))
    message = fleet_pb2.UploadHeader(site="x", task="j0-1").SerializeToString()

    async def words() -> AsyncIterator[bytes]:
        yield message

    for method, access in TABLE.items():
        if method.startswith("/grpc.health"):
            continue
        for _ in range(5):
            code, text = await _status(of.stream_stream(method)(words()))
            if "from Core" not in text:
                break  # gRPC hides the status of a call that is refused while sending: ask again, as sites do
        if role in access.roles:
            assert code not in (CODE.PERMISSION_DENIED, CODE.UNAUTHENTICATED, CODE.INTERNAL, CODE.UNKNOWN), (
                text
            )
        else:
            assert (code, f"{role} x may not call" in text) == (CODE.PERMISSION_DENIED, True), method
    await of.close()


async def _status(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        async with asyncio.timeout(10):
            await anext(aiter(call), None)
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    finally:
        call.cancel()
    return CODE.OK, ""


async def test_a_method_without_a_row_is_closed_to_everybody(served: Served, consortium: Consortium) -> None:
    of = channel(served.address, consortium.issue("operator", "alice"))
    code, _ = await _status(of.unary_stream("/hansa.v1.Operator/Whatever")(b""))
    assert code is CODE.UNIMPLEMENTED


def test_every_rpc_has_a_row_in_the_table() -> None:
    offered = {
        f"/{service.full_name}/{method.name}"
        for module in (fleet_pb2, operator_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert offered == {name for name in TABLE if name.startswith("/hansa")}


# Renewal.


async def test_certificates_are_renewed_without_stopping_a_running_job(
    served: Served, consortium: Consortium
) -> None:
    """Both sides get new certificates in mid-round; the old ones are revoked; the task is still accepted."""
    mine = consortium.issue("learner", "a")
    go = asyncio.Event()

    async def wait_and_do(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await go.wait()
        await site.do(task)

    async with light(served, mine, "a", answer=wait_and_do).attending() as site:
        runner = await served.submit(job(pace={"rounds": 1}), None, nothing())
        while not any(isinstance(task.work, Train) for task in runner.machine.state.tasks.values()):
            await runner.next_change().wait()
        first = served.federation.fleet.sessions[0]
        old = [path / files.CERTIFICATE for path in (mine, consortium.place / "controller-hub")]
        for path in old:
            consortium.authority.revoke(files.read_certificates(path))
        consortium.issue("learner", "a")
        consortium.issue("controller", "hub")
        await eventually(lambda: served.federation.fleet.sessions[:1] not in ([], [first]))
        served.guard.sweep()
        go.set()
        await ended(runner)
        assert runner.machine.state.status == "completed"
        await eventually(lambda: len(site.receipts) == 2)  # the last one may still be on its way
        assert not runner.view().history[-1].lost


async def test_half_renewed_files_leave_the_old_certificate_in_use(consortium: Consortium) -> None:
    folder = TlsFolder(consortium.issue("learner", "a"))
    before = folder.credentials
    other = consortium.issue("learner", "a", out="new")
    files.write(folder.folder / files.KEY, files.read(other / files.KEY), files.PRIVATE)
    assert not folder.refresh()
    assert folder.credentials is before
    files.write(folder.folder / files.CERTIFICATE, files.read(other / files.CERTIFICATE), files.PUBLIC)
    assert folder.refresh()
    assert folder.credentials.caller.serial != before.caller.serial


async def test_a_certificate_that_ends_during_a_call_ends_the_call(
    served: Served, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = consortium.issue("operator", "alice", life=timedelta(hours=1))
    runner = await served.submit(job(sites={"min": 5, "wait": 600}), None, nothing())
    async with AsyncClient(Endpoint(served.address, mine)) as client, asyncio.timeout(20):
        views = client.views(runner.id)
        await anext(views)
        served.guard.sweep()
        assert served.guard.callers == {"operator alice"}
        monkeypatch.setattr("hansa.common.pki.caller.datetime", later(timedelta(hours=2)))
        served.guard.sweep()
        with pytest.raises(Unproven, match="operator alice expired"):
            await anext(views)
