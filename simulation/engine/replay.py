"""A deployed job again: the order of events is that of its journal, and all models are computed anew.

Times, failures, and who came and went are taken from the journal. What sites and the controller compute is
not: updates, reports and community models are made again, and compared with what the journal says of them.
"""

from collections.abc import Callable, Sequence

from hansa.common.values.errors import HansaError, InvalidInput
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Failure
from hansa.common.values.tasks import Task
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merged
from hansa.controller.work.bench import Bench
from hansa.simulation.crew.base import Crew, Update
from hansa.simulation.engine.recording import Recording
from hansa.simulation.engine.shell import Shell
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.storage.store import SharedStore

Result = ev.UpdateArrived | ev.ModelDescribed | ev.Reported | ev.Surveyed | ev.Probed


class Replay(Shell):
    """Runs one job as a journal says."""

    def __init__(
        self,
        machine: Machine,
        bench: Bench,
        store: SharedStore,
        crew: Crew,
        data: VirtualData,
        recording: Recording,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(machine, bench, store, crew, data, changed)
        self._recording, self._time = recording, recording.record.at
        self._results: dict[int, ev.Event] = {}  # of orders that are carried out
        # A task whose result never arrived need not be done.
        self._answered = {event.task for event in recording.events if isinstance(event, Result)}
        self.difference = ""  # the first one between this job and the deployed one

    @property
    def at(self) -> float:
        """The controller's time."""
        return self._time

    def begin(self, first: ev.ModelGiven | None = None) -> None:
        """Start the job, from the same version 0 if it came from a file."""
        given = [event for event in self._recording.events if isinstance(event, ev.ModelGiven)]
        if [event.digest for event in given] != ([first.digest] if first else []):
            raise InvalidInput("--replay: init: the job did not begin with the model of the job file")
        super().begin(given[0] if given else None)

    def run(self) -> None:
        """Let everything happen again."""
        for number, event in enumerate(self._recording.events, 1):
            self.tick()
            if self.machine.ended:
                break
            self._time = event.at
            if not self._play(event):
                raise HansaError(
                    f"--replay: journal entry {number} ({event.kind}) does not follow from those before it"
                )
        if not self.machine.ended:
            self.handle(ev.CancelAsked(at=self.at, operator="the end of the journal"))

    def _play(self, event: ev.Event) -> bool:
        """Let an event happen; return whether the job took it."""
        match event:
            case ev.ModelGiven():
                return True  # the job began with it
            case ev.OrderDone():
                return self._finish_order(event)
            case ev.UpdateArrived() | ev.ModelDescribed() | ev.Reported() | ev.Surveyed() | ev.Probed():
                return self._finish_task(event)
        return self.handle(event)

    def _finish_order(self, event: ev.OrderDone) -> bool:
        ours = self._results.pop(event.order, None)
        if isinstance(ours, ev.OrderFailed):
            raise HansaError(f"--replay: order {event.order} failed here, but not then: {ours.reason}")
        if ours is None:
            return False
        assert isinstance(ours, ev.OrderDone)
        result, then = ours.result, event.result
        if isinstance(result, Merged) and isinstance(then, Merged):
            if result.digest != then.digest:
                self._note(f"version {self.machine.state.version + 1} is another one")
            moved = {"bytes_up": then.bytes_up, "bytes_down": then.bytes_down}
            result = result.model_copy(update=moved)
        return self.handle(ev.OrderDone(at=event.at, order=event.order, result=result))

    def _finish_task(self, event: Result) -> bool:
        task = self.machine.state.tasks.get(event.task)
        if task is None or task.id not in self._submitted:
            return False
        outcome = self._outcome(task.id)
        if isinstance(outcome.result, Failure):
            why = f"task {task.id} of site {task.site} failed here, but not then: {outcome.result.reason}"
            raise HansaError(f"--replay: {why}")
        if isinstance(event, ev.UpdateArrived):
            self._compare(task, outcome.result, event)
            self._take(task, outcome, event.facts.seconds)
        else:
            self._take(task, outcome, 0.0)
        return task.id not in self.machine.state.tasks

    def _compare(self, task: Task, result: object, event: ev.UpdateArrived) -> None:
        ours = result.manifest.digest.hex() if isinstance(result, Update) else ""
        if ours != event.digest:
            self._note(f"the update of site {task.site} (task {task.id}) is another one")

    def _note(self, difference: str) -> None:
        self.difference = self.difference or difference

    # What follows from events: only what is computed.

    def _send(self, tasks: Sequence[Task]) -> None:
        self._submit([(task, None) for task in tasks if task.id in self._answered])

    def _withdraw(self, task: Task) -> None:
        self._forget(task.id)

    def _order(self, start: ef.StartOrder) -> None:
        self._results[start.number] = self._carried_out(start, self.at)

    def _set_alarm(self, alarm: str, at: float) -> None:
        """Do nothing: the journal says when alarms rang."""

    def _tell(self, site: SiteName, steps: int) -> None:
        """Do nothing: jobs whose sites listen are not replayed."""
