"""Health service and metrics of a controller."""

import asyncio
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.client.connection import ask_health
from hansa.common.pki import files
from hansa.common.rpc.channel import Endpoint
from hansa.common.rpc.tls import ServerTls
from hansa.common.values.errors import Forbidden, InvalidInput, Taken
from hansa.controller.metrics.collector import TaskTimes, serving_metrics
from hansa.controller.server import collector
from tests.consortium import Consortium, channel
from tests.redis_server import free_port
from tests.support import LightSite, ended, job, nothing, serving

CODE = grpc.StatusCode


async def test_the_health_service_says_whether_the_store_can_be_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        to = Endpoint(served.address)
        assert await ask_health(to)
        served.federation.workers.tell("test", "the disk is full")
        assert not await ask_health(to)
        served.federation.workers.tell("test", "")
        of = grpc.aio.insecure_channel(served.address)
        check, watch = (
            of.unary_unary("/grpc.health.v1.Health/Check"),
            of.unary_stream("/grpc.health.v1.Health/Watch"),
        )
        assert await check(b"\x0a\x0ehansa.v1.Fleet") == b"\x08\x01"
        for wrong, code in ((b"\x0a\x03abc", CODE.NOT_FOUND), (b"\xff\xff", CODE.INVALID_ARGUMENT)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await check(wrong)
            assert caught.value.code() is code
        seen = aiter(watch(b""))
        assert await anext(seen) == b"\x08\x01"
        served.federation.workers.tell("test", "away")
        assert await asyncio.wait_for(anext(seen), 10) == b"\x08\x02"
        served.federation.workers.tell("test", "")
        await of.close()


async def test_a_controllers_own_certificate_can_ask_for_its_health_and_nothing_else(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    hub = pki.issue("controller", "hub")
    async with serving(tmp_path / "state", tls=hub) as served:
        assert await ask_health(Endpoint(served.address, hub))
        async with AsyncClient(Endpoint(served.address, hub)) as client:
            with pytest.raises(Forbidden):
                await client.jobs()
        of = channel(served.address, pki.issue("learner", "a"))
        assert await of.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


async def test_who_watches_a_job_sees_that_it_waits_for_the_store_and_when_it_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncClient(Endpoint(served.address)) as client:
        runner = await served.submit(job(sites={"min": 2}), None, nothing())
        seen = aiter(client.views(runner.id))
        assert (await anext(seen)).reason == "needs 2 connected sites"
        served.federation.workers.tell("test", "the disk is full")
        assert (await asyncio.wait_for(anext(seen), 10)).reason == "waiting for the store: the disk is full"
        served.federation.workers.tell("test", "")
        assert (await asyncio.wait_for(anext(seen), 10)).reason == "needs 2 connected sites"


def scrape(url: str, context: ssl.SSLContext | None = None) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


async def test_metrics_count_rounds_commits_bytes_and_times(tmp_path: Path) -> None:
    times = TaskTimes()
    async with (
        serving(tmp_path, trained=times.observe) as served,
        LightSite(served.address, "a").attending(),
        LightSite(served.address, "a", role="evaluator").attending(),
    ):
        with serving_metrics("127.0.0.1:0", collector(served.federation, times), None) as address:
            await ended(await served.submit(job(pace={"kind": "sync", "rounds": 3}), None, nothing()))
            found = await asyncio.to_thread(scrape, f"http://{address}/metrics")
    assert found["hansa_job_rounds_total"] == 3
    assert found["hansa_job_commits_total"] == 3
    assert found["hansa_job_bytes_up_total"] > 0
    assert found["hansa_job_open_tasks"] == 0
    assert found["hansa_training_seconds_count"] == 4  # the first model, too
    assert found["hansa_daemons"] == 1  # of each role
    assert found["hansa_store_usable"] == 1
    assert (found["hansa_job_accuracy"], found["hansa_job_loss"]) == (0.75, 0.5)
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert {"hansa_job_staleness_versions", "hansa_job_waiting_merges", "hansa_audit_records_total"} <= set(
        found
    )


async def test_metrics_leave_the_machine_only_over_tls_to_those_with_a_certificate(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    hub, alice = pki.issue("controller", "hub"), pki.issue("operator", "alice")
    async with serving(tmp_path / "state") as served:
        with pytest.raises(InvalidInput, match="give --tls"):
            with serving_metrics("0.0.0.0:0", collector(served.federation, TaskTimes()), None):
                pass
        port = free_port()
        tls = ServerTls(hub)
        with serving_metrics(f"0.0.0.0:{port}", collector(served.federation, TaskTimes(), tls), tls):
            url = f"https://127.0.0.1:{port}/metrics"
            context = ssl.create_default_context(cafile=str(alice / files.CA))
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(scrape, url, context)
            context.load_cert_chain(alice / files.CERTIFICATE, alice / files.KEY)
            found = await asyncio.to_thread(scrape, url, context)
            assert "hansa_store_usable" in found
            assert found["hansa_certificate_expiry_seconds"] > time.time()
            with pytest.raises(Taken):
                with serving_metrics(f"127.0.0.1:{port}", collector(served.federation, TaskTimes()), None):
                    pass


async def test_a_stranger_that_says_nothing_holds_up_neither_metrics_nor_the_end(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    hub, alice = pki.issue("controller", "hub"), pki.issue("operator", "alice")
    async with serving(tmp_path / "state") as served:
        port = free_port()
        with socket.socket() as silent, socket.socket() as half:
            with serving_metrics(
                f"0.0.0.0:{port}", collector(served.federation, TaskTimes()), ServerTls(hub)
            ):
                silent.connect(("127.0.0.1", port))
                half.connect(("127.0.0.1", port))
                half.send(b"\x16\x03\x01")
                found = await asyncio.to_thread(scrape, f"https://127.0.0.1:{port}/metrics", shown(alice))
                assert "hansa_store_usable" in found
                start = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - start < 5


async def test_metrics_are_not_for_sites_nor_for_those_who_were_revoked(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    hub, alice, learner = (
        pki.issue("controller", "hub"),
        pki.issue("operator", "alice"),
        pki.issue("learner", "a"),
    )
    async with serving(tmp_path / "state") as served:
        port, tls = free_port(), ServerTls(hub)
        with serving_metrics(f"0.0.0.0:{port}", collector(served.federation, TaskTimes()), tls):
            url = f"https://127.0.0.1:{port}/metrics"
            assert "hansa_store_usable" in await asyncio.to_thread(scrape, url, shown(alice))
            pki.revoke(alice)
            pki.hand_on_revoked(hub)
            tls.refresh_revoked()
            for folder in (alice, learner):
                with pytest.raises((OSError, http.client.HTTPException)):
                    await asyncio.to_thread(scrape, url, shown(folder))
            pki.issue("controller", "hub")  # a renewed certificate is in use at once
            bob = pki.issue("operator", "bob")
            assert "hansa_store_usable" in await asyncio.to_thread(scrape, url, shown(bob))


def shown(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / files.CA))
    context.load_cert_chain(folder / files.CERTIFICATE, folder / files.KEY)
    return context
