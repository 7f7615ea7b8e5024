"""The fleet: which daemons are connected, since when, and what they are doing."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from hansa.common.process.clock import Clock, iso
from hansa.common.values.errors import InvalidInput, NotFound, Taken
from hansa.common.values.ids import SiteName
from hansa.common.values.stated import short
from hansa.common.values.views import DaemonView, LogView
from hansa.common.values.wording.words import in_order, plain
from hansa.controller.fleet.sessions import ROLES, AppState, DaemonRole, Session

log = logging.getLogger(__name__)

REMEMBERED = 1000  # daemons that have left and are still shown to operators


@dataclass
class Absence:
    """A daemon that is away."""

    since: float
    why: str
    departing: "asyncio.Task[None] | None" = None  # waits for the grace period; None once the daemon has left


class FleetListener(Protocol):
    """An object that is told when daemons come and go."""

    def attended(self, session: Session) -> None:
        """Handle a daemon that has connected, for the first time or again."""

    def left(self, site: SiteName, role: DaemonRole) -> None:
        """Handle a daemon that has left: it said goodbye or was away for longer than the grace period."""


class Fleet:
    """All daemons. A daemon whose stream breaks is away; after the grace period it counts as having left."""

    def __init__(self, clock: Clock, listener: FleetListener, heartbeat: float, grace: float) -> None:
        self.heartbeat = heartbeat
        self._clock = clock
        self._listener = listener
        self._grace = grace
        self._sessions: dict[tuple[SiteName, DaemonRole], Session] = {}
        self._away: dict[tuple[SiteName, DaemonRole], Absence] = {}  # in the order in which they left

    @property
    def sessions(self) -> list[Session]:
        """The daemons that are connected, by site and role."""
        return [self._sessions[key] for key in sorted(self._sessions)]

    def find(self, site: SiteName, role: DaemonRole) -> Session | None:
        """Return a daemon's session if it is connected."""
        return self._sessions.get((site, role))

    async def read_log(self, site: str, role: str, lines: int, operator: str) -> LogView:
        """Ask a daemon for the last lines of its log; without a role the learner, or else the evaluator."""
        if role not in ("", *ROLES):
            raise InvalidInput(f"{plain(role, 40)!r} is not a daemon of a site: learner or evaluator")
        wanted = [each for each in ROLES if role in ("", each)]
        session = next(filter(None, (self.find(SiteName(site), each) for each in wanted)), None)
        if session is None:
            which = role or "daemon"
            raise NotFound(
                f"no {which} of site {plain(site, 64)!r} is connected; `hansa site list` shows all"
            )
        return LogView(site=session.site, role=session.role, lines=await session.read_log(lines, operator))

    def attend(self, session: Session) -> None:
        """Enter a daemon's session, or raise Taken if another living process has its name and role."""
        key = (session.site, session.role)
        former = self._sessions.get(key)
        if former and former.instance != session.instance:
            silent = self._clock.now() - former.last_seen
            if silent < 2 * self.heartbeat:
                raise Taken(
                    f"another {session.role} of site {session.site!r} has been connected from"
                    f" {former.peer or 'elsewhere'} since {iso(former.since)};"
                    " stop it first or choose another --site name"
                )
        if former:
            former.close()
        self._sessions[key] = session
        absence = self._away.pop(key, None)
        if absence and absence.departing:
            absence.departing.cancel()
        log.info("%s is connected from %s", session.name, session.peer)
        self._listener.attended(session)

    def broken(self, session: Session, goodbye: bool, why: str = "") -> None:
        """Note that a daemon's stream has ended, and why, if that is known."""
        key = (session.site, session.role)
        if self._sessions.get(key) is not session:
            return  # it has already reconnected
        del self._sessions[key]
        if goodbye:
            log.info("%s said goodbye", session.name)
            self._remember(key, Absence(self._clock.now(), "it was stopped"))
            self._listener.left(*key)
        else:
            log.warning("%s lost its connection; it has %g s to come back", session.name, self._grace)
            self.expect(*key, why or "its connection was lost")

    def expect(
        self,
        site: SiteName,
        role: DaemonRole,
        why: str = "it has not connected since the controller was started",
    ) -> None:
        """Give a daemon the grace period to connect."""
        key = (site, role)
        if key not in self._sessions and key not in self._away:
            self._remember(key, Absence(self._clock.now(), why, asyncio.create_task(self._depart(key))))

    def _remember(self, key: tuple[SiteName, DaemonRole], absence: Absence) -> None:
        """Keep an absence for operators to see; of daemons that have left, only the newest are kept."""
        gone = [daemon for daemon, absent in self._away.items() if absent.departing is None]
        for daemon in gone[: max(0, len(gone) - REMEMBERED + 1)]:
            del self._away[daemon]
        self._away[key] = absence

    def reap(self) -> None:
        """Close the streams of daemons that have been silent for too long."""
        for session in list(self._sessions.values()):
            if self._clock.now() - session.last_seen > 3 * self.heartbeat:
                log.warning("%s has been silent for %g s", session.name, 3 * self.heartbeat)
                session.close()
                self.broken(session, goodbye=False, why=f"it was silent for {3 * self.heartbeat:g} s")

    async def watch(self) -> None:
        """Look for silent daemons once per heartbeat, until this is cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.now() + self.heartbeat)
            self.reap()

    def close(self) -> None:
        """End all streams."""
        for session in self._sessions.values():
            session.close()
        for absence in self._away.values():
            if absence.departing:
                absence.departing.cancel()

    def views(self) -> list[DaemonView]:
        """Return the daemons as operators see them."""
        here = [_view(session) for session in self.sessions]
        away = [
            DaemonView(site=site, role=role, state="away", since=iso(absence.since), why=absence.why)
            for (site, role), absence in self._away.items()
        ]
        return sorted(here + away, key=lambda view: (view.state == "away", in_order(view.site), view.role))

    async def _depart(self, key: tuple[SiteName, DaemonRole]) -> None:
        await self._clock.sleep_until(self._clock.now() + self._grace)
        absence = self._away[key]
        absence.departing, absence.why = None, f"{absence.why}; it did not come back within {self._grace:g} s"
        log.warning("%s %s did not come back", key[1], key[0])
        self._listener.left(*key)


def _view(session: Session) -> DaemonView:
    return DaemonView(
        site=session.site,
        role=session.role,
        state="attending",
        since=iso(session.since),
        doing=tuple(sorted(session.in_hand, key=in_order)),
        apps={ref: _describe(app) for ref, app in session.apps.items()},
        sources={ref: app.stated.source for ref, app in session.apps.items() if app.stated.source},
        changed=tuple(sorted(ref for ref, app in session.apps.items() if app.stated.changed)),
        version=session.version,
        peer=session.peer,
    )


def _describe(app: AppState) -> str:
    """Say whether an app can be used, with how many examples, and which source was loaded."""
    if app.error:
        return app.error
    source = f", source {short(app.stated.source)}" if app.stated.source else ""
    return f"ok, {app.examples} examples{source}{' (changed on disk since)' if app.stated.changed else ''}"
