"""One job under way: what it is, what it remembers, and the small steps that all parts of the engine take."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from hansa.common.job.spec import JobSpec
from hansa.common.values.errors import Stale
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId, moment_key, reference_key, task_id
from hansa.common.values.tasks import Evaluate, Init, Probe, Receipt, Standard, Survey, Task, Train
from hansa.controller.engine.effects import SendTask, SetAlarm, StartMeasurement, StudyPlan
from hansa.controller.engine.index.open_tasks import Desk
from hansa.controller.engine.index.retention import Models
from hansa.controller.engine.index.roster import Roster
from hansa.controller.engine.state import CHAPTER, JobState, VersionRecord
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Draw
from hansa.controller.plugin.view import View


class Job:
    """A job's specification, rule and state. The engine's modules are functions over it.

    Beside the state stand indices (eligible, evaluators, desk, models), so that an event costs no more than
    what it changes. They follow from the state; whoever changes one of learners, evaluators, tasks, models,
    fresh, members, current and history goes through a method here, or tells the index.
    """

    state: JobState
    eligible: Roster  # sites that can train: they attend and have examples
    evaluators: Roster  # that attend
    desk: Desk
    models: Models
    studies: dict[tuple[int, int], StudyPlan]  # of the state, by version and hop
    touched: set[int]  # chapters of the history that are newer than the last snapshot

    def __init__(self, id_: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.id = id_
        self.spec = spec
        self.rule = rule
        self.memories = {
            point: part.begin() for point, part in rule.parts.items()
        }  # what each plugin remembers
        self.issued: Receipt | None = None  # the receipt of the event that was handled last
        self.remember(JobState(submitted=submitted))

    def remember(self, state: JobState) -> None:
        """Take a state and make the indices that belong to it."""
        self.state = state
        self.eligible = Roster(site for site, examples in state.learners.items() if examples > 0)
        self.evaluators = Roster(state.evaluators)
        self.desk = Desk(state.tasks, state.judging, state.scoring, state.learners)
        self.models = Models(state)
        self.studies = {(plan.version, plan.hop): plan for plan in state.studies}
        self.touched = set()

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self.state.phase == "ended"

    @property
    def pacing(self) -> BaseModel:
        """What the pacer remembers."""
        return self.memories["pace"]

    @property
    def draw(self) -> Draw:
        """The sampler, ready for the pacer's use."""
        return Draw(self.rule.sample, self.memories["sample"])

    def view(self, now: float) -> View:
        """Return what plugins see."""
        return View(
            sites=self.eligible,
            busy=self.desk.busy,
            examples=MappingProxyType(self.state.learners),
            evaluators=self.evaluators,
            version=self.state.version,
            round=self.state.round,
            steps=self.state.steps,
            seed=self.spec.seed,
            now=now,
            together=self.spec.sites.together,
            standing=self.state.members.keys() if self.rule.merge.remembers else frozenset(),
            common="barrier" in self.rule.pace.provides,
            outline=self.state.outline,
        )

    # Sites.

    def learner_came(self, site: SiteName, examples: int) -> None:
        """Enter a learner, or its new number of examples."""
        if site not in self.state.learners:
            self.desk.came(site)
        self.state.learners[site] = examples
        (self.eligible.add if examples > 0 else self.eligible.discard)(site)

    def learner_went(self, site: SiteName) -> None:
        """Strike a learner."""
        del self.state.learners[site]
        self.eligible.discard(site)
        self.desk.went(site)

    def evaluator_came(self, site: SiteName) -> None:
        """Enter an evaluator."""
        self.state.evaluators.add(site)
        self.state.evaluator_examples.setdefault(site, None)
        self.evaluators.add(site)

    def evaluator_went(self, site: SiteName) -> None:
        """Strike an evaluator."""
        self.state.evaluators.discard(site)
        if self.state.status == "waiting":  # the job begins without it
            del self.state.evaluator_examples[site]
        self.evaluators.discard(site)

    # Tasks.

    def issue(
        self,
        site: SiteName,
        round_: int,
        work: Survey | Init | Probe | Train | Evaluate,
        judged: TaskId | None = None,
        scored: tuple[int, int] | None = None,
        travel: Mapping[str, int] = MappingProxyType({}),
    ) -> SendTask:
        """Make a task of some work.

        `judged` is the task whose update is to be evaluated, or `scored` the version and the hop the mean of
        whose slots is; `travel` says hop, slot and turn of a model that travels.
        """
        self.state.task_count += 1
        task = Task(
            id=task_id(self.id, self.state.task_count),
            job=self.id,
            site=site,
            round=round_,
            app=self.spec.app,
            seed=self.spec.seed,
            validation=self.spec.validation,
            standard=self._standard() if isinstance(work, Probe | Train | Evaluate) else None,
            work=work,
            **travel,
            local_statistics=self.rule.local_statistics,
        )
        if judged is not None:
            self.state.judging[task.id] = judged
        if scored is not None:
            self.state.scoring[task.id] = scored
        self.desk.add(task)
        self.models.hold_base(task)
        return SendTask(task)

    def _standard(self) -> Standard | None:
        if self.spec.survey.standardise == "local":
            return Standard(kind="local", columns=self.spec.survey.columns)
        return self.state.standard

    def open_task(self, task: TaskId, site: SiteName) -> Task:
        """Return a task that a site has yet to answer or raise Stale."""
        held = self.state.tasks.get(task)
        if held is None or held.site != site:
            raise Stale(f"task {task} is over")
        return held

    def finish(self, task: TaskId) -> Task | None:
        """Take a task off the desk, however it ended; return it if it was there."""
        held = self.desk.take(task)
        if held:
            self.models.release_base(held)
            self.state.judging.pop(task, None)
            self.state.scoring.pop(task, None)
        return held

    # Models and versions.

    def keep_update(self, key: ModelKey, base: ModelKey | None) -> None:
        """Keep an update until a merge has taken it, and what it is laid over if it is partial."""
        self.models.add(key)
        self.models.hold(key)
        self.state.fresh.add(key)
        if base is not None:
            self.models.hold(base)
            self.state.bases[key] = base

    def let_go(self, key: ModelKey) -> None:
        """A merge has taken an update, or none ever will."""
        self.state.fresh.discard(key)
        self.models.release(key)
        if key in self.state.bases:
            self.models.release(self.state.bases.pop(key))

    def begin_study(self, plan: StudyPlan) -> None:
        """Take note that a hop is being looked at."""
        self.state.studies.append(plan)
        self.studies[plan.version, plan.hop] = plan
        self.models.hold_study(plan)

    def end_study(self, version: int, hop: int) -> None:
        """A hop has been looked at, or never will be."""
        plan = self.studies.pop((version, hop))
        self.state.studies.remove(plan)
        self.models.release_study(plan)

    def enter_version(
        self, record: VersionRecord, key: ModelKey, moments: Mapping[str, str] | None = None
    ) -> None:
        """Make a model the newest community model; `moments` are the digests of what its server update carries on."""
        self.models.add(key)
        self.models.hold(key)
        self._stand_on(record.version, moments or {})
        if self.state.current is not None:
            self.models.release(self.state.current)
        self.state.version, self.state.current = record.version, key
        if not record.version and any(policy.may_restart for policy in self.rule.policies.values()):
            self.state.first = key
            self.models.hold(key)
        self.state.history.append(record)
        self.touch(record.version)

    def _stand_on(self, version: int, moments: Mapping[str, str]) -> None:
        """Keep the models that a new version was made from, so that it can be computed again, and its moments.

        Where the proposal is the next model, its updates are all that is needed.
        """
        state = self.state
        if self.rule.server.plain or state.current is None:
            return
        names = self.rule.server.moments
        carried = (moment_key(self.id, state.version, name) for name in names)
        footing = {key: state.footing[key] for key in carried if key in state.footing}
        footing[state.current] = state.history[-1].digest
        for name, digest in moments.items():
            key = moment_key(self.id, version, name)
            self.models.add(key)
            footing[key] = digest
        for key in footing:
            self.models.hold(key)
        for key in state.footing:
            self.models.release(key)
        state.footing = footing

    def let_first_go(self) -> None:
        """Nobody will go back to version 0 any more."""
        if self.state.first is not None:
            self.models.release(self.state.first)
            self.state.first = None

    def keep_reference(self) -> None:
        """Keep the model that versions are measured against, which is in the store before the job begins."""
        key = self.state.reference = reference_key(self.id)
        self.models.add(key)
        self.models.hold(key)

    def begin_measurement(self, first: ModelKey) -> StartMeasurement:
        """Have version 0 compared with the reference, and keep it as long."""
        self.state.measuring = first
        self.models.hold(first)
        return StartMeasurement(first)

    def end_measurement(self) -> None:
        """Version 0 has been compared, or never will be."""
        if self.state.measuring is not None:
            self.models.release(self.state.measuring)
            self.state.measuring = None

    def let_reference_go(self) -> None:
        """No version will be measured any more."""
        self.end_measurement()
        if self.state.reference is not None:
            self.models.release(self.state.reference)
            self.state.reference = None

    def record(self, version: int) -> VersionRecord:
        """Return a version's record in order to change it."""
        self.touch(version)
        return self.state.history[version]

    def touch(self, version: int) -> None:
        """Take note that a version's record has changed since the last snapshot."""
        self.touched.add(version // CHAPTER)

    # Alarms and receipts.

    def set_alarm(self, alarm: str, at: float) -> SetAlarm:
        """Ask to be told when a moment has come."""
        self.state.alarms[alarm] = at
        return SetAlarm(alarm, at)

    def issue_receipt(self, **fields: Any) -> Receipt:
        """Add a receipt to the job's chain; the shell keeps it beside the event."""
        receipt = Receipt(
            job=self.id, sequence=self.state.sequence + 1, previous=self.state.chain, **fields
        ).sealed()
        self.state.chain = receipt.hash
        self.issued = receipt
        return receipt
