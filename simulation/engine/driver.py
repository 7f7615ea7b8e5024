"""The virtual clock of a simulated job.

What a task needs is fixed when it is issued, so a crew may do tasks long before their virtual time comes. The
driver takes the earliest entry of the agenda. It waits for the outcome of a task only when nothing else can
happen before that outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.common.app import App
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.fleet.sessions import role_of
from hansa.controller.jobs.chores import Traffic
from hansa.controller.plugin.policies import Policy
from hansa.controller.work.bench import Bench
from hansa.simulation.clock.agenda import ABSENT, Agenda, Rank, nanoseconds, seconds
from hansa.simulation.clock.availability import Availability, Span
from hansa.simulation.clock.due import DueTimes
from hansa.simulation.clock.forecast import Forecast, Known
from hansa.simulation.clock.timing import Timing
from hansa.simulation.clock.traffic import Downloads
from hansa.simulation.crew.base import Assignment, Crew, Paused
from hansa.simulation.engine.shell import Shell
from hansa.simulation.sites.daemons import Daemons, Stint
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.storage.memory import SiteMemory
from hansa.simulation.storage.store import SharedStore

JOINING: tuple[ev.Role, ...] = ("evaluator", "learner")


@dataclass(frozen=True)
class Due:
    """The outcome of a task is due, or not before this time."""

    stint: Stint


@dataclass(frozen=True)
class Ring:
    """An alarm."""

    alarm: str
    at: float


@dataclass(frozen=True)
class Presence:
    """A site comes, or it goes again."""

    site: int
    span: Span
    comes: bool


Entry = Due | Ring | Presence | ev.Event


@dataclass(frozen=True)
class SavedDriver:
    """What a save holds of a driver. It is pickled as a whole, so that entries and tasks stay the same."""

    now: int
    traffic: Traffic
    agenda: Agenda[Entry]
    daemons: Daemons
    downloads: Downloads
    pulses: dict[int, int]
    forecast: Known
    memories: dict[int, SiteMemory]
    assigned: dict[TaskId, Assignment]


class Driver(Shell):
    """Runs one job in virtual time."""

    def __init__(
        self,
        machine: Machine,
        bench: Bench,
        store: SharedStore,
        crew: Crew,
        data: VirtualData,
        app: App,
        timing: Timing,
        availability: Availability,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(machine, bench, store, crew, data, changed)
        self.now = 0  # nanoseconds
        self._timing, self._availability = timing, availability
        self._agenda, self._daemons = Agenda[Entry](), Daemons()
        self._downloads, self._forecast = Downloads(), Forecast(app, self.intake.manifest)
        self._due = DueTimes(timing, self._forecast)
        self._statements: dict[tuple[SiteName, ev.Role], tuple[int, Stated]] = {}
        self._pulses: dict[int, int] = {}  # the last one that each site was told
        # Training whose end depends on what others commit meanwhile is done epoch by epoch.
        self._listens = bool(machine.rule.policies_with(Policy.listens)) and app.train is None

    @property
    def at(self) -> float:
        """The virtual time in seconds."""
        return seconds(self.now)

    def run(self) -> None:
        """Let time pass until the job has ended."""
        while not self.machine.ended:
            self.tick()
            if self.machine.ended:
                return
            if not self._agenda:
                raise HansaError("the simulation stands still: no site works, and no alarm is set")
            (self.now, rank, *_), entry = self._agenda.pop()
            match entry:
                case Due(stint):
                    self._settle(stint, Rank(rank))
                case Ring():
                    if self.machine.state.alarms.get(entry.alarm) == entry.at:
                        self.handle(ev.AlarmRang(at=self.at, alarm=entry.alarm))
                case Presence():
                    if entry.comes:
                        self._join(entry)
                    else:
                        self._leave(entry)
                case _:
                    self.handle(entry)

    # Saves.

    def saved(self) -> SavedDriver:
        """Return everything that has happened and will happen, apart from what the machine remembers."""
        return SavedDriver(
            self.now,
            self.traffic,
            self._agenda,
            self._daemons,
            self._downloads,
            self._pulses,
            self._forecast.known,
            self.memories.all(),
            self._assigned,
        )

    def restore(self, saved: SavedDriver) -> None:
        """Go on from a save; the machine has its memory already."""
        self.now, self._agenda, self._daemons = saved.now, saved.agenda, saved.daemons
        self._downloads, self._pulses, self._forecast.known = saved.downloads, saved.pulses, saved.forecast
        self.memories.restore(saved.memories)
        self.traffic.up, self.traffic.down = saved.traffic.up, saved.traffic.down
        self._submit_again(saved.assigned)

    # Sites.

    def enrol(self, site: SiteName, role: ev.Role, examples: int, app: Stated) -> None:
        """Enter what a daemon states about itself whenever it joins."""
        self._statements[site, role] = (examples, app)

    def begin(self, first: ev.ModelGiven | None = None) -> None:
        """Start the job; sites join when their time has come."""
        super().begin(first)
        for site in range(len(self.sites)):
            self._expect(site, self._availability.first(site))

    def _expect(self, site: int, span: Span | None) -> None:
        if span is not None:
            self._agenda.enter(span.begin, Rank.JOIN, Presence(site, span, comes=True), site)

    def _roles(self, site: SiteName) -> list[ev.Role]:
        """Return the daemons of a site, in the order in which they join: one that never trains has one."""
        return [role for role in JOINING if (site, role) in self._statements]

    def _join(self, presence: Presence) -> None:
        """Start the daemons of a site; they get what they have missed."""
        number, site = presence.site, self.sites[presence.site]
        for role in self._roles(site):
            examples, app = self._statements[site, role]
            self._daemons.join(number, role)
            self.handle(ev.SiteJoined(at=self.at, site=site, role=role, examples=examples, app=app))
            missed = [task for task in self.machine.tasks_of(site) if role_of(task) == role]
            self._send([task for task in missed if not self._daemons.has(number, task)])
        steps = self.machine.pulse_of(site)
        if steps is not None:
            self._tell(site, steps)
        if presence.span.end is not None:
            leaving = Presence(number, presence.span, comes=False)
            self._agenda.enter(presence.span.end, Rank.LEAVE, leaving, number)

    def _leave(self, presence: Presence) -> None:
        """Stop the daemons of a site: what is on its disk stays, and what they have in memory is lost."""
        number, site = presence.site, self.sites[presence.site]
        for role in self._roles(site):
            for task, stint in self._daemons.leave(number, role):
                self._forget(task.id, stint.outcome if stint else None)
        self._downloads.forget(number)
        self._pulses.pop(number, None)
        memory = self.memories.get(number)
        if memory is not None:
            self.memories.put(number, memory.restarted)
        for role in self._roles(site):
            self.handle(ev.SiteLeft(at=self.at, site=site, role=role))
        self._expect(number, self._availability.after(number, presence.span))

    def _tell(self, site: SiteName, steps: int) -> None:
        self._pulses[self._numbers[site]] = steps

    # Orders and alarms.

    def _order(self, start: ef.StartOrder) -> None:
        """Carry out an order at once; its result arrives after the time that it takes."""
        at = self.now + self._timing.merge
        self._agenda.enter(at, Rank.ORDER, self._carried_out(start, seconds(at)), ABSENT, start.number)

    def _set_alarm(self, alarm: str, at: float) -> None:
        self._agenda.enter(max(self.now, nanoseconds(at)), Rank.ALARM, Ring(alarm, at))

    # Tasks.

    def _send(self, tasks: Sequence[Task]) -> None:
        """Let connected daemons have tasks; the others get them when they are back."""
        here = [task for task in tasks if self._daemons.is_connected(self._number(task), role_of(task))]
        self._submit([(task, None) for task in here if not self._is_listening(task)])
        for task in here:
            if self._daemons.give(self._number(task), task):
                self._begin(task)

    def _is_listening(self, task: Task) -> bool:
        return self._listens and isinstance(task.work, Train) and not task.work.batches

    def _withdraw(self, task: Task) -> None:
        stint, following = self._daemons.finish(self._number(task), task)
        self._forget(task.id, stint.outcome if stint else None)
        if following is not None:
            self._begin(following)

    def _begin(self, task: Task) -> None:
        """Let a daemon begin a task: it fetches the models."""
        site = self._number(task)
        stint = Stint(task, site, self.now + self._download(site, task))
        self._daemons.begin(stint)
        if self._is_listening(task):
            self._listen(stint)
        self._enter(stint, *self._due.soonest(stint, self.now))

    def _download(self, site: int, task: Task) -> int:
        """Let a site fetch the models of a task; return how long it takes."""
        work = task.work
        beside = [e.name for e in work.auxiliary if e.down and not e.reset] if isinstance(work, Train) else []
        manifests = [self.intake.manifest(key) for key in task.models]
        size = self._downloads.fetch(site, role_of(task), manifests, beside)
        self.traffic.down += size
        return self._timing.download(size)

    def _enter(self, stint: Stint, at: int, rank: Rank) -> None:
        number = int(stint.task.id.rpartition("-")[2])
        self._agenda.enter(at, rank, Due(stint), stint.site, number)

    def _settle(self, stint: Stint, rank: Rank) -> None:
        """Take the outcome of a task if its time has come; otherwise wait for that time."""
        if not self._daemons.is_under_way(stint):
            return
        if stint.outcome is None:
            stint.outcome = self._outcome(stint.task.id)
            self._forecast.learn(stint.site, stint.task, stint.outcome)
        exact = self._due.exactly(stint)
        if exact > (self.now, rank):
            self._enter(stint, *exact)
        elif isinstance(stint.outcome.result, Paused):
            self._end_epoch(stint)
        else:
            self._finish(stint)

    def _end_epoch(self, stint: Stint) -> None:
        """Let training that listens go on, with what is known at the end of its epoch."""
        assert stint.outcome is not None
        stint.reached, stint.outcome = stint.outcome.steps, None
        stint.epoch = stint.epoch or stint.reached
        self._listen(stint)
        self._enter(stint, *self._due.soonest(stint, self.now))

    def _listen(self, stint: Stint) -> None:
        """Have an epoch of training done, or its end, with the newest pulse."""
        stint.pulses = (*(stint.pulses or ()), self._pulses.get(stint.site, 0))
        self._submit([(stint.task, stint.pulses)])

    def _finish(self, stint: Stint) -> None:
        """Tell the job what came of a task; the daemon goes on with its next one."""
        task, outcome = stint.task, stint.outcome
        assert outcome is not None
        _, following = self._daemons.finish(stint.site, task)
        if following is not None:
            self._begin(following)
        self._take(task, outcome, seconds(self._timing.training(stint.site, outcome.steps)))
