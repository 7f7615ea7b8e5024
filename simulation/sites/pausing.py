"""Training that stops at the end of an epoch and goes on later, possibly after other tasks of other sites.

A plugin may ask, after an epoch, how far the job has come meanwhile. Virtual time has to reach the end of
that epoch before anybody knows. So training runs in a thread of its own, which waits there. Only one thread
runs at a time: the thread that lets it go on waits until it stops again.

What a paused thread holds (a network, an optimizer, whatever plugins remember) cannot be sent to another
process. It need not be: training is a function of its task and of the pulses so far. Another process, or this
one if it has forgotten the thread, trains again from the start and gets the same bits.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Semaphore, Thread
from typing import Any

import numpy as np
import torch

from hansa.common.site.stock import Networks
from hansa.common.values.ids import TaskId
from hansa.common.values.results import Progress
from hansa.learner.training.slow import Cancelled
from hansa.simulation.crew.base import Assignment, Outcome, Paused

PAUSED = 256  # trainings that wait at a time; of further ones the oldest begins again from its start
Report = Callable[[Progress], None]
Pulse = Callable[[], int | None]


class PausedTraining:
    """One task in training. `train` is given what to call after each epoch, and where to ask for pulses."""

    def __init__(self, train: Callable[[Report, Pulse], Outcome]) -> None:
        self._train = train
        self._pulses: Sequence[int] = ()
        self._epochs = self._steps = 0
        self._outcome: Outcome | None = None
        self._given_up = False
        self._go_on, self._stopped = Semaphore(0), Semaphore(0)
        self._generators: tuple[Any, Any, Any] | None = None  # as they were when it stopped
        self._thread = Thread(target=self._run, name="paused-training", daemon=True)
        self._thread.start()

    def go_on(self, pulses: Sequence[int]) -> Outcome:
        """Train until the epoch after which the next pulse is needed, or to the end."""
        self._pulses = pulses
        if self._generators is not None:
            _set_generators(self._generators)
        self._switch()
        self._generators = _generators()
        return self._outcome or Outcome(Paused(), steps=self._steps)

    def expects(self, pulses: Sequence[int]) -> bool:
        """Whether this training has stopped where these pulses, and no fewer, are needed."""
        return len(pulses) == self._epochs + 1 and tuple(pulses[: self._epochs]) == tuple(self._pulses)

    def give_up(self) -> None:
        """End the thread; nobody needs the outcome."""
        self._given_up = True
        self._switch()
        self._thread.join()

    def _switch(self) -> None:
        self._go_on.release()
        self._stopped.acquire()

    def _run(self) -> None:
        self._go_on.acquire()
        torch.set_num_threads(torch.get_num_threads())  # every thread has a number of its own
        try:
            if not self._given_up:
                self._outcome = self._train(self._epoch_ended, lambda: self._pulses[self._epochs])
        finally:
            self._stopped.release()

    def _epoch_ended(self, progress: Progress) -> None:
        self._epochs, self._steps = self._epochs + 1, progress.steps
        if self._epochs < len(self._pulses):
            return
        self._stopped.release()
        self._go_on.acquire()
        if self._given_up:
            raise Cancelled("the task was withdrawn")


class Pauses:
    """All trainings of a process that wait for the end of an epoch. Each has a network of its own."""

    def __init__(
        self, train: Callable[[Assignment, Networks, Report, Pulse], Outcome], most: int = PAUSED
    ) -> None:
        self._train, self._most = train, most
        self._waiting: OrderedDict[TaskId, tuple[PausedTraining, Networks]] = OrderedDict()
        self._spare: list[Networks] = []

    def go_on(self, assignment: Assignment) -> Outcome:
        """Go on with a task, or begin it; it may have to wait again."""
        task, pulses = assignment.task.id, assignment.pulses
        assert pulses is not None
        if task in self._waiting and not self._waiting[task][0].expects(pulses):
            self.forget(task)
        paused = self._waiting.pop(task) if task in self._waiting else self._begin(assignment)
        training, networks = paused
        outcome = training.go_on(pulses)
        if isinstance(outcome.result, Paused):
            self._waiting[task] = (training, networks)
            while len(self._waiting) > self._most:
                self.forget(next(iter(self._waiting)))
        else:
            self._spare.append(networks)
        return outcome

    def forget(self, task: TaskId) -> None:
        """Give up a training; harmless if it does not wait here."""
        if task in self._waiting:
            training, networks = self._waiting.pop(task)
            training.give_up()
            self._spare.append(networks)

    def close(self) -> None:
        """Give up all trainings."""
        for task in list(self._waiting):
            self.forget(task)

    def _begin(self, assignment: Assignment) -> tuple[PausedTraining, Networks]:
        networks = self._spare.pop() if self._spare else Networks("cpu")
        return PausedTraining(lambda *ways: self._train(assignment, networks, *ways)), networks


def _generators() -> tuple[Any, Any, Any]:
    """Return the states of the generators that the whole process shares."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_generators(states: tuple[Any, Any, Any]) -> None:
    numbers, arrays, plain = states
    torch.set_rng_state(numbers)
    np.random.set_state(arrays)
    random.setstate(plain)
