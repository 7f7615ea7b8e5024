"""A job in progress: its specification, its rule, its state, and the basic steps that every phase uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.history import Version
from hansa.common.values.ids import JobId, SiteName, TaskId, task_id
from hansa.common.values.receipts import Receipt
from hansa.common.values.settings.training import Standard
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine.effects import SendTask, SetAlarm, StartOrder
from hansa.controller.engine.index.changes import Changes
from hansa.controller.engine.index.held_out import HeldOut
from hansa.controller.engine.index.open_tasks import OpenTasks
from hansa.controller.engine.index.retention import Retention
from hansa.controller.engine.index.roster import Roster
from hansa.controller.engine.orders import Merge, Order
from hansa.controller.engine.state import Happening, JobState
from hansa.controller.engine.subjects import Subject
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Draw, Part, S
from hansa.controller.plugin.view import View
from hansa.controller.values import history


class Job:
    """A job's specification, rule and state. The engine's modules are functions over it.

    The indices (eligible, evaluators, scorers, open_tasks, retention) keep the cost of an event proportional
    to what it changes. They are derived from the state. Code that changes learners, evaluators, tasks,
    orders, models, unmerged updates, members, the current version or the history must therefore use a method
    of this class, a function of `versions`, or the index itself.
    """

    state: JobState
    eligible: Roster  # sites that can train: their learner is connected and has examples
    evaluators: Roster  # sites whose evaluator is connected and evaluates community models
    scorers: Roster  # sites whose evaluator is connected and may evaluate updates
    open_tasks: OpenTasks
    retention: Retention
    touched: set[int]  # chapters that have changed since the last snapshot
    changes: Changes  # when each version's record changed last

    def __init__(self, id_: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.id = id_
        self.spec = spec
        self.rule = rule
        self.held_out = HeldOut.of(spec.sites)
        self.memories: dict[str, BaseModel] = {}  # of the plugins, by point
        for point, part in rule.parts.items():
            with calling(part):
                self.memories[point] = part.begin()
        self.issued: Receipt | None = None  # the receipt of the most recent event
        self.remember(JobState(submitted=submitted))

    def remember(self, state: JobState) -> None:
        """Adopt a state and build the indices over it."""
        self.state = state
        self._view: View | None = None  # the last one; the calls of one event share it
        self.eligible = Roster(site for site, examples in state.learners.items() if examples > 0)
        self.evaluators = Roster(filter(self.held_out.evaluates_models, state.evaluators))
        self.scorers = Roster(filter(self.held_out.evaluates_updates, state.evaluators))
        self.open_tasks = OpenTasks(state.tasks, state.subjects, state.learners)
        self.retention = Retention(state)
        self.touched = set()
        self.changes = Changes(len(state.history))

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.state.phase == "ended"

    def memory(self, part: Part[S]) -> S:
        """Return a plugin's memory. `begin` made it, so it has the plugin's own type."""
        return cast(S, self.memories[part.point])

    @property
    def draw(self) -> Draw:
        """The sampler with its memory, for the pacer to draw sites with."""
        return Draw(self.rule.sample, self.memory(self.rule.sample))

    def view(self, now: float) -> View:
        """Return what plugins see of the job: collections change as the job goes on, numbers do not."""
        state, view = self.state, self._view
        if view and (view.now, view.version, view.round, view.steps, view.outline) == (
            now,
            state.version,
            state.round,
            state.steps,
            state.outline,
        ):
            return view
        self._view = View(
            sites=self.eligible,
            busy=self.open_tasks.busy,
            examples=MappingProxyType(state.learners),
            evaluators=self.evaluators,
            version=state.version,
            round=state.round,
            steps=state.steps,
            seed=self.spec.seed,
            now=now,
            together=self.spec.sites.together,
            standing=state.members.keys() if self.rule.merge.remembers else frozenset(),
            common=self.rule.pace.common_rounds,
            outline=state.outline,
        )
        return self._view

    @property
    def resets(self) -> set[str]:
        """The auxiliary tensors that start from zero again."""
        names: set[str] = set()
        for policy in self.rule.policies if self.rule.auxiliary else ():
            with calling(policy):
                names.update(policy.resets(self.memory(policy)))
        return names

    # Sites.

    def add_learner(self, site: SiteName, examples: int) -> None:
        """Enter a learner that is connected, or its new number of examples."""
        if site not in self.state.learners:
            self.open_tasks.learner_connected(site)
        self.state.learners[site] = examples
        (self.eligible.add if examples > 0 else self.eligible.discard)(site)

    def remove_learner(self, site: SiteName) -> None:
        """Remove a learner that is gone."""
        del self.state.learners[site]
        self.eligible.discard(site)
        self.open_tasks.learner_gone(site)

    def add_evaluator(self, site: SiteName) -> None:
        """Enter an evaluator that is connected."""
        self.state.evaluators.add(site)
        if self.held_out.evaluates_models(site):
            self.state.evaluator_examples.setdefault(site, None)
            self.evaluators.add(site)
        if self.held_out.evaluates_updates(site):
            self.scorers.add(site)

    def remove_evaluator(self, site: SiteName) -> None:
        """Remove an evaluator that is gone."""
        self.state.evaluators.discard(site)
        if self.state.status == "waiting":  # the job begins without it
            self.state.evaluator_examples.pop(site, None)
        self.evaluators.discard(site)
        self.scorers.discard(site)

    # Tasks.

    def issue(
        self,
        site: SiteName,
        round_: int,
        work: Survey | Init | Probe | Train | Evaluate,
        travel: Mapping[str, int] = MappingProxyType({}),
        subject: Subject | None = None,
    ) -> SendTask:
        """Give a site some work as a task.

        An evaluation has a `subject`. For a travelling model, `travel` holds the hop, slot and turn.
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
            travel=self.rule.travel,
            backbone=self.state.backbone,
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

    def open_task(self, id_: TaskId, site: SiteName) -> Task:
        """Return a site's task if it is still open, or raise Stale."""
        task = self.state.tasks.get(id_)
        if task is None or task.site != site:
            raise Stale(f"task {id_} is over")
        return task

    def finish(self, id_: TaskId) -> Task | None:
        """Close a task, however it ended; return it if it was open."""
        task = self.open_tasks.take(id_)
        if task:
            self.retention.release(*task.models)
            self.state.subjects.pop(id_, None)
        return task

    # Orders.

    def order(self, order: Order) -> StartOrder:
        """Have worker threads compute something, and keep the models that they read until they are done."""
        self.state.order_count += 1
        self.state.orders[self.state.order_count] = order
        self.retention.hold(*order.reads)
        return self.start_order(self.state.order_count)

    def start_order(self, number: int) -> StartOrder:
        """Return the effect that starts an open order. Carrying an order out twice is harmless."""
        order = self.state.orders[number]
        remembers = isinstance(order, Merge) and self.rule.merge.remembers
        # Members change only when a merge is done, and merges are serial, so threads can safely read them.
        return StartOrder(number, order, MappingProxyType(self.state.members) if remembers else None)

    def close_order(self, number: int) -> Order:
        """Close an order, however it ended, and return it; raise Stale if it is not open."""
        order = self.state.orders.pop(number, None)
        if order is None:
            raise Stale(f"order {number} is over")
        self.retention.release(*order.reads)
        return order

    # Records.

    def record(self, version: int) -> Version:
        """Return a version's record for the caller to change."""
        self.touch(version)
        return self.state.history.opened(version)

    def seconds(self, at: float) -> float:
        """Return how many seconds after the submission something happened."""
        return round(at - self.state.submitted, 3)

    def touch(self, version: int) -> None:
        """Mark a version's record as changed since the last snapshot, and for those who watch the job."""
        self.touched.add(version // history.CHAPTER)
        self.changes.note(version)

    def enter(self, entry: Happening) -> None:
        """Add an entry to the chronicle."""
        self.state.chronicle.append(entry)
        self.touched.add(entry.newest // history.CHAPTER)

    # Alarms and receipts.

    def set_alarm(self, alarm: str, at: float) -> SetAlarm:
        """Set an alarm, in place of an earlier one of the same name."""
        self.state.alarms[alarm] = at
        return SetAlarm(alarm, at)

    def issue_receipt(self, **fields: Any) -> Receipt:
        """Add a receipt to the job's chain; the shell stores it with the event."""
        receipt = Receipt(
            job=self.id, sequence=self.state.sequence + 1, previous=self.state.chain, **fields
        ).sealed()
        self.state.chain = receipt.hash
        self.issued = receipt
        return receipt
