"""What browsers can ask for: pages, their live parts as a stream, and the few forms."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from aiohttp import web

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.drawing.markup import Child, page
from hansa.common.values.errors import Forbidden, HansaError, InvalidInput
from hansa.dashboard.access import SESSION, Access, Visitor
from hansa.dashboard.border import Border
from hansa.dashboard.followed import FollowedJobs
from hansa.dashboard.pages import compare, entry, job
from hansa.dashboard.pages.layout import THEMES, Frame
from hansa.dashboard.pages.layout import page as framed
from hansa.dashboard.scenes import Scene, Scenes
from hansa.dashboard.screens import Drawn

log = logging.getLogger(__name__)
VIEWERS = 200  # streams at a time
HEARTBEAT = 15.0  # seconds after which a stream says that nothing has changed
SLOWEST = 30.0  # seconds in which a browser must take what it is sent
COMPARED = 8  # jobs on a page


class Routes:
    """The handlers of requests; who asks has been let in before."""

    def __init__(
        self,
        client: AsyncClient,
        controller: str,
        access: Access,
        border: Border,
        scenes: Scenes,
        followed: FollowedJobs,
        allow: frozenset[str],
        visitor: Callable[[web.Request], Visitor],
    ) -> None:
        self._client, self._controller, self._access, self._border = client, controller, access, border
        self._scenes, self._followed, self._allow = scenes, followed, allow
        self._visitor = visitor
        self._streams: set[asyncio.Task[None]] = set()
        self.cookie = "hansa"  # named after the port: browsers keep cookies of all ports together

    def table(self, links: bool) -> list[web.RouteDef]:
        """Return which handler answers what; `links` let browsers in."""

        def get(path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.RouteDef:
            return web.get(path, handler, allow_head=False)

        return [
            get("/", self._show("fleet")),
            get("/jobs", self._show("jobs")),
            get("/jobs/{job}", self._show("job")),
            get("/audit", self._show("audit")),
            get("/compare", self.compare),
            get("/stream/{scene:fleet|jobs|audit}", self.stream),
            get("/stream/{scene:job}/{job}", self.stream),
            *([get("/enter", self.enter)] if links else []),
            web.post("/theme", self.theme),
            web.post("/jobs/{job}/cancel", self.cancel),
        ]

    def _show(self, name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def show(request: web.Request) -> web.StreamResponse:
            async with self._scenes.of(name)(request) as scene:
                if scene.job:
                    await scene.job.catch_up()
                parts = {key: drawn.element for key, drawn in scene.screen.drawn().items()}
                content: list[Child] = [scene.content(parts)]
                visitor = self._visitor(request)
                if scene.job and "cancel" in self._allow and visitor.may_act:
                    content.append(job.cancelling(scene.job.view, self._access.token(visitor)))
                return self._page(request, scene.title, scene.place, content, scene)

        return show

    def _page(
        self, request: web.Request, title: str, place: str, content: Child, scene: Scene | None = None
    ) -> web.Response:
        frame = Frame(
            controller=self._controller,
            visitor=self._visitor(request).name,
            theme=_theme(request.cookies.get(f"{self.cookie}-theme", "")),
            stream=scene.stream if scene else "",
            lost=scene.lost() if scene else "",
        )
        return web.Response(text=page(framed(title, place, frame, content)), content_type="text/html")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the parts of a page that change, as long as somebody looks."""
        if len(self._streams) >= VIEWERS:
            return web.Response(status=503, text=f"{VIEWERS} pages are open already: close some\n")
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            async with self._scenes.of(request.match_info["scene"])(request) as scene:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                try:
                    await self._send(request, response, scene)
                except HansaError as error:  # such as a session that has expired: who asks again is told
                    log.info("a stream to %s ends: %s", request.remote, error)
                except TimeoutError:  # no answer, not even an error, would reach this browser
                    log.info("a stream to %s ends: the browser takes nothing", request.remote)
                    if request.transport:
                        request.transport.abort()
                return response
        finally:
            self._streams.discard(task)

    async def _send(self, request: web.Request, response: web.StreamResponse, scene: Scene) -> None:
        sent: dict[str, Drawn] = {}
        told: str | None = None
        while True:
            self._visitor(request)  # a session may expire meanwhile
            drawn, lost = scene.screen.drawn(), scene.lost()
            news = {
                name: part.text
                for name, part in drawn.items()
                if name not in sent or sent[name].text != part.text
            }
            async with asyncio.timeout(SLOWEST):
                if news or lost != told:
                    text = json.dumps({"parts": news, "lost": lost})
                    await response.write(f"data: {text}\n\n".encode())
                else:
                    await response.write(b": nothing new\n\n")
            sent, told = drawn, lost
            await scene.screen.changed(list(drawn.values()), HEARTBEAT)

    async def hang_up(self, _: web.Application) -> None:
        """End all streams; browsers come back when the dashboard does."""
        streams = list(self._streams)
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def compare(self, request: web.Request) -> web.StreamResponse:
        """Show several jobs side by side."""
        words = list(dict.fromkeys(request.query.getall("job", [])))
        if len(words) > COMPARED:
            raise InvalidInput(f"at most {COMPARED} jobs can be compared on one page")
        known = await self._client.jobs()
        async with AsyncExitStack() as stack:
            followed = [await stack.enter_async_context(self._followed.looking(each)) for each in words]
            await asyncio.gather(*(each.catch_up() for each in followed))
            content = compare.comparison(known, [each.whole() for each in followed])
        return self._page(request, "Compare", "/compare", content)

    async def enter(self, request: web.Request) -> web.StreamResponse:
        """Exchange a link for a session."""
        session = self._access.open_link(request.query.get("key", ""))
        if session is None:
            raise Forbidden(
                "This link has been used or has expired. Press Enter in the terminal of `hansa dashboard` for"
                " another one."
            )
        response = web.Response(text=page(entry.entered()), content_type="text/html")
        response.set_cookie(
            self.cookie, session, httponly=True, samesite="Strict", path="/", max_age=int(SESSION)
        )
        return response

    async def theme(self, request: web.Request) -> web.StreamResponse:
        """Choose the colours."""
        form = await request.post()
        response = web.Response(status=303, headers={"Location": self._back(request)})
        chosen = _theme(str(form.get("theme", "")))
        response.set_cookie(
            f"{self.cookie}-theme", chosen, httponly=True, samesite="Strict", path="/", max_age=365 * 86400
        )
        return response

    def _back(self, request: web.Request) -> str:
        """Return the page from which a form came, which must be ours."""
        came = urlsplit(request.headers.get("Referer", ""))
        ours = came.netloc.lower() in self._border.hosts and came.path.startswith("/")
        if not ours or came.path.startswith("//") or "\\" in came.path:
            return "/"
        return came.path + (f"?{came.query}" if came.query else "")

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel a job."""
        visitor = self._visitor(request)
        if "cancel" not in self._allow:
            raise Forbidden(
                "this dashboard only shows; `hansa dashboard --allow cancel` can also cancel jobs"
            )
        if not visitor.may_act:
            raise Forbidden(f"{visitor.name} may not cancel jobs: only operators may")
        form = await request.post()
        self._access.require_token(visitor, str(form.get("token", "")))
        view = await self._client.cancel(request.match_info["job"])
        return web.Response(status=303, headers={"Location": f"/jobs/{view.job}"})


def _theme(text: str) -> str:
    return text if text in dict(THEMES) else "auto"
