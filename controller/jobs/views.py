"""A job as operators see it: its progress, its versions and what its sites are doing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from hansa.common.job.check import located
from hansa.common.process.clock import iso
from hansa.common.values.history import Findings, Version, VersionView
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.resolved import ModelOrigin, Resolved
from hansa.common.values.results import Progress
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import EventView, JobView, Shortfall, SiteProgress, SurveyView
from hansa.common.values.words import in_order
from hansa.controller.engine.accounts.participation import shortfalls
from hansa.controller.engine.events import Role
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.state import Happening

NAMED = 1000  # sites that contributed little; a view must not grow with every site that ever took part


class Session(Protocol):
    """What a view shows of a connected learner."""

    @property
    def progress(self) -> Mapping[TaskId, Progress]:
        """How far its tasks have come."""


class Sessions(Protocol):
    """The connected daemons."""

    def find(self, site: SiteName, role: Role) -> Session | None:
        """Return a daemon if it is connected."""


@dataclass(frozen=True)
class Surroundings:
    """What a view shows besides the engine's state."""

    fleet: Sessions
    now: float
    bytes_up: int  # since the newest version
    bytes_down: int
    trouble: str  # why the store cannot be used right now


def _needs(machine: Machine) -> str:
    """Say what a job that has not begun is waiting for."""
    needed = machine.spec.sites.min
    if machine.state.status != "waiting":
        return ""
    return f"needs {needed} connected sites" if needed > 1 else "needs a connected site"


def job_view(
    machine: Machine, around: Surroundings, history: bool = True, since: int = 0, sites: bool = True
) -> JobView:
    """Return a job as operators see it, with its sites and the versions from `since` on, or without both.

    Without `sites`, only the sites are left out.
    """
    state, spec = machine.state, machine.spec
    newest = state.history[state.covered] if state.covered is not None else None
    waiting = around.trouble and not machine.ended
    return JobView(
        job=machine.job,
        name=spec.name,
        rule=spec.rule,
        app=spec.app,
        status=state.status,
        reason=f"waiting for the store: {around.trouble}" if waiting else state.reason or _needs(machine),
        site=state.failed_site or "",
        warnings=(*(located(warning, {}) for warning in machine.rule.warnings(spec)), *machine.warnings),
        version=max(state.version, 0),
        rounds=max(state.version, 0),
        rounds_asked=machine.rule.rounds_asked,
        unit=machine.rule.pace.unit,
        phase=machine.phase,
        seconds=round((state.ended or around.now) - state.submitted, 3),
        submitted=iso(state.submitted),
        metrics=_metrics(machine, newest) if newest else {},
        metrics_version=newest.version if newest else None,
        examples=newest.examples if newest else 0,
        examples_total=newest.examples_total if newest else None,
        drawn=newest.drawn if newest else None,
        test=_of_test_sites(machine, newest) if newest else None,
        bytes_up=state.bytes_up + around.bytes_up,
        bytes_down=state.bytes_down + around.bytes_down,
        sites=tuple(_site_views(machine, around.fleet)) if history and sites else (),
        evaluators=len(state.evaluators),
        shortfalls=_shortfalls(machine) if history else (),
        survey=_survey_view(machine) if history and not since else None,
        history=tuple(history_views(machine, since)) if history else (),
    )


def event_view(entry: Happening) -> EventView:
    """Return an entry of the chronicle as operators see it."""
    return EventView(
        sequence=entry.number,
        time=iso(entry.at),
        kind=entry.kind,
        text=entry.text,
        site=entry.site or None,
        version=entry.version,
    )


def origin_of(machine: Machine, version: int, resolved: Resolved | None) -> ModelOrigin:
    """Return the origin that is written into an exported community model."""
    record = machine.state.history[version]
    return ModelOrigin(
        job=machine.job,
        name=machine.spec.name,
        version=version,
        digest=record.digest,
        receipt=record.receipt,
        resolved=resolved,
        travel=machine.rule.travel,
        backbone=machine.state.backbone,
    )


def _shortfalls(machine: Machine) -> tuple[Shortfall, ...]:
    return tuple(shortfalls(machine.state, machine.rule.pace.common_rounds)[:NAMED])


def _metrics(machine: Machine, record: Version) -> Mapping[str, float | None]:
    try:
        return machine.metrics(record)
    except Exception:  # an evaluation plan that fails ends the job, whose reason names it; show the rest
        return {}


def _of_test_sites(machine: Machine, record: Version) -> Findings | None:
    if record.test is None:
        return None
    try:
        metrics = machine.metrics_of_test_sites(record)
    except Exception:  # as above
        metrics = {}
    return record.test.model_copy(update={"metrics": metrics})


def _survey_view(machine: Machine) -> SurveyView | None:
    state = machine.state
    if not state.surveyed:
        return None
    profiles = sorted(state.profiles.items(), key=lambda item: in_order(item[0]))
    return SurveyView(
        examples={site: profile.n for site, profile in profiles},
        classes={site: profile.classes for site, profile in profiles if profile.classes},
        mean=state.standard.mean if state.standard else (),
        deviation=state.standard.deviation if state.standard else (),
    )


def history_views(machine: Machine, since: int) -> Iterator[VersionView]:
    """Yield the versions of a job from `since` on as operators see them."""
    for record in machine.state.history[max(since, 0) :]:
        awaited = machine.awaits(record)
        evaluated = bool(record.examples) and not awaited
        settled = evaluated or machine.ended or (record.version < machine.state.version and not awaited)
        shown = dict(record) | {
            "metrics": _metrics(machine, record),
            "evaluated": evaluated,
            "settled": settled,
        }
        yield VersionView.model_construct(**shown | {"test": _of_test_sites(machine, record)})


def _site_views(machine: Machine, fleet: Sessions) -> Iterator[SiteProgress]:
    state = machine.state
    training = {task.site: task for task in state.tasks.values() if isinstance(task.work, Train)}
    contributors = map(SiteName, state.history[-1].sites) if state.history else ()
    asked = {*training, *state.learners, *contributors}
    for site in sorted(asked, key=in_order):
        session = fleet.find(site, "learner")
        task = training.get(site)
        progress = session.progress.get(task.id) if session and task else None
        if machine.ended:
            doing = "done"
        elif session is None:
            doing = "away"
        else:
            doing = "training" if task else "idle"
        yield SiteProgress(
            site=site,
            state=doing,
            epoch=progress.epoch if progress else 0,
            epochs=progress.epochs if progress else _epochs(task) or machine.rule.epochs,
            loss=progress.loss if progress else None,
            examples=state.learners.get(site, 0),
        )


def _epochs(task: Task | None) -> int:
    return task.work.epochs if task and isinstance(task.work, Train) else 0
