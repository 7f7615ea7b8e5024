"""Turns tasks into blocks of clients, and trained blocks into the updates that single tasks would return."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from blake3 import blake3

from hansa.common.app import App
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.site.stock import Networks
from hansa.common.torch.data import Tensors
from hansa.common.torch.seeding import task_seed
from hansa.common.values.errors import one_line
from hansa.common.values.ids import TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Train
from hansa.learner.jobs import SplitData
from hansa.learner.training.loop import HELD
from hansa.simulation.batched.agreement import LEAST, WIDTHS, Agreement
from hansa.simulation.batched.block import BlockTraining, Client, Stack
from hansa.simulation.batched.operations import NotBatched
from hansa.simulation.batched.plain import obstacle_in_app, obstacle_in_network, obstacle_in_task
from hansa.simulation.crew.base import Assignment, Model, Models, Outcome, Update

SPOT_CHECKS = 32  # in the first block, and in every so many, one client is trained alone as well
TOGETHER = "small clients are trained in blocks, which gives the same bits as one by one"
ALONE = "clients are trained one by one, not in blocks: "


@dataclass(frozen=True)
class _Member:
    """A client of a block, and its task."""

    assignment: Assignment
    model: Model  # that the task starts from
    data: SplitData
    client: Client


class Blocks:
    """Trains tasks in blocks, as long as that gives the same bits and is faster."""

    def __init__(
        self,
        app: App,
        networks: Networks,
        models: Models,
        data: Callable[[Assignment], SplitData],
        alone: Callable[[Assignment], Outcome],
    ) -> None:
        """`data` returns the training data of a task, and `alone` does one by itself."""
        self._app, self._networks, self._models = app, networks, models
        self._data, self._alone = data, alone
        self._agreement: tuple[ModelSpec, Agreement] | None = None
        self._off = False  # for good
        self._trained = 0  # blocks
        self._remarks: dict[str, bool] = {}  # whether somebody was told
        if obstacle := obstacle_in_app(app):
            self._give_up(obstacle)

    def takes(self, assignment: Assignment) -> bool:
        """Whether a task can be trained in a block."""
        work = assignment.task.work
        if self._off or not isinstance(work, Train):
            return False
        if obstacle := obstacle_in_task(assignment, work):
            self._remarks.setdefault(ALONE + obstacle, False)
        return not obstacle

    def do(self, assignments: Sequence[Assignment]) -> dict[TaskId, Outcome]:
        """Do those tasks that blocks are good for; the others must be done one by one."""
        groups: defaultdict[tuple[object, ...], list[Assignment]] = defaultdict(list)
        for assignment in assignments:
            work = assignment.task.work
            if self.takes(assignment) and isinstance(work, Train):
                groups[work.epochs, work.steps, work.batch_size, work.optimizer].append(assignment)
        outcomes: dict[TaskId, Outcome] = {}
        for group in groups.values():
            for start in range(0, len(group), WIDTHS[0]):
                block = group[start : start + WIDTHS[0]]
                if len(block) >= LEAST and not self._off:
                    outcomes |= self._attempt(block)
        return outcomes

    def remarks(self) -> tuple[str, ...]:
        """Return what has to be said about blocks and was not said before."""
        fresh = tuple(remark for remark, said in self._remarks.items() if not said)
        self._remarks |= dict.fromkeys(fresh, True)
        return fresh

    def _give_up(self, why: str) -> None:
        self._off = True
        self._remarks.setdefault(ALONE + why, False)

    def _attempt(self, assignments: Sequence[Assignment]) -> dict[TaskId, Outcome]:
        """Train a block; whatever goes wrong, the loop will show how each of its clients fares."""
        try:
            return self._train(assignments)
        except (Exception, SystemExit) as error:
            self._give_up(str(error) if isinstance(error, NotBatched) else one_line(error))
            return {}

    def _train(self, assignments: Sequence[Assignment]) -> dict[TaskId, Outcome]:
        """Train a block."""
        task, work = assignments[0].task, assignments[0].task.work
        assert isinstance(work, Train)
        readable = [each for each in map(self._member, assignments) if each and _is_usual(each, work)]
        spec = readable[0].model.manifest.spec if readable else None
        members = sorted(
            (each for each in readable if each.model.manifest.spec == spec),
            key=lambda each: -len(each.client.data),
        )
        if spec is None or len(members) < LEAST:
            return {}
        network = self._networks.get(self._app, task).network
        if obstacle := obstacle_in_network(network, spec):
            raise NotBatched(obstacle)
        if self._agreement is None or self._agreement[0] != spec:
            self._agreement = spec, Agreement(self._app, network, spec)
        begun, clients = time.monotonic(), [each.client for each in members]
        stack = Stack(spec, len(members) + WIDTHS[-1])  # the last piece may be filled up
        _fill(stack, members)
        training = BlockTraining(self._app, network, work, clients, stack)
        training.run(partial(self._agreement[1].pieces, work, clients))
        seconds = (time.monotonic() - begun) / len(members)
        updates = _updates(spec, stack, members, seconds)
        self._check(members, updates)
        self._remarks.setdefault(TOGETHER, False)
        return {
            each.assignment.task.id: Outcome(
                update, steps=update.facts.steps, examples=len(each.data.examples)
            )
            for each, update in zip(members, updates, strict=True)
        }

    def _member(self, assignment: Assignment) -> _Member | None:
        """Return a client with its data; None if they cannot be read, which the loop will explain."""
        work = assignment.task.work
        assert isinstance(work, Train)
        try:
            data, model = self._data(assignment), self._models.read(work.model)
        except (Exception, SystemExit):
            return None
        if not isinstance(data.batches, Tensors):
            raise NotBatched("examples are read from a Dataset, one by one")
        return _Member(assignment, model, data, Client(data.batches, task_seed(assignment.task)))

    def _check(self, members: Sequence[_Member], updates: Sequence[Update]) -> None:
        """Train one client of some blocks alone, too; raise if that gives something else."""
        turn, others = divmod(self._trained, SPOT_CHECKS)
        self._trained += 1
        if others:
            return
        number = turn % len(members)
        assignment = members[number].assignment
        outcome = self._alone(assignment)
        alone = outcome.result if outcome.memory is None else None
        if isinstance(alone, Update) and _bits(alone) == _bits(updates[number]):
            return
        raise NotBatched(
            f"the update of {assignment.task.site} in task {assignment.task.id} has other bits if it is"
            " trained alone; earlier blocks may have been wrong, too: simulate the job with --batched off"
        )


def _is_usual(member: _Member, work: Train) -> bool:
    """Whether a client has examples, but not so many batches that the loop sums their losses up in parts."""
    return 0 < len(member.client.data) < HELD * work.batch_size


def _fill(stack: Stack, members: Sequence[_Member]) -> None:
    """Give every client the model that its task starts from."""
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, member in enumerate(members):
        rows[id(member.model)].append(row)
    for same in rows.values():
        for name, array in members[same[0]].model.arrays.items():
            stack.tensors[name].numpy()[same] = array


def _updates(spec: ModelSpec, stack: Stack, members: Sequence[_Member], seconds: float) -> list[Update]:
    """Return the updates of a block that was trained."""
    updates, tops = [], _peaks(spec, stack, len(members))
    for row, member in enumerate(members):
        payload = stack.payloads[row]
        places = zip(spec.offsets, spec.sizes, strict=False)
        digests = tuple(blake3(payload[begin : begin + size].data).digest() for begin, size in places)
        facts = UpdateFacts(
            n_train=len(member.data.examples), **vars(member.client.trained), seconds=seconds, metrics={}
        )
        updates.append(Update(Manifest(spec, digests), tuple(tops[row]), payload, facts))
    return updates


def _peaks(spec: ModelSpec, stack: Stack, rows: int) -> list[list[float]]:
    """Return the largest magnitudes of each client's tensors."""
    tops = np.zeros((rows, len(spec.tensors)))
    for number, tensor in enumerate(stack.tensors.values()):
        if tensor.numel():
            low, high = torch.aminmax(tensor[:rows].reshape(rows, -1), dim=1)
            tops[:, number] = torch.maximum(high, -low).numpy()
    tops[~np.isfinite(tops)] = np.inf
    result: list[list[float]] = np.maximum(tops, 0.0).tolist()
    return result


def _bits(update: Update) -> tuple[object, ...]:
    """Return what must be the same, whoever trains a client; losses may be NaN, which equals nothing."""
    return update.manifest, update.peaks, update.facts.model_dump_json(exclude={"seconds"})
