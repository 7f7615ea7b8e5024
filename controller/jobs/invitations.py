"""How daemons are offered to a job: those that can run its app join, the others are named with the reason."""

import asyncio
from collections.abc import Sequence

from hansa.common.job.spec import JobSpec
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import listed
from hansa.controller.engine import events as ev
from hansa.controller.engine.accounts.apps import difference
from hansa.controller.engine.state import JobState
from hansa.controller.fleet.sessions import AppState, DaemonRole, Session
from hansa.controller.jobs.runner import JobRunner

MOMENT = 5.0  # seconds that a submission waits at most until the connected daemons have joined


async def gather(runner: JobRunner, sessions: Sequence[Session]) -> None:
    """Offer the connected daemons to a new job, and wait a moment so that its operator sees the outcome.

    Daemons that cannot take part come first, followed by the reason why the others cannot work together, if
    there is one; otherwise the job might begin with the first few.
    """
    spec = runner.machine.spec
    fit = [session for session in sessions if not _obstacle(spec, session)]
    posts = [offer(runner, session) for session in sessions if _obstacle(spec, session)]
    why = difference(spec, {s.name: s.apps[spec.app].stated for s in fit if _is_invited(spec, s)})
    if why:
        posts.append(runner.post(ev.EngineFailed(at=runner.now(), reason=why)))
    posts += [offer(runner, session) for session in fit]
    awaited = [post for post in posts if post is not None]
    if awaited:
        await asyncio.wait(awaited, timeout=MOMENT)


def offer(runner: JobRunner, session: Session) -> "asyncio.Future[int] | None":
    """Offer a daemon to a job and send it what it has missed; return the outcome, or None if not invited."""
    spec = runner.machine.spec
    if runner.machine.ended or not _is_invited(spec, session):
        return None
    obstacle = _obstacle(spec, session)
    if obstacle:
        return runner.post(
            ev.SiteUnfit(at=runner.now(), site=session.site, role=session.role, reason=obstacle)
        )
    app: AppState = session.apps[spec.app]
    joined = runner.post(
        ev.SiteJoined(
            at=runner.now(), site=session.site, role=session.role, examples=app.examples, app=app.stated
        )
    )
    runner.catch_up(session)
    return joined


def expected(state: JobState) -> list[tuple[SiteName, DaemonRole]]:
    """Return the daemons that take part in a job, as far as the job knows."""
    learners: list[tuple[SiteName, DaemonRole]] = [(site, "learner") for site in state.learners]
    return learners + [(site, "evaluator") for site in state.evaluators]


def _is_invited(spec: JobSpec, session: Session) -> bool:
    takes_part = spec.sites.trains if session.role == "learner" else spec.sites.evaluates
    return takes_part(session.site)


def _obstacle(spec: JobSpec, session: Session) -> str:
    """Say why a daemon cannot run the job's app; empty if it can."""
    app = session.apps.get(spec.app)
    if app is not None:
        return app.error
    allowed = listed(sorted(session.apps)) or "none"
    return f"app {spec.app!r} is not allowed there (allowed: {allowed})"
