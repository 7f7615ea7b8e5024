"""The live pages: what each shows, and the screen that it shares with other viewers of the same."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote
from xml.etree.ElementTree import Element

from aiohttp import web

from hansa.common.drawing.markup import Child, tag
from hansa.common.values.errors import InvalidInput
from hansa.dashboard.followed import FollowedJob, FollowedJobs
from hansa.dashboard.overview import Overview
from hansa.dashboard.pages import audit, fleet, job, jobs, pictures
from hansa.dashboard.pages.layout import card, live, search
from hansa.dashboard.screens import Part, Screen

QUICK, SLOW = 0.5, 2.0  # seconds between two drawings of a part
LONGEST_QUERY = 200


@dataclass(frozen=True)
class Scene:
    """A live page at the moment."""

    title: str
    place: str
    stream: str  # where its live parts come from
    screen: Screen
    lost: Callable[[], str]  # why the controller cannot be reached
    content: Callable[[dict[str, Element]], Child]  # around the live parts
    job: FollowedJob | None = None


class Scenes:
    """Makes scenes from requests; who enters a scene looks at something until they leave it."""

    def __init__(self, overview: Overview, followed: FollowedJobs) -> None:
        self._overview, self._followed = overview, followed

    def of(self, name: str) -> Callable[[web.Request], AbstractAsyncContextManager[Scene]]:
        """Return how a scene is made of a request."""
        return {"fleet": self.fleet, "jobs": self.jobs, "job": self.job, "audit": self.audit}[name]

    @asynccontextmanager
    async def fleet(self, request: web.Request) -> AsyncIterator[Scene]:
        """The fleet."""
        words = _text(request, "q")
        async with self._overview.looking() as overview:
            yield self._listing(
                request,
                "Fleet",
                "/",
                {
                    "summary": partial(fleet.summary, overview),
                    "under-way": partial(fleet.under_way, overview),
                    "sites": partial(fleet.sites, overview, words),
                },
                lambda parts: (
                    tag("h1", "Fleet"),
                    live("summary", parts["summary"]),
                    live("under-way", parts["under-way"]),
                    card("Sites", search(words, "Find sites", "/"), live("sites", parts["sites"])),
                ),
            )

    @asynccontextmanager
    async def jobs(self, request: web.Request) -> AsyncIterator[Scene]:
        """The list of jobs."""
        words, number = _text(request, "q"), _number(request, "page", 1)
        async with self._overview.looking() as overview:
            yield self._listing(
                request,
                "Jobs",
                "/jobs",
                {"jobs": lambda: jobs.listing(overview.jobs, words, number)},
                lambda parts: (
                    tag("h1", "Jobs"),
                    card("All jobs", search(words, "Find jobs", "/jobs"), live("jobs", parts["jobs"])),
                ),
            )

    @asynccontextmanager
    async def audit(self, request: web.Request) -> AsyncIterator[Scene]:
        """The audit log."""
        words, before = _text(request, "q"), _number(request, "before", 0)
        async with self._overview.looking(log=True) as overview:
            yield self._listing(
                request,
                "Audit",
                "/audit",
                {"records": lambda: audit.records(overview, words, before)},
                lambda parts: (
                    tag("h1", "Audit"),
                    card(
                        "Who did what",
                        search(words, "Find records", "/audit"),
                        live("records", parts["records"]),
                    ),
                ),
            )

    def _listing(
        self,
        request: web.Request,
        title: str,
        place: str,
        draw: dict[str, Callable[[], Element]],
        content: Callable[[dict[str, Element]], Child],
    ) -> Scene:
        asked = request.rel_url.raw_query_string  # as it came: what is decoded may mean something else
        stream = f"/stream/{title.lower()}" + (f"?{asked}" if asked else "")
        screen = Screen(self._overview.pulse, {name: Part(each, QUICK) for name, each in draw.items()})
        return Scene(title, place, stream, screen, lambda: self._overview.lost, content)

    @asynccontextmanager
    async def job(self, request: web.Request) -> AsyncIterator[Scene]:
        """One job; all its viewers share a screen."""
        async with self._followed.looking(request.match_info["job"]) as followed:
            followed.screen = screen = followed.screen or _job_screen(followed)
            name = followed.view.name or followed.job
            stream = f"/stream/job/{quote(followed.job, safe='')}"

            def content(parts: dict[str, Element]) -> Child:
                return (
                    tag("h1", name),
                    job.facts(followed.view),
                    live("head", parts["head"]),
                    live("strip", parts["strip"]),
                    tag(
                        "div",
                        card("Sites", live("sites", parts["sites"]), class_="wide"),
                        card("What happened", live("feed", parts["feed"])),
                        class_="columns",
                    ),
                    live("drawings", parts["drawings"]),
                    card("Versions", live("versions", parts["versions"])),
                )

            yield Scene(name, "/jobs", stream, screen, lambda: followed.lost, content, followed)


def _job_screen(followed: FollowedJob) -> Screen:
    return Screen(
        followed.pulse,
        {
            "head": Part(lambda: job.head(followed), QUICK),
            "sites": Part(lambda: job.sites(followed), QUICK),
            "feed": Part(lambda: job.feed(followed), QUICK),
            "versions": Part(lambda: job.versions(followed), QUICK),
            "strip": Part(lambda: pictures.strip(followed.whole()), SLOW),
            "drawings": Part(lambda: pictures.drawings(followed.whole()), SLOW),
        },
    )


def _text(request: web.Request, name: str) -> str:
    text = request.query.get(name, "").strip()
    if len(text) > LONGEST_QUERY:
        raise InvalidInput(f"{name}: at most {LONGEST_QUERY} characters")
    return text


def _number(request: web.Request, name: str, otherwise: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInput(f"{name}: {text[:20]!r} is not a number")
    return int(text)
