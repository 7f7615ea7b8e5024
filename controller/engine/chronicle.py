"""The chronicle of a job: what happened, told in plain words for people.

It is written here and nowhere else. `before` looks at the job before an event, `tell` compares the state
after it with that look and adds what people want to read. The chronicle is part of the job's state, so a
replay tells the same, and its entries are numbered from 1 without gaps. How long it gets is bounded by the
number of versions and sites: what concerns one site is told at most `PER_SITE` times for each version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hansa.common.values.history import Findings, Version
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.common.values.wording.remarks import LATE, LEFT
from hansa.common.values.wording.words import by_reason, counted, in_order, listed, plain, share_of
from hansa.controller.engine import events as ev
from hansa.controller.engine.handlers import evaluation, first_model
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Happening, Kind, Phase, Status

PER_SITE = 10
LONGEST = 400  # characters of an entry
METRICS = 6  # that an entry names
EVALUATOR = {"learner": "", "evaluator": "the evaluator of "}


@dataclass(frozen=True)
class Before:
    """What the chronicle must know of a job before an event."""

    status: Status
    phase: Phase
    version: int
    reason: str
    surveyed: bool
    examples: int | None  # of the site that the event is about, if its learner takes part
    evaluates: bool  # whether the site's evaluator takes part
    task: Task | None  # that the event is about
    on_offer: int | None  # the version whose evaluation the job waits for
    forgotten: SiteName | None  # the site whose contributions the next version no longer has


def before(job: Job, event: ev.Event) -> Before:
    """Look at a job before an event."""
    state = job.state
    site, task = getattr(event, "site", None), getattr(event, "task", None)
    closing = state.phase == "closing"
    return Before(
        status=state.status,
        phase=state.phase,
        version=state.version,
        reason=state.reason,
        surveyed=state.surveyed,
        examples=state.learners.get(site) if site else None,
        evaluates=site in state.evaluators,
        task=state.tasks.get(task) if task else None,
        on_offer=(state.version if closing else state.offered) if evaluation.ALARM in state.alarms else None,
        forgotten=state.queue[0].forgotten if state.queue else None,
    )


def tell_submission(job: Job) -> None:
    """Begin the chronicle."""
    asked, unit = job.rule.rounds_asked, job.rule.pace.unit
    much = f", {counted(asked, unit)}" if asked else ""
    needed = counted(job.spec.sites.min, "site")
    text = f"job {job.spec.name} was submitted: rule {job.spec.rule}{much}; it begins with {needed}"
    _add(job, job.state.submitted, "submitted", text)


def tell(job: Job, seen: Before, event: ev.Event) -> None:
    """Add what an event led to."""
    state, now = job.state, event.at
    _tell_of_site(job, seen, event)
    if state.status == "running" and seen.status == "waiting":
        _add(job, now, "running", f"the job begins: {counted(len(job.eligible), 'site')} can train")
    elif seen.phase == "gathering" and state.phase not in ("gathering", "ended") and seen.reason:
        _add(job, now, "running", f"the job goes on with {counted(len(job.eligible), 'site')}")
    if state.surveyed and not seen.surveyed:
        total = sum(profile.n for profile in state.profiles.values())
        sites = counted(len(state.profiles), "site")
        _add(job, now, "surveyed", f"{sites} described their data: {counted(total, 'example')} in all")
    if state.version > seen.version:
        text = _first_model(event) if not state.version else _merged(job, seen, state.history[-1])
        _add(job, now, "merged" if state.version else "first-model", text, version=state.version)
    if seen.on_offer is not None and (seen.on_offer != _on_offer(job) or job.ended):
        _tell_evaluation(job, state.history[seen.on_offer], now)
    if job.ended:
        _add(job, now, "ended", f"the job {_ENDINGS[state.status]}: {state.reason}", version=_newest(job))
    elif state.phase == "closing" and seen.phase != "closing":
        _add(job, now, "closing", f"training is over: {state.reason}; the last evaluation is awaited")
    elif state.phase == "gathering" and seen.phase != "gathering" and state.version >= 0:
        connected = f"{counted(len(job.eligible), 'site')} connected"
        _add(job, now, "waiting", f"{state.reason}: {connected}")
    elif isinstance(event, ev.AlarmRang) and event.alarm == first_model.ALARM:
        _add(job, now, "waiting", state.reason)


_ENDINGS = {"completed": "is completed", "failed": "has failed", "cancelled": "was cancelled"}


def _newest(job: Job) -> int | None:
    return job.state.version if job.state.version >= 0 else None


def _on_offer(job: Job) -> int | None:
    """Return the version whose evaluation the job still waits for."""
    state = job.state
    if evaluation.ALARM not in state.alarms:
        return None
    return state.version if state.phase == "closing" else state.offered


def _tell_of_site(job: Job, seen: Before, event: ev.Event) -> None:
    """Tell of a site that came, left, or could not do something."""
    now, state = event.at, job.state
    match event:
        case ev.SiteJoined(site=site, role="learner", examples=examples):
            if site in state.learners and seen.examples != examples:
                joined = f"{site} joined with" if seen.examples is None else f"{site} now has"
                _add(job, now, "joined", f"{joined} {counted(examples, 'example')}", site)
            _tell_of_objection(job, event)
        case ev.SiteJoined(site=site):
            if site in state.evaluators and not seen.evaluates:
                _add(job, now, "joined", f"the evaluator of {site} joined", site)
            _tell_of_objection(job, event)
        case ev.SiteLeft(site=site, role=role):
            _add(job, now, "left", f"{EVALUATOR[role]}{site} left", site)
        case ev.SiteUnfit(site=site, role=role, reason=reason):
            _add(job, now, "left-out", f"{EVALUATOR[role]}{site} cannot take part: {reason}", site)
        case ev.UpdateQuarantined(site=site, reason=reason):
            _add(job, now, "quarantined", f"an update of {site} was refused: {reason}", site)
        case ev.TaskFailed(site=site, reason=reason) if seen.task:
            _add(job, now, "failed", f"{site} could not {_verb(seen.task)}: {reason}", site)
        case ev.ModelDescribed(site=site):
            _add(job, now, "first-model", f"{site} described the first model", site)


def _tell_of_objection(job: Job, event: ev.SiteJoined) -> None:
    objection = job.state.left_out.get(f"{event.role} {event.site}")
    if objection:
        _add(job, event.at, "left-out", f"{EVALUATOR[event.role]}{event.site}: {objection}", event.site)


def _verb(task: Task) -> str:
    match task.work:
        case Survey():
            return "describe its data"
        case Init():
            return "build the first model"
        case Probe():
            return "examine the newest model"
        case Train():
            return "train"
        case Evaluate(validation=True):
            return "evaluate an update"
        case Evaluate(version=version):
            return f"evaluate version {version}"


def _first_model(event: ev.Event) -> str:
    site = getattr(event, "site", "")
    return f"{site} built the first model" if site else "the first model came with the submission"


def _merged(job: Job, seen: Before, record: Version) -> str:
    """Tell what a version is made of: `round 7 merged: 4 of 5 sites; south was late`."""
    if seen.forgotten is not None:
        return f"version {record.version} is without {seen.forgotten}, which left"
    counting = {update.site for update in record.updates if update.weight is not None}
    if job.rule.pace.unit == "round":
        asked = len({update.site for update in record.updates} | record.lost.keys())
        head = f"round {record.round} merged: {len(counting)} of {counted(asked, 'site')}"
        if record.hops:
            head += f" in {counted(len(record.hops), 'hop')}"
    else:
        names = listed(sorted(counting, key=in_order), 3) or "no site"
        updates = "the update" if len(record.updates) == 1 else counted(len(record.updates), "update")
        head = f"version {record.version} merged: {updates} of {names}"
        stalest = max((behind for behind, _ in record.staleness.values()), default=0)
        if stalest:
            head += f", up to {counted(stalest, 'version')} behind"
    warnings = (str(report["warning"]) for report in record.diagnostics.values() if report.get("warning"))
    return "; ".join(filter(None, (head, *_lost(record.lost), record.note, *warnings)))


def _lost(reasons: Mapping[str, str]) -> Iterator[str]:
    """Tell who is missing in a version, and why."""
    late = sorted((site for site, why in reasons.items() if why.startswith(LATE)), key=in_order)
    left = sorted((site for site, why in reasons.items() if why == LEFT), key=in_order)
    if late:
        yield f"{listed(late, 3)} {'was' if len(late) == 1 else 'were'} late"
    if left:
        yield f"{listed(left, 3)} left"
    yield from by_reason({site: why for site, why in reasons.items() if site not in {*late, *left}}, 3)


def _tell_evaluation(job: Job, record: Version, now: float) -> None:
    """Tell how good a version is, once nobody waits for reports on it any longer."""
    text = _found(record)
    if record.test and _numbers(record.test):
        text += f"; test sites: {_found(record.test)}"
    missing = by_reason(record.unevaluated, 3)
    if not text:
        text = f"version {record.version} could not be evaluated"
    else:
        text = f"version {record.version} evaluated: {text}"
    _add(job, now, "evaluated", "; ".join((text, *missing)), version=record.version)


def _found(findings: Findings) -> str:
    numbers = _numbers(findings)
    part = share_of(findings.examples, findings.examples_total, findings.drawn)
    return f"{numbers} on {part} examples" if numbers else ""


def _numbers(findings: Findings) -> str:
    values = (f"{name} {value:.4f}" for name, value in findings.metrics.items() if value is not None)
    return listed(values, METRICS)


def _add(
    job: Job, at: float, kind: Kind, text: str, site: SiteName | None = None, version: int | None = None
) -> None:
    """Add an entry, unless this site has been told about often enough since the newest version."""
    state = job.state
    newest = max(state.version, 0)
    if not state.chronicle or state.chronicle[-1].newest < newest:
        state.told = {}
    if site is not None:
        count = state.told[site] = state.told.get(site, 0) + 1
        if count > PER_SITE:
            return
        if count == PER_SITE:
            text += f" (what else {site} does is not told before the next version)"
    number = len(state.chronicle) + 1
    job.enter(Happening(number, at, kind, plain(text, LONGEST), site or "", version, newest))
