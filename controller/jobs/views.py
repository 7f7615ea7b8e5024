"""A job as operators see it: its progress, its versions and what its sites are doing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from hansa.common.job.check import located
from hansa.common.process.clock import iso
from hansa.common.values.errors import NotFound
from hansa.common.values.history import Findings, Version, VersionView, brief_findings
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.common.values.resolved import ModelOrigin, Resolved
from hansa.common.values.results import Progress
from hansa.common.values.settings.metrics import USUAL
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import EventView, JobView, Shortfall, SiteProgress, SurveyView
from hansa.common.values.wording.words import in_order, listed
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
    machine: Machine,
    around: Surroundings,
    *,
    people: bool = True,
    sites: bool = True,
    survey: bool = True,
    history: Iterable[VersionView] = (),
) -> JobView:
    """Return a job as operators see it, with a part of its history.

    Without `people` nothing is in it that grows with the number of sites; without `sites`, only what they are
    doing is left out.
    """
    state, spec = machine.state, machine.spec
    newest = state.history[state.covered] if state.covered is not None else None
    waiting = around.trouble and not machine.ended
    return JobView(
        job=machine.job,
        name=spec.name,
        operator=spec.operator,
        key=spec.key,
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
        test=_brief_test(machine, newest) if newest else None,
        bytes_up=state.bytes_up + around.bytes_up,
        bytes_down=state.bytes_down + around.bytes_down,
        best=state.best.version if state.best else None,
        kept=tuple(models_of(machine)) if people else (),
        keep=spec.keep,
        sites=tuple(_site_views(machine, around.fleet)) if people and sites else (),
        evaluators=len(state.evaluators),
        shortfalls=_shortfalls(machine) if people else (),
        survey=_survey_view(machine) if people and survey else None,
        history=tuple(history),
    )


def models_of(machine: Machine) -> dict[int, ModelKey]:
    """Return the models that operators can fetch, by version."""
    state = machine.state
    kept = dict(sorted(state.saved.items()))
    return kept if state.current is None else kept | {state.version: state.current}


def model_of(machine: Machine, wanted: int | str) -> tuple[int, ModelKey]:
    """Return a version (best, last or a number) and where its model is; raise NotFound if it is not kept."""
    state, models = machine.state, models_of(machine)
    if state.current is None:
        raise NotFound(f"job {machine.job} has no model yet")
    if wanted == "best":
        if state.best is None:
            raise NotFound(f"job {machine.job} has no best version: {_why_no_best(machine)}")
        wanted = state.best.version
    version = state.version if wanted == "last" else int(wanted)
    if version not in models:
        best = state.best.version if state.best else None
        names = [f"{each} (best)" if each == best else str(each) for each in models]
        what = "is not kept" if version < state.version else "does not exist"
        raise NotFound(
            f"version {version} of job {machine.job} {what}; kept: {listed(names, 20)}; `keep` in the job"
            " file says which versions are kept"
        )
    return version, models[version]


def _why_no_best(machine: Machine) -> str:
    history, keep = machine.state.history, machine.spec.keep
    if keep.best is None:
        return "its `keep.best` is null"
    remarks = [remark for remark in machine.state.remarks if remark.startswith("keep.best")]
    if remarks:
        return remarks[-1]
    on_test_data = next((record for record in reversed(history) if record.validation is not None), None)
    if on_test_data is not None:
        metric = next((name for name in USUAL if name in on_test_data.metrics), USUAL[0])
        return (
            "its evaluators use test data, by which no version is chosen; in a job file with `keep: {best:"
            f" {{metric: {metric}}}}}` they also evaluate on validation data, if they have such"
            " (validation.fraction)"
        )
    return "no version was evaluated on enough examples yet (evaluate.min_coverage)"


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


def _brief_test(machine: Machine, record: Version) -> Findings | None:
    findings = _of_test_sites(machine, record)
    return brief_findings(findings) if findings else None


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


def history_views(
    machine: Machine, since: int = 0, versions: Iterable[int] | None = None, detail: bool = True
) -> Iterator[VersionView]:
    """Yield versions of a job as operators see them: those from `since` on, or those that are named."""
    history = machine.state.history
    for version in range(max(since, 0), len(history)) if versions is None else versions:
        record = history[version]
        awaited = machine.awaits(record)
        evaluated = bool(record.examples) and not awaited
        shown = dict(record) | {
            "metrics": _metrics(machine, record),
            "test": _of_test_sites(machine, record),
            "evaluated": evaluated,
            "settled": evaluated or machine.ended or (version < machine.state.version and not awaited),
            "final": machine.is_final(record),
            "update_count": len(record.updates),
        }
        view = VersionView.model_construct(**shown)
        yield view if detail else view.brief()


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
