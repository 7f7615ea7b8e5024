"""One job under way: what it is, what it remembers, and the small steps that all parts of the engine take."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.history import Findings, Hop, Version
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId, moment_key, reference_key, task_id
from hansa.common.values.receipts import Receipt
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.common.values.training import Standard
from hansa.controller.engine.effects import SendTask, SetAlarm, StartOrder
from hansa.controller.engine.index.open_tasks import OpenTasks
from hansa.controller.engine.index.retention import Retention
from hansa.controller.engine.index.roster import Roster
from hansa.controller.engine.orders import Merge, Order
from hansa.controller.engine.state import CHAPTER, JobState
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion, Subject
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Draw, Part, S
from hansa.controller.plugin.view import View


class Job:
    """A job's specification, rule and state. The engine's modules are functions over it.

    Indices over the state (eligible, evaluators, open_tasks, retention) keep the cost of an event to what it
    changes. They follow from the state: code that changes learners, evaluators, tasks, orders, models, unmerged
    updates, members, the current version or the history goes through a method here, or tells the index.
    """

    state: JobState
    eligible: Roster  # sites that can train: they attend and have examples
    evaluators: Roster  # that attend
    open_tasks: OpenTasks
    retention: Retention
    touched: set[int]  # chapters of the history that are newer than the last snapshot

    def __init__(self, id_: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.id = id_
        self.spec = spec
        self.rule = rule
        self.memories: dict[str, BaseModel] = {}  # of each plugin, by the point that it fills
        for point, part in rule.parts.items():
            with calling(part):
                self.memories[point] = part.begin()
        self.issued: Receipt | None = None  # the receipt of the event that was handled last
        self.remember(JobState(submitted=submitted))

    def remember(self, state: JobState) -> None:
        """Take a state and make the indices that belong to it."""
        self.state = state
        self.eligible = Roster(site for site, examples in state.learners.items() if examples > 0)
        self.evaluators = Roster(state.evaluators)
        self.open_tasks = OpenTasks(state.tasks, state.subjects, state.learners)
        self.retention = Retention(state)
        self.touched = set()

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self.state.phase == "ended"

    def memory(self, part: Part[S]) -> S:
        """Return what a plugin remembers; `begin` has made it, so it is of the plugin's own type."""
        return cast(S, self.memories[part.point])

    @property
    def draw(self) -> Draw:
        """The sampler, ready for the pacer's use."""
        return Draw(self.rule.sample, self.memory(self.rule.sample))

    def view(self, now: float) -> View:
        """Return what plugins see."""
        return View(
            sites=self.eligible,
            busy=self.open_tasks.busy,
            examples=MappingProxyType(self.state.learners),
            evaluators=self.evaluators,
            version=self.state.version,
            round=self.state.round,
            steps=self.state.steps,
            seed=self.spec.seed,
            now=now,
            together=self.spec.sites.together,
            standing=self.state.members.keys() if self.rule.merge.remembers else frozenset(),
            common=self.rule.pace.common_rounds,
            outline=self.state.outline,
        )

    # Sites.

    def learner_came(self, site: SiteName, examples: int) -> None:
        """Enter a learner, or its new number of examples."""
        if site not in self.state.learners:
            self.open_tasks.learner_came(site)
        self.state.learners[site] = examples
        (self.eligible.add if examples > 0 else self.eligible.discard)(site)

    def learner_went(self, site: SiteName) -> None:
        """Strike a learner."""
        del self.state.learners[site]
        self.eligible.discard(site)
        self.open_tasks.learner_went(site)

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
        travel: Mapping[str, int] = MappingProxyType({}),
        subject: Subject | None = None,
    ) -> SendTask:
        """Make a task of some work; an evaluation has a `subject`.

        `travel` says hop, slot and turn of a model that travels.
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
        if subject is not None:
            self.state.subjects[task.id] = subject
        self.open_tasks.add(task)
        self.retention.hold(*task.models)
        return SendTask(task)

    def _standard(self) -> Standard | None:
        if self.spec.survey.standardise == "local":
            return Standard(kind="local", columns=self.spec.survey.columns)
        return self.state.standard

    def open_task(self, task: TaskId, site: SiteName) -> Task:
        """Return a task that a site has yet to return a result of, or raise Stale."""
        held = self.state.tasks.get(task)
        if held is None or held.site != site:
            raise Stale(f"task {task} is over")
        return held

    def finish(self, task: TaskId) -> Task | None:
        """Strike a task, however it ended; return it if it was open."""
        held = self.open_tasks.take(task)
        if held:
            self.retention.release(*held.models)
            self.state.subjects.pop(task, None)
        return held

    # Models and versions.

    def keep_update(self, key: ModelKey, base: ModelKey | None) -> None:
        """Keep an update until a merge has taken it, and what it is laid over if it is partial."""
        self.retention.add(key)
        self.retention.hold(key)
        self.state.unmerged.add(key)
        if base is not None:
            self.retention.hold(base)
            self.state.bases[key] = base

    def let_go(self, key: ModelKey) -> None:
        """A merge has taken an update, or none ever will."""
        self.state.unmerged.discard(key)
        self.retention.release(key)
        if key in self.state.bases:
            self.retention.release(self.state.bases.pop(key))

    # Orders.

    def order(self, order: Order) -> StartOrder:
        """Have worker threads compute something, and keep what they read as long."""
        self.state.order_count += 1
        self.state.orders[self.state.order_count] = order
        self.retention.hold(*order.reads)
        return self.start_order(self.state.order_count)

    def start_order(self, number: int) -> StartOrder:
        """Return an open order as worker threads need it. Carrying it out twice is harmless."""
        order = self.state.orders[number]
        remembers = isinstance(order, Merge) and self.rule.merge.remembers
        # Members change only when a merge is done, and merges are serial: threads may read them meanwhile.
        return StartOrder(number, order, MappingProxyType(self.state.members) if remembers else None)

    def close_order(self, number: int) -> Order:
        """Strike an order, however it ended, and return it, or raise Stale."""
        order = self.state.orders.pop(number, None)
        if order is None:
            raise Stale(f"order {number} is over")
        self.retention.release(*order.reads)
        return order

    # Versions.

    def enter_version(self, record: Version, key: ModelKey, moments: Mapping[str, str] | None = None) -> None:
        """Make a model the newest community model; `moments` are the digests of what its server update carries on."""
        self.retention.add(key)
        self.retention.hold(key)
        self._keep_basis(record.version, moments or {})
        if self.state.current is not None:
            self.retention.release(self.state.current)
        self.state.version, self.state.current = record.version, key
        if not record.version and self.rule.may_restart:
            self.state.first = key
            self.retention.hold(key)
        self.state.history.append(record)
        self.touch(record.version)

    def _keep_basis(self, version: int, moments: Mapping[str, str]) -> None:
        """Keep the models that a new version was made from, so that it can be computed again, and its moments.

        Where the proposal is the next model, its updates are all that is needed.
        """
        state = self.state
        if self.rule.server.plain or state.current is None:
            return
        names = self.rule.moments
        carried = (moment_key(self.id, state.version, name) for name in names)
        basis = {key: state.basis[key] for key in carried if key in state.basis}
        basis[state.current] = state.history[-1].digest
        for name, digest in moments.items():
            key = moment_key(self.id, version, name)
            self.retention.add(key)
            basis[key] = digest
        for key in basis:
            self.retention.hold(key)
        for key in state.basis:
            self.retention.release(key)
        state.basis = basis

    def moments(self, version: int) -> dict[str, ModelKey]:
        """Return the moments that the server update carried on from a version, if they are still needed."""
        keys = {name: moment_key(self.id, version, name) for name in self.rule.moments}
        return {name: key for name, key in keys.items() if key in self.state.basis}

    def let_first_go(self) -> None:
        """Nobody will go back to version 0 any more."""
        if self.state.first is not None:
            self.retention.release(self.state.first)
            self.state.first = None

    def keep_reference(self) -> None:
        """Keep the model that versions are measured against, which is in the store before the job begins."""
        key = self.state.reference = reference_key(self.id)
        self.retention.add(key)
        self.retention.hold(key)

    def let_reference_go(self) -> None:
        """No version will be measured any more."""
        if self.state.reference is not None:
            self.retention.release(self.state.reference)
            self.state.reference = None

    def record(self, version: int) -> Version:
        """Return a version's record in order to change it."""
        self.touch(version)
        return self.state.history[version]

    def findings(self, subject: Subject) -> Findings:
        """Return what is known of the subject of an evaluation, in order to change it."""
        match subject:
            case OfVersion(version):
                return self.record(version)
            case OfHop(version, hop):
                return self.hop(version, hop)
            case OfUpdate(task):
                return self.state.updates[task]

    def hop(self, version: int, hop: int) -> Hop:
        """Return the record of a hop: of the round under way, or of a version that was made meanwhile."""
        hops = self.record(version).hops if version <= self.state.version else self.state.hops
        return next(record for record in hops if record.hop == hop)

    def seconds(self, at: float) -> float:
        """Return how long after the submission something happened."""
        return round(at - self.state.submitted, 3)

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
