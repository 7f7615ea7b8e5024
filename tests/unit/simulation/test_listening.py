"""Training that listens to what other sites commit meanwhile, on the clock of `test_clock`.

An epoch has 4 steps and takes 100 ms times the site's factor, after 10 ms for the download. Once a site has
trained enough, its update arrives 50 ms later.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.common.values.views import JobView
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.learner.plugins.contract import LocalPlugin, LocalRun
from tests.unit.simulation.test_clock import simulated

Heard = list[int]
EPOCHS = 4  # of a task, at most


@register("learner", "listener")
class Listener(LocalPlugin[Heard]):
    """Trains until enough steps are committed, and tells what it heard after each epoch."""

    enough: int
    fails: bool = False  # in the second epoch of a site's first task, if it is site b

    def begin(self, run: LocalRun) -> Heard:
        """Begin a list."""
        return []

    def watch(self, held: Heard, run: LocalRun) -> None:
        """Fail, if that is wanted."""
        if self.fails and run.task.site == "b" and run.task.round == 1 and run.epoch == 2:
            raise ValueError("a first attempt")

    def after_epoch(self, held: Heard, run: LocalRun) -> bool:
        """Listen."""
        pulse = run.pulse()
        assert pulse is not None
        held.append(pulse)
        return pulse >= self.enough

    def finish(self, held: Heard, run: LocalRun) -> Mapping[str, float]:
        """Tell what was heard."""
        return {f"epoch-{number}": float(pulse) for number, pulse in enumerate(held, 1)}


@register("local", "listening")
class Listening(Policy):
    """Has sites listen."""

    enough: int
    fails: bool = False

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the plugin."""
        plugin = LocalPluginSpec(name="listener", args={"enough": self.enough, "fails": self.fails})
        return work.model_copy(update={"plugins": (plugin,), "epochs": EPOCHS})

    def listens(self, state: Nothing) -> bool:
        """Whether sites are told anything."""
        return True


def run(folder: Path, factors: tuple[float, ...], updates: int, **local: Any) -> JobView:
    more: dict[str, Any] = {"local": {"kind": "listening", **local}, "pace": {"updates": updates}}
    return simulated(folder, factors, app="network", rule="fedasync", **more)


def told(view: JobView) -> list[tuple[int, str, list[float | None]]]:
    """Return the time of each version in ms after the first tasks, its site, and what that one heard."""
    return [
        (round(entry.seconds * 1000) - 60, update.site, list(update.metrics.values()))
        for entry in view.history
        for update in entry.updates
    ]


def test_sites_hear_what_was_committed_by_the_end_of_each_epoch(tmp_path: Path) -> None:
    view = run(tmp_path, (1, 2, 3.5), updates=6, enough=48)
    assert told(view) == [
        # a's epochs end at 110, 210, 310 and 410: nothing is committed yet.
        (460, "a", [0, 0, 0, 0]),
        # b's end at 210, 410, 610 and 810: a has committed 16 steps at 460.
        (860, "b", [0, 0, 16, 16]),
        # a began again at 460, with 16 steps in the model: 570, 670, 770, 870; b has committed at 860.
        (920, "a", [16, 16, 16, 32]),
        # a began again at 920, with 48 steps, and that is enough after one epoch, at 1030.
        (1080, "a", [48]),
        # c's epochs end at 360, 710 and 1060: the second time it hears of a, the third time of all three.
        (1110, "c", [0, 16, 48]),
        # b began again at 860, with 32 steps; its first epoch ends at 1070, when a has committed 48.
        (1120, "b", [48]),
    ]
    assert [entry.updates[0].steps for entry in view.history[1:]] == [16, 16, 16, 4, 12, 4]


def test_no_training_is_left_waiting_when_the_job_has_ended(tmp_path: Path) -> None:
    run(tmp_path, (1, 2, 9), updates=2, enough=48)
    assert not [thread for thread in threading.enumerate() if thread.name == "paused-training"]


def test_an_update_that_arrives_at_the_very_end_of_an_epoch_is_not_heard_of(tmp_path: Path) -> None:
    view = run(tmp_path, (1, 2, 9.1), updates=20, enough=33)
    # c's first epoch ends at 920, when a's second update arrives: c hears of 32 steps, and goes on. Its next
    # epoch ends at 1830.
    (heard,) = [each for each in told(view) if each[1] == "c"]
    assert heard[0] == 1880
    assert heard[2][0] == 32


def test_training_that_fails_does_so_when_its_update_could_have_been_there(tmp_path: Path) -> None:
    view = run(tmp_path, (1, 2, 50), updates=4, enough=1000, fails=True)
    # b fails in its second epoch. All that is known at 210, the end of the first, is that its update may
    # be there at 260; so the failure is. Its next task's epochs end at 470, 670, 870 and 1070.
    assert told(view)[:3] == [
        (460, "a", [0, 0, 0, 0]),
        (920, "a", [16, 16, 16, 16]),
        (1120, "b", [16, 16, 16, 32]),
    ]
