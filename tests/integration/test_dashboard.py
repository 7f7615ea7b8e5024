"""The dashboard over real HTTP and gRPC: who is let in, what pages hold, and how they stay up to date."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.pki import files
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.views import AuditView, DaemonView, EventView
from hansa.dashboard.server import Dashboard, DashboardOptions
from tests.consortium import Consortium
from tests.hostile_text import NASTY, UNSAFE
from tests.pretended_controller import PretendedController, job, progress, version

SCRIPT = "<script>alert(1)</script>"
ATTACK = f"{SCRIPT}\"'><img src=x onerror=alert(2)>{NASTY}"
PAGES = ("/", "/jobs", "/jobs/j1", "/compare?job=j1", "/audit")
Browser = aiohttp.ClientSession


@asynccontextmanager
async def dashboard(controller: str, **options: Any) -> AsyncIterator[Dashboard]:
    """Run a dashboard of a controller."""
    endpoint = Endpoint(controller)
    async with AsyncClient(endpoint) as client:
        served = Dashboard(DashboardOptions(endpoint, "127.0.0.1:0", **options), client)
        await served.start()
        try:
            yield served
        finally:
            await served.stop()


def new_browser(served: Dashboard, certificate: Path | None = None, ca: Path | None = None) -> Browser:
    """Return a browser, perhaps with somebody's certificate."""
    context = None
    if ca:
        context = ssl.create_default_context(cafile=ca / files.CA)
        if certificate:
            context.load_cert_chain(certificate / files.CERTIFICATE, certificate / files.KEY)
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    return aiohttp.ClientSession(
        served.address, cookie_jar=aiohttp.CookieJar(unsafe=True), connector=connector
    )


@asynccontextmanager
async def looking(served: Dashboard) -> AsyncIterator[Browser]:
    """Let a browser in by a link."""
    async with new_browser(served) as browser:
        async with browser.get(served.link()) as answer:
            assert answer.status == 200
        yield browser


async def page(browser: Browser, path: str | URL, status: int = 200, **headers: str) -> str:
    async with browser.get(path, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.text()


async def messages(browser: Browser, path: str) -> AsyncIterator[dict[str, Any]]:
    """Yield what a stream sends."""
    async with browser.get(path) as answer:
        assert answer.content_type == "text/event-stream"
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


class Reader(HTMLParser):
    """Reads what a browser would read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_a_link_lets_one_browser_in_once() -> None:
    async with PretendedController(job()).listening() as address, dashboard(address) as served:
        link = served.link()
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as stranger:
            for path in (*PAGES, "/stream/jobs", "/stream/job/j1"):
                assert "Open the link" in await page(stranger, served.address + path, status=401)
            async with stranger.get(link) as answer:
                (cookie,) = answer.headers.getall("Set-Cookie")
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
            assert "Fleet" in await page(stranger, served.address)
        async with aiohttp.ClientSession() as other:
            assert "has been used or has expired" in await page(other, link, status=403)
            assert await page(other, served.address, status=401)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
    ],
    ids=str,
)
async def test_other_sites_pages_can_neither_read_nor_act(headers: dict[str, str]) -> None:
    async with PretendedController(job()).listening() as address:
        async with dashboard(address, allow=frozenset({"cancel"})) as served, looking(served) as browser:
            for path in ("/", "/jobs/j1", "/stream/job/j1", "/assets/dashboard.js"):
                await page(browser, path, status=403, **headers)
            async with browser.post("/jobs/j1/cancel", headers=headers) as answer:
                assert answer.status == 403
            async with browser.post("/jobs/j1/cancel") as answer:  # it names no origin at all
                assert answer.status == 403


async def test_every_answer_forbids_what_pages_do_not_need() -> None:
    async with PretendedController(job()).listening() as address:
        async with dashboard(address) as served, looking(served) as browser:
            for path in (*PAGES, "/nothing", "/assets/dashboard.css", "/jobs/none"):
                async with browser.get(path) as answer:
                    policy = answer.headers["Content-Security-Policy"]
                    assert "default-src 'none'" in policy
                    assert "unsafe" not in policy
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert "Server" not in answer.headers
                    read = Reader(await answer.text())
                for tag, attributes in read.tags:
                    assert tag != "style"
                    assert tag != "script" or attributes["src"] == "/assets/dashboard.js"
                    assert not [name for name in attributes if name.startswith("on") or name == "style"]
            assert (await browser.head("/")).status == 405


def hostile() -> PretendedController:
    """Return a controller whose every text is an attack."""
    names = [ATTACK, "south"]
    view = job(
        name=ATTACK, rule=ATTACK, app=ATTACK, reason=ATTACK, phase=ATTACK, warnings=(ATTACK,),
        version=1, rounds=1,
        metrics={ATTACK: 0.5, "accuracy": 0.5}, metrics_version=1, examples=3,
        sites=tuple(progress(name, state=name) for name in names),
        shortfalls=[{"site": ATTACK, "contributed": 0, "asked": 1, "failures": 1, "reason": ATTACK}],
    )  # fmt: skip
    lost = {
        "lost": {ATTACK: ATTACK},
        "note": ATTACK,
        "metrics": {ATTACK: 0.5},
        "unevaluated": {ATTACK: ATTACK},
    }
    return PretendedController(
        view,
        [version(0), version(1, names, **lost)],
        [EventView(sequence=1, time=ATTACK, kind=ATTACK, text=ATTACK, site=ATTACK)],
        [DaemonView(site=ATTACK, role="learner", state=ATTACK, since=ATTACK, why=ATTACK, doing=(ATTACK,),
                    apps={ATTACK: ATTACK}, changed=(ATTACK,))],
        [AuditView(sequence=1, at=1.0, who=ATTACK, what=ATTACK, about=ATTACK, why=ATTACK, previous="")],
    )  # fmt: skip


async def test_hostile_names_are_text_wherever_they_are_shown() -> None:
    async with hostile().listening() as address:
        async with dashboard(address) as served, looking(served) as browser:
            shown = [await page(browser, path) for path in (*PAGES, "/compare")]
            for path in ("/stream/job/j1", "/stream/fleet", "/stream/jobs", "/stream/audit"):
                async for message in messages(browser, path):
                    shown += message["parts"].values()
                    break
            for text in shown:
                read = Reader(text)
                assert not UNSAFE.search(read.text)
                assert not [tag for tag, _ in read.tags if tag == "img"]
                assert all("src" in attributes for tag, attributes in read.tags if tag == "script")
                assert not [
                    name for _, attributes in read.tags for name in attributes if name.startswith("on")
                ]
            assert sum(SCRIPT in Reader(text).text for text in shown) >= 8


async def test_the_live_parts_of_a_search_come_from_the_same_search() -> None:
    async with PretendedController(job()).listening() as address:
        async with dashboard(address) as served, looking(served) as browser:
            for path in ("", "jobs", "audit"):
                shown = await page(browser, URL(f"/{path}?q=a%26b%23%2B%25", encoded=True))
                (body,) = [attributes for tag, attributes in Reader(shown).tags if tag == "body"]
                assert body["data-stream"] == f"/stream/{path or 'fleet'}?q=a%26b%23%2B%25"


async def test_the_audit_log_of_another_controller_at_the_same_address_is_read_afresh() -> None:
    old = [AuditView(sequence=at, at=1.0, who="a", what="joined", about="old", previous="") for at in (1, 2)]
    controller = PretendedController(job(), records=old)
    async with controller.listening() as address, dashboard(address) as served, looking(served) as browser:
        assert "old" in await page(browser, "/audit")
        controller.records = [old[0].model_copy(update={"about": "new"})]
        await page(browser, "/audit")
        shown = await page(browser, "/audit")
        assert "new" in shown
        assert "old" not in Reader(shown).text.split("Find")[-1]


async def test_twenty_viewers_share_one_watch() -> None:
    controller = PretendedController(job(version=0), [version(0)])
    async with controller.listening() as address, dashboard(address) as served, AsyncExitStack() as stack:
        browsers = [await stack.enter_async_context(looking(served)) for _ in range(20)]
        streams = [messages(browser, "/stream/job/j1") for browser in browsers]
        for stream in streams:
            await anext(stream)
        assert (controller.watches, controller.watched) == (1, 1)
        controller.change(version(1), metrics={"accuracy": 0.875}, metrics_version=1)
        for stream in streams:
            async for message in stream:
                if "0.8750" in message["parts"].get("head", ""):
                    break
        assert (controller.watches, controller.watched) == (1, 1)
        await asyncio.gather(*(stream.aclose() for stream in streams))  # type: ignore[attr-defined]


async def test_a_slow_browser_skips_states_and_holds_nobody_up() -> None:
    controller = PretendedController(job(version=0, rounds_asked=4000), [version(0)])
    async with controller.listening() as address, dashboard(address) as served, looking(served) as browser:
        quick = messages(browser, "/stream/job/j1")
        await anext(quick)
        cookies = browser.cookie_jar.filter_cookies(URL(served.address))
        host, port = served.address.removeprefix("http://").split(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, (host, int(port)))
        words = "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items())
        request = f"GET /stream/job/j1 HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {words}\r\n\r\n"
        await loop.sock_sendall(slow, request.encode())
        seen = 0
        for number in range(1, 601):  # the slow browser reads nothing meanwhile
            controller.change(version(number, [f"site-{at}" for at in range(20)]), reason=f"state {number}")
            if number % 200 == 0:
                async for message in quick:
                    seen += 1
                    if f"state {number}" in message["parts"].get("head", ""):
                        break
        received = b""
        while b"state 600" not in received:
            received += await asyncio.wait_for(loop.sock_recv(slow, 1 << 16), 30)
        slow.close()
        assert received.count(b"data: ") <= seen + 5
        await quick.aclose()  # type: ignore[attr-defined]


async def test_when_the_controller_is_away_pages_say_so_and_go_on_without_gap_or_repeat() -> None:
    controller = PretendedController(job(version=1), [version(0), version(1)])
    async with AsyncExitStack() as stack:
        async with controller.listening() as address:
            served = await stack.enter_async_context(dashboard(address))
            browser = await stack.enter_async_context(looking(served))
            stream = messages(browser, "/stream/job/j1")
            async for message in stream:
                if "1.0 s" in message["parts"].get("versions", ""):
                    break
        async for message in stream:
            if message["lost"]:
                break
        shown = await page(browser, "/jobs/j1")  # what is known of the job is still shown
        assert "reconnecting to the controller" in shown
        assert "reconnecting to the controller" in await page(browser, "/")
        assert "The controller does not answer" in await page(browser, "/jobs/unknown", status=503)
        for number in (2, 3):
            controller.change(version(number))
        async with controller.listening(int(address.rpartition(":")[2])):
            table = ""
            async for message in stream:
                table = message["parts"].get("versions", table)
                if not message["lost"] and "3.0 s" in table:
                    break
            rows = [attributes for tag, attributes in Reader(table).tags if tag == "tr"]
            assert len(rows) == 1 + 4
            await stream.aclose()  # type: ignore[attr-defined]


async def test_pages_say_that_the_controller_refuses_and_go_on_when_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hansa.dashboard.overview.EVERY", 0.05)
    controller = PretendedController(job())
    async with controller.listening() as address, dashboard(address) as served, looking(served) as browser:
        stream = messages(browser, "/stream/fleet")
        assert not (await anext(stream))["lost"]
        controller.closed = True
        assert "is revoked" in (await anext(stream))["lost"]
        controller.closed = False
        assert not (await anext(stream))["lost"]
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_browser_that_takes_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hansa.dashboard.routes.SLOWEST", 0.3)
    for pause in ("scenes.QUICK", "scenes.SLOW", "screens.SHARE"):
        monkeypatch.setattr(f"hansa.dashboard.{pause}", 0.01)
    caplog.set_level("INFO", "hansa.dashboard")
    controller = PretendedController(job(version=0), [version(0)])
    async with controller.listening() as address, dashboard(address) as served, looking(served) as browser:
        quick = messages(browser, "/stream/job/j1")
        await anext(quick)
        cookies = browser.cookie_jar.filter_cookies(URL(served.address))
        words = "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items())
        host, port = served.address.removeprefix("http://").split(":")
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((host, int(port)))
        request = f"GET /stream/job/j1 HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {words}\r\n\r\n"
        silent.sendall(request.encode())
        async with asyncio.timeout(60):
            number = 0
            while not any("takes nothing" in line for line in caplog.messages):
                number += 1
                controller.change(reason=f"{number} {'x' * 400_000}")
                await anext(quick)
        assert not [record for record in caplog.records if record.exc_info]
        silent.close()
        await quick.aclose()  # type: ignore[attr-defined]


async def test_a_job_of_3000_rounds_and_100_sites_stays_usable() -> None:
    sites = [f"site-{number}" for number in range(100)]
    every = version(1, sites)
    history = [
        every.model_copy(update={"version": at, "round": at, "seconds": float(at)}) for at in range(3001)
    ]
    view = job(version=3000, rounds=3000, rounds_asked=3000, status="completed")
    controller = PretendedController(view.model_copy(update={"sites": tuple(map(progress, sites))}), history)
    async with controller.listening() as address, dashboard(address) as served, looking(served) as browser:
        shown = await page(browser, "/jobs/j1")
        assert len(shown) < 1_000_000
        read = Reader(shown)
        assert "site-99" in read.text
        assert len([tag for tag, _ in read.tags if tag == "tr"]) < 600
        assert controller.watched == 1


async def test_jobs_are_cancelled_only_where_that_is_allowed_and_by_forms_of_ours() -> None:
    controller = PretendedController(job())
    async with controller.listening() as address:
        async with dashboard(address) as served, looking(served) as browser:
            assert "Cancel" not in await page(browser, "/jobs/j1")
            ours = {"Origin": served.address}
            async with browser.post("/jobs/j1/cancel", headers=ours) as answer:
                assert answer.status == 403
                assert "only shows" in await answer.text()
        async with dashboard(address, allow=frozenset({"cancel"})) as served, looking(served) as browser:
            ours = {"Origin": served.address}
            forms = Reader(await page(browser, "/jobs/j1")).tags
            (token,) = [attributes["value"] for _, attributes in forms if attributes.get("name") == "token"]
            async with looking(served) as other:
                async with other.post("/jobs/j1/cancel", headers=ours, data={"token": token}) as answer:
                    assert answer.status == 403  # it is the form of another session
            assert controller.view.status == "running"
            async with browser.post("/jobs/j1/cancel", headers=ours, data={"token": token}) as answer:
                assert answer.status == 200
                assert answer.url.path == "/jobs/j1"
        assert controller.view.status == "cancelled"


async def test_the_page_for_colours_leads_back_and_nowhere_else() -> None:
    async with PretendedController(job()).listening() as address:
        async with dashboard(address) as served, looking(served) as browser:
            for came, leads in (
                (f"{served.address}/jobs?q=x", "/jobs?q=x"),
                (f"{served.address}//evil.example/", "/"),
                ("http://evil.example/jobs", "/"),
            ):
                headers = {"Origin": served.address, "Referer": came}
                form = {"theme": "dark"}
                async with browser.post(
                    "/theme", headers=headers, data=form, allow_redirects=False
                ) as answer:
                    assert answer.status == 303
                    assert answer.headers["Location"] == leads
            assert 'data-theme="dark"' in await page(browser, "/")


async def test_beyond_this_machine_only_certificates_of_operators_and_viewers_open_the_door(
    tmp_path: Path,
) -> None:
    pki, strangers = Consortium(tmp_path), Consortium(tmp_path / "others", "Others")
    controller = PretendedController(job())
    shown, allow = pki.issue("dashboard", "hub"), frozenset({"cancel"})
    people = {role: pki.issue(role, "anna") for role in ("viewer", "operator", "learner")}
    async with controller.listening() as address, dashboard(address, tls=shown, allow=allow) as served:
        assert served.address.startswith("https://")
        for certificate in (None, strangers.issue("operator", "eve")):
            async with new_browser(served, certificate, people["viewer"]) as browser:
                with pytest.raises(aiohttp.ClientError):  # the connection itself is refused
                    await browser.get("/")
        async with new_browser(served, people["learner"], people["learner"]) as browser:
            assert "only operators and viewers" in await page(browser, "/", status=403)
            assert "only operators and viewers" in await page(browser, "/stream/fleet", status=403)
        ours = {"Origin": served.address}
        async with new_browser(served, people["viewer"], people["viewer"]) as browser:
            assert "viewer anna" in await page(browser, "/")
            assert "Cancel" not in await page(browser, "/jobs/j1")
            async with browser.post("/jobs/j1/cancel", headers=ours) as answer:
                assert answer.status == 403
            await page(browser, served.link(), status=404)  # links are for this machine alone
        async with new_browser(served, people["operator"], people["operator"]) as browser:
            forms = Reader(await page(browser, "/jobs/j1")).tags
            (token,) = [attributes["value"] for _, attributes in forms if attributes.get("name") == "token"]
            stream = messages(browser, "/stream/job/j1")
            await anext(stream)
            pki.revoke(people["operator"])
            pki.hand_on_revoked(shown)
            controller.change(reason="")
            async for message in stream:  # it ends, and without a page in the middle of it
                assert message["parts"]
            async with browser.post("/jobs/j1/cancel", headers=ours, data={"token": token}) as answer:
                assert answer.status == 401
                assert "is revoked" in await answer.text()
    assert controller.view.status == "running"
