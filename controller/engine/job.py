"""One job under way: what it is, what it remembers, and the small steps that all parts of the engine take."""

from typing import Any

from hansa.common.errors import Stale
from hansa.common.ids import JobId, SiteName, TaskId, task_id
from hansa.common.job import JobSpec
from hansa.common.tasks import Evaluate, Init, Receipt, Task, Train
from hansa.controller.engine.effects import SendTask, SetAlarm
from hansa.controller.engine.parts import Composition, View
from hansa.controller.engine.state import JobState


class Job:
    """A job's specification, rule and state. The engine's modules are functions over it."""

    def __init__(self, id_: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.id = id_
        self.spec = spec
        self.rule = rule
        self.state = JobState(submitted=submitted)
        self.pacing = rule.pace.begin()
        self.issued: Receipt | None = None  # the receipt of the event that was handled last

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self.state.phase == "ended"

    # Sites.

    def eligible(self) -> list[SiteName]:
        """Return the sites that can train: they attend and have examples."""
        return sorted(site for site, examples in self.state.learners.items() if examples > 0)

    def view(self, now: float) -> View:
        """Return what plugins see."""
        return View(
            sites=tuple(self.eligible()),
            busy=frozenset(task.site for task in self.working()),
            examples=dict(self.state.learners),
            version=self.state.version,
            round=self.state.round,
            steps=self.state.steps,
            seed=self.spec.seed,
            now=now,
        )

    # Tasks.

    def issue(self, site: SiteName, round_: int, work: Init | Train | Evaluate) -> SendTask:
        """Make a task of some work."""
        self.state.task_count += 1
        task = Task(
            id=task_id(self.id, self.state.task_count),
            job=self.id,
            site=site,
            round=round_,
            app=self.spec.app,
            seed=self.spec.seed,
            validation=self.spec.validation,
            work=work,
        )
        self.state.tasks[task.id] = task
        return SendTask(task)

    def open_task(self, task: TaskId, site: SiteName) -> Task:
        """Return a task that a site has yet to answer or raise Stale."""
        held = self.state.tasks.get(task)
        if held is None or held.site != site:
            raise Stale(f"task {task} is over")
        return held

    def working(self) -> list[Task]:
        """Return the open tasks that lead to a model."""
        return [task for task in self.state.tasks.values() if not isinstance(task.work, Evaluate)]

    def evaluating(self, version: int | None = None) -> list[Task]:
        """Return the open evaluations of a version, or of all."""
        found = [task for task in self.state.tasks.values() if isinstance(task.work, Evaluate)]
        return [task for task in found if version in (None, getattr(task.work, "version", None))]

    # Alarms and receipts.

    def set_alarm(self, alarm: str, at: float) -> SetAlarm:
        """Ask to be told when a moment has come."""
        self.state.alarms[alarm] = at
        return SetAlarm(alarm, at)

    def issue_receipt(self, **fields: Any) -> Receipt:
        """Add a receipt to the job's chain; the shell keeps it beside the event."""
        receipt = Receipt(job=self.id, sequence=self.state.sequence + 1, previous=self.state.chain, **fields).sealed()
        self.state.chain = receipt.hash
        self.issued = receipt
        return receipt
