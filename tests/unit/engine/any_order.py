"""Plays a job to which anything may happen in any order, and checks what must always hold."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

from pydantic import JsonValue

from hansa.common.models.model import ModelSpec, TensorInfo
from hansa.common.models.model import Role as TensorRole
from hansa.common.values.errors import PluginFailed, Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.orders import Examine, ExamineHop, Merge
from hansa.controller.engine.subjects import OfVersion
from hansa.controller.pacers.redistribute import Redistribute
from hansa.controller.pacers.trips import Trip
from hansa.controller.plugin.outline import outline_of
from hansa.controller.rules.dividing.divergence import METRICS
from hansa.controller.values.members import Membership, Standing, overlay
from tests.unit.engine import evaluated_updates, examined
from tests.unit.engine.held_out import check_held_out_sites
from tests.unit.engine.play import Play, Role, dropped, endings, merges, sent, withdrawn

assert evaluated_updates  # importing them registers their plugins
assert examined

FINAL = ("completed", "failed", "cancelled")
SITES = ("a", "b", "c", "d")
OUTLINE = outline_of(
    ModelSpec(
        tuple(TensorInfo(name, "float32", (2, 2), TensorRole.PARAM, i) for i, name in enumerate("xyz")),
        tuple("xyz"),
    )
)


class AnyOrder:
    """A job to which anything may happen."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        if job.get("layers") and "until" in job.get("train", {}):
            job = job | {"train": {}}  # the two do not go together
        self.play = Play(**job)
        self.play.outline = OUTLINE
        self.ends: list[tuple[str, str]] = []
        self.asked: dict[TaskId, Task] = {}
        self.answered: set[TaskId] = set()
        self.gone: set[str] = set()
        self.merging: int | None = None

    def happen(self, act: Callable[[], list[Effect]]) -> None:
        """Let something happen; a stale event must leave no trace, an accepted one must keep all promises."""
        before = self.play.picture()
        over = self.play.machine.ended
        try:
            effects = act()
        except Stale:
            assert self.play.picture() == before
            return
        except PluginFailed as error:  # the shell then ends the job as it was before
            expected = ("no site has validation data", "could not tell where to divide")
            if not any(reason in str(error) for reason in expected):
                raise
            self.play.machine = self.play.again()
            effects = self.play.give_up(str(error))
        assert not over, "something happened after the end"
        for task in sent(effects):
            assert task.id not in self.asked, "a task id was used twice"
            self.asked[task.id] = task
        assert set(withdrawn(effects)) <= set(self.asked)
        assert not set(withdrawn(effects)) & set(self.play.machine.state.tasks)
        for merge in merges(effects):
            self._check_merge(merge)
        assert not dropped(effects) & self.gone, "a model was dropped twice"
        released = before[0]["models"] - self.play.machine.state.models
        assert released <= dropped(effects), "a model stays in the store"
        self.gone |= dropped(effects)
        self.ends += endings(effects)

    def _check_merge(self, merge: Merge) -> None:
        state = self.play.machine.state
        assert self.merging is None, "two merges at once"
        self.merging = merge.version
        assert merge.version == state.version + 1
        restart = self.job.get("layers", {}).get("restart")
        assert merge.current == state.current or (restart and merge.current == state.first)
        travels = self._travels()
        whose = [part.slot if travels else part.site for part in merge.added]
        if self.job["pace"].get("buffer", 1) == 1:
            assert len(set(whose)) == len(whose), "a site, or a slot, counts twice"
        if travels:
            assert whose == sorted(whose)
        for part in merge.added:
            task = self.asked[part.task]
            assert isinstance(task.work, Train)
            assert task.site == part.site
            if "rule" not in self.job:  # where there are rounds
                assert (task.round, task.work.version) == (state.round, state.version)
            assert task.id in self.answered
            assert part.model not in self.gone
        rounds = "rule" not in self.job
        company = {m.site for m in self._members(merge) if m.weight > 0 or not rounds}
        anything = any(part.weight > 0 for part in merge.added)
        assert len(company) >= self.play.spec.sites.together or not anything, "a model of too few sites"

    def _members(self, merge: Merge) -> Membership:
        """Return all members that count once a merge is done."""
        machine = self.play.machine
        before = machine.state.members if machine.rule.merge.remembers else None
        names = [tensor.name for tensor in machine.state.outline.tensors] if machine.state.outline else []
        gone: Standing = {member.site: [] for member in merge.removed}
        return Membership(
            before or {}, {**gone, **overlay(before, (*merge.added, *merge.reweighed), names)[0]}
        )

    # What may happen.

    def step(self, name: str, pick: int) -> None:
        """Let one thing happen; `pick` decides to whom."""
        play, state = self.play, self.play.machine.state
        site = SITES[pick % len(SITES)]
        trains = play.spec.sites.trains(site)  # otherwise the shell does not offer its learner
        role: Role = "evaluator" if pick // 4 % 3 == 0 or not trains else "learner"
        match name:
            case "join":
                self.happen(lambda: play.join(site, role=role, examples=(10, 20, 10, 10, 0)[pick // 12 % 5]))
            case "leave":
                self.happen(lambda: play.leave(site, role=role))
            case "update":
                self._answer(self._pick(pick, Survey, Init, Train), n=(0, 1, 30)[pick % 3])
            case "everybody answers":
                work = [task for task in state.tasks.values() if isinstance(task.work, Init | Train)]
                for task in sorted(work, key=lambda task: crc32(f"{task.site}{pick}".encode())):
                    self._answer(task)
            case "fail":
                self._about(pick, play.fail, Survey, Init, Probe, Train, Evaluate)
            case "quarantine":
                self._about(pick, play.quarantine, Init, Train)
            case "report":
                self._about(pick, lambda task: play.report(task, right=pick % 11), Evaluate)
            case "tell":
                self._about(pick, lambda task: play.tell(task, n=pick % 11, mean=float(pick % 5)), Survey)
            case "merge" if self.merging is not None:
                version, self.merging = self.merging, None
                self.happen(lambda: play.merged(version))
            case "merge out of turn" if pick % 7 != self.merging:
                self.happen(lambda: play.merged(pick % 7))
            case "examine" if examinations := sorted(play.orders(Examine)):
                self._examine(examinations[pick % len(examinations)], pick)
            case "examine out of turn" if pick % 5 not in state.orders or pick % 5 in play.orders(Examine):
                self._examine(pick % 5, pick)
            case "examine a hop" if hops := list(play.orders(ExamineHop).values()):
                hop = hops[pick % len(hops)]
                self.happen(
                    lambda: play.hop_examined(hop.version, hop.hop, bool(hop.members), trouble=pick % 5 == 0)
                )
            case "compare":  # now and then out of turn
                trouble = "reference: missing x" if pick % 20 == 0 else ""
                distance = (pick / 7, float("nan"))[pick % 9 == 0]
                self.happen(lambda: play.compared(distance, trouble))
            case "examine a hop out of turn":
                examined = {(order.version, order.hop) for order in play.orders(ExamineHop).values()}
                if (pick % 3, pick % 4) not in examined:
                    self.happen(lambda: play.hop_examined(pick % 3, pick % 4, mean=True))
            case "probe":
                score = (0.0, 1.0, 1e300, float("nan"))[pick % 4]
                self._about(pick, lambda task: play.probe(task, score), Probe)
            case "ring" if state.alarms:
                alarms = sorted(state.alarms)
                self.happen(lambda: play.ring(alarms[pick % len(alarms)]))
            case "ring out of turn":
                alarm = ("gather", "time", "evaluation", "round-1-1", "update-j1-2")[pick % 5]
                if alarm not in state.alarms:
                    self.happen(lambda: play.ring(alarm))
            case "wait":
                play.now += pick % 10
            case "save":
                self.play.save()
            case "restart":
                self.restart()
            case "seldom":
                self._seldom(pick)

    def _examine(self, number: int, pick: int) -> None:
        """Let an examination find something, keep something, or fail."""
        play = self.play
        order = play.orders(Examine).get(number)
        facts: JsonValue = {site: float(pick % 3) for site in SITES}
        if order and order.point == "layers":
            facts = {"divergences": {metric: [0.1, 0.5 * (pick % 3), None] for metric in METRICS}}
        kept = (
            {}
            if order and order.point == "layers"
            else dict.fromkeys(SITES[: pick % 4], ("", f"k{pick}")[pick // 7 % 2])
        )
        fails = pick % 5 == 0
        self.happen(lambda: play.order_failed(number) if fails else play.examined(number, facts, kept))

    def _seldom(self, pick: int) -> None:
        play, version = self.play, self.merging
        match pick % 20:
            case 0:
                self.happen(play.cancel)
            case 1:
                self._about(pick, lambda task: play.fail(task, final=True), Init, Train, Evaluate)
            case 3 | 4:
                self._about(pick, lambda task: play.fail(task, unfit=True), Train, Evaluate)
            case 2 if version is not None and play.machine.state.plan:
                self.merging = None
                self.happen(lambda: play.order_failed(play.merge_of(version)[0], "disk full"))

    def _pick(self, pick: int, *kinds: type[Any]) -> Task | None:
        """Pick an open task or, one time in eight, any that was ever sent."""
        candidates = self.asked if pick % 8 == 0 else self.play.machine.state.tasks
        tasks = [task for task in candidates.values() if isinstance(task.work, kinds)]
        return tasks[pick // 8 % len(tasks)] if tasks else None

    def _about(self, pick: int, act: Callable[[Task], list[Effect]], *kinds: type[Any]) -> None:
        task = self._pick(pick, *kinds)
        if task:
            self.happen(lambda: act(task))

    def _answer(self, task: Task | None, n: int = 10) -> None:
        if task:
            self.answered |= {task.id} & set(self.play.machine.state.tasks)
            right = min(n, 4)
            own = Evaluation(n=n, loss_sum=1.0 * n, confusion=((right, n - right), (0, 0)))
            if isinstance(task.work, Init) and self.play.machine.state.version >= 0:
                self.happen(lambda: self.play.describe(task))
            else:
                self.happen(lambda: self.play.update(task, n_train=n, own=own, importance=float(n)))

    def restart(self) -> None:
        """Restore the job from the last snapshot and later events; it must be the same, and goes on."""
        again = self.play.again()
        assert again.state.model_dump() == self.play.machine.state.model_dump()
        assert again.memories == self.play.machine.memories
        assert again.resume() == self.play.machine.resume()
        self.play.machine = again

    # What always holds.

    def check(self) -> None:
        """Check all promises."""
        self._ends_once()
        self._history_is_whole()
        self._needed_models_are_kept()
        self._tasks_are_for_this_round()
        self._indices_follow_from_the_state()
        self._training_is_standardised()
        self._evaluations_are_sound()

    def _ends_once(self) -> None:
        state = self.play.machine.state
        assert len(self.ends) == int(self.play.machine.ended)
        assert (state.status in FINAL) is self.play.machine.ended
        if self.ends:
            assert (state.status, state.reason) == self.ends[0]
            assert not state.tasks
            assert not state.alarms
            assert not state.orders
            assert not state.subjects
            assert not state.kept
            assert state.reference is None
            assert self.play.machine.resume() == []

    def _history_is_whole(self) -> None:
        state = self.play.machine.state
        assert [record.version for record in state.history] == list(range(state.version + 1))
        assert state.sequence == len(self.play.accepted)
        assert (state.current is None) is (state.version < 0)

    def _needed_models_are_kept(self) -> None:
        """The store has what tasks, the next merge and a check of the last one need."""
        state = self.play.machine.state
        needed = {key for task in state.tasks.values() for key in task.models}
        needed |= {key for order in state.orders.values() for key in order.reads}
        if state.plan:
            needed |= {key for member in self._members(state.plan) for key in member.models}
        needed |= {key for held in state.members.values() for member in held for key in member.models}
        needed |= {key for key in (state.current, state.reference) if key} | set(state.saved.values())
        if not self.play.machine.ended:
            needed |= state.unmerged | set(state.bases.values())
        needed |= {kept.key for held in state.kept.values() for kept in held.values()}
        assert needed <= state.models
        assert not state.models & self.gone

    def _tasks_are_for_this_round(self) -> None:
        """There is at most one training task per site, of this round, and none during a merge."""
        state = self.play.machine.state
        work = [task for task in state.tasks.values() if not isinstance(task.work, Evaluate)]
        assert len({task.site for task in work}) == len(work)
        if "rule" in self.job:
            return  # there are no rounds
        assert all(task.round == state.round for task in work if not isinstance(task.work, Probe))
        if self._travels():
            self._slots_are_sound()
        if state.merging:
            assert not work

    def _travels(self) -> bool:
        return isinstance(self.play.machine.rule.pace, Redistribute)

    def _slots_are_sound(self) -> None:
        """Every slot in training is at one site, which has its model; nothing else is kept for slots."""
        state, trip = self.play.machine.state, self.play.machine.memories["pace"]
        assert isinstance(trip, Trip)
        if state.phase not in ("training", "gathering") or trip.phase == "idle":
            return
        held = {slot.held.model for slot in trip.slots if slot.held}
        before = {slot.before.model for slot in trip.slots if slot.before}
        assert state.unmerged == held | before, "a model of a slot leaked, or is gone"
        tasks = {task.site: task for task in state.tasks.values() if isinstance(task.work, Train)}
        assert set(tasks) == set(trip.errands)
        assert len({errand.slot for errand in trip.errands.values()}) == len(trip.errands)
        for site, errand in trip.errands.items():
            task, slot = tasks[SiteName(site)], trip.slots[errand.slot]
            assert isinstance(task.work, Train)
            assert (task.id, task.slot, task.hop) == (errand.task, errand.slot + 1, trip.hop)
            assert task.work.model == (slot.held.model if slot.held else state.current)
            assert task.work.base == (slot.held.base if slot.held else None)
        assert all(slot.hops <= trip.hop for slot in trip.slots)
        assert len({record.hop for record in state.hops}) == len(state.hops)

    def _indices_follow_from_the_state(self) -> None:
        assert self.play.machine.outdated_indices() == []

    def _training_is_standardised(self) -> None:
        """With a global standard, every site trains and evaluates with the same one."""
        state, spec = self.play.machine.state, self.play.spec.survey
        tasks = [task for task in state.tasks.values() if isinstance(task.work, Train | Evaluate)]
        if spec.standardise == "global":
            assert all(task.standard is not None and task.standard == state.standard for task in tasks)
        else:
            assert all((task.standard is not None) is (spec.standardise == "local") for task in tasks)

    def _evaluations_are_sound(self) -> None:
        """No evaluator is behind, one version is awaited at a time, and what counts covers all examples."""
        state, machine = self.play.machine.state, self.play.machine
        open_ = [task for task in state.tasks.values() if isinstance(task.work, Evaluate)]
        whole = [task for task in open_ if isinstance(state.subjects[task.id], OfVersion)]
        if state.phase != "closing":
            assert len({task.site for task in whole}) == len(whole), "an evaluator falls behind"
            awaited = [record.version for record in state.history if machine.awaits(record)]
            assert len(awaited) == int("evaluation" in state.alarms)
        for record in state.history:
            if record.covered:
                assert 0 < record.examples == record.examples_total
                assert not machine.awaits(record)
        check_held_out_sites(self.play)
        counted = [record.version for record in state.history if record.covered]
        assert state.covered == (counted[-1] if counted else None)

    def check_something_can_happen(self) -> None:
        """A merge is in progress, a connected site has a task, or an alarm of this phase will ring."""
        state = self.play.machine.state
        if self.play.machine.ended or state.merging:
            return
        at_work = any(
            task.site in (state.evaluators if isinstance(task.work, Evaluate) else state.learners)
            for task in state.tasks.values()
            if state.phase == "closing" or not isinstance(task.work, Evaluate)
        )
        due = {alarm for alarm in state.alarms if alarm.startswith(f"hop-{state.round}-")}
        due |= {"gather", "evaluation", "probes", f"round-{state.round}-1", f"round-{state.round}-2"} & set(
            state.alarms
        )
        if state.preparing:  # merges wait for evaluations, and only so long
            due |= {alarm for alarm in state.alarms if alarm.startswith("update-")}
        assert at_work or due, f"{state.phase}: no site works and no alarm is set"
