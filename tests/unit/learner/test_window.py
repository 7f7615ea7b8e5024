"""Windows of batches at a learner: which examples a task gets, and what survives a crash (fedmmb §1, §7)."""

import logging
from collections import Counter
from math import ceil
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.common.app import App, TrainingRun
from hansa.common.data.examples import Examples
from hansa.common.site.files import DiskFiles
from hansa.common.site.memory_files import MemoryFiles
from hansa.common.torch.data import Tensors
from hansa.common.torch.seeding import task_seed
from hansa.common.values.bounds import ASKED, EPOCHS, STEPS
from hansa.common.values.errors import InvalidInput, Refused
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import Evaluation
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.plugins import importance
from hansa.learner.training import files as module
from hansa.learner.training import loop as trainer
from hansa.learner.training.batches import shuffled
from hansa.learner.training.own import train_own
from hansa.learner.training.slow import Cancelled, Drag
from hansa.learner.training.window import Place, Window, Windows, open_window

JOB = JobId("j1")


def examples(rows: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(rng.standard_normal((rows, 2)).astype(np.float32), rng.integers(0, 2, rows))


def drawn(window: Window, drop_single: bool = False) -> list[list[int]]:
    return [batch.tolist() for batch in window.batches(drop_single, lambda: False)]


class Site:
    """A learner's windows, driven task by task as a controller would."""

    def __init__(self, state: Path, rows: int, size: int, batches: int) -> None:
        self.state, self.size, self.batches = state, size, batches
        self.data = examples(rows)
        self.windows = Windows(DiskFiles(state))
        self.number = 0
        self.after = ""  # what the controller has of us

    def task(self, number: int, steps: int = 0, after: str | None = None) -> Task:
        work = Train(
            model=ModelKey("j1/v0"),
            version=0,
            epochs=1,
            steps=steps,
            batches=self.batches,
            after=self.after if after is None else after,
            batch_size=self.size,
            optimizer=OptimizerSpec(),
        )
        return Task(
            id=TaskId(f"{JOB}-{number}"),
            job=JOB,
            site=SiteName("a"),
            round=number,
            app="app.py:app",
            seed=7,
            validation=ValidationSpec(),
            work=work,
        )

    def next(self, steps: int = 0) -> Task:
        self.number += 1
        return self.task(self.number, steps)

    def begin(self, task: Task) -> list[list[int]]:
        assert isinstance(task.work, Train)
        opened = self.windows.begin(task, task.work, task_seed(task), self.data)
        return drawn(opened)

    def acknowledge(self, task: Task) -> None:
        """The controller has committed the update, and the receipt came."""
        self.after = task.id
        self.windows.commit(task)

    def take(self, steps: int = 0) -> list[list[int]]:
        task = self.next(steps)
        found = self.begin(task)
        self.acknowledge(task)
        return found

    def restart(self) -> None:
        self.windows = Windows(DiskFiles(self.state))


def flat(windows: list[list[list[int]]]) -> list[int]:
    return [row for batches in windows for batch in batches for row in batch]


# Which examples.


@pytest.mark.parametrize(
    ("rows", "size", "batches", "used"),
    [
        (23, 5, 2, [10, 10, 3]),
        (20, 5, 4, [20]),
        (20, 5, 3, [15, 5]),
        (20, 5, 1, [5, 5, 5, 5]),
        (3, 5, 2, [3]),  # fewer examples than a batch: all of them each time
        (20, 5, 100, [20]),
        (1, 1, 1, [1]),
    ],
)
def test_a_pass_is_cut_into_windows_as_the_paper_says(
    tmp_path: Path, rows: int, size: int, batches: int, used: list[int]
) -> None:
    site = Site(tmp_path, rows, size, batches)
    orders = []
    for _ in range(3):
        windows = [site.take() for _ in used]
        assert [sum(map(len, window)) for window in windows] == used
        assert sorted(flat(windows)) == list(range(rows))
        orders.append(flat(windows))
    assert rows < 4 or orders[0] != orders[1] != orders[2]  # shuffled anew for every pass


@given(rows=st.integers(1, 60), size=st.integers(1, 20), batches=st.integers(1, 12), passes=st.integers(1, 3))
def test_in_every_pass_each_example_is_used_exactly_once(
    rows: int, size: int, batches: int, passes: int
) -> None:
    place: Place | None = None
    seen: Counter[int] = Counter()
    work = Train(
        model=ModelKey("m"), version=0, epochs=1, batches=batches, batch_size=size, optimizer=OptimizerSpec()
    )
    for number in range(passes * ceil(ceil(rows / size) / batches)):
        opened = open_window(place or Place(seed=number), number, rows, work)
        assert 1 <= len(drawn(opened)) == opened.count <= batches
        seen.update(flat([drawn(opened)]))
        place = opened.end
    assert place is None
    assert seen == dict.fromkeys(range(rows), passes)


@pytest.mark.parametrize("rows", [20, 23])
def test_a_window_as_large_as_the_data_is_an_epoch_of_fedavg(tmp_path: Path, rows: int) -> None:
    """Both draw an order with the seed of the task that starts it, so the batches are the same."""
    site = Site(tmp_path, rows, 5, batches=-(-rows // 5))
    for _ in range(4):
        task = site.next()
        generator = torch.Generator().manual_seed(task_seed(task))
        assert site.begin(task) == [batch.tolist() for batch in shuffled(rows, 5, generator, False)]
        site.acknowledge(task)


def test_steps_of_a_pacer_go_on_through_the_passes(tmp_path: Path) -> None:
    """Semi-synchronous rounds tell how many steps fit; however they fall, a pass uses every example once."""
    site = Site(tmp_path, 23, 5, batches=2)
    windows = [site.take(), site.take(steps=1), site.take(steps=9), site.take(steps=4), site.take()]
    assert [len(window) for window in windows] == [2, 1, 9, 4, 2]
    rows = flat(windows)
    assert [sorted(rows[at : at + 23]) for at in (0, 23, 46)] == [list(range(23))] * 3
    first = Site(tmp_path / "other", 23, 5, batches=2)
    task = first.next(steps=12)
    generator = torch.Generator().manual_seed(task_seed(task))
    epochs = [batch.tolist() for _ in range(3) for batch in shuffled(23, 5, generator, False)]
    assert first.begin(task) == epochs[:12]  # as FedAvg goes through its epochs
    first.acknowledge(task)
    task = first.next(
        steps=3 + 5 + 5
    )  # three batches are left of the pass; the next two begin with this task
    generator = torch.Generator().manual_seed(task_seed(task))
    anew = [batch.tolist() for _ in range(2) for batch in shuffled(23, 5, generator, False)]
    assert first.begin(task) == epochs[12:] + anew


def test_a_batch_of_one_is_dropped_for_normalisation_and_used_up_all_the_same() -> None:
    work = Train(model=ModelKey("m"), version=0, epochs=1, batches=2, batch_size=4, optimizer=OptimizerSpec())
    held = open_window(Place(seed=1), 1, 5, work)
    assert [len(batch) for batch in drawn(held, drop_single=True)] == [4]
    assert [len(batch) for batch in drawn(held)] == [4, 1]
    assert held.end is None


def test_without_examples_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    site = Site(tmp_path, 0, 5, 2)
    assert site.take(steps=3) == []


def eagerly(start: Place, seed: int, rows: int, work: Train) -> tuple[list[list[int]], Place | None]:
    """Draw a window as the definition has it: batch by batch, and every order from its seed."""

    def order(place: Place) -> list[int]:
        generator = torch.Generator().manual_seed(place.seed)
        for _ in range(place.draw):
            torch.randperm(rows, generator=generator)
        return list(torch.randperm(rows, generator=generator).tolist())

    batches: list[list[int]] = []
    place = start
    while len(batches) < (work.steps or work.batches):
        if place.row >= rows:
            if not work.steps:
                break
            place = Place(seed=seed, draw=place.draw + 1 if place.seed == seed else 0)
        batches.append(order(place)[place.row : place.row + work.batch_size])
        place = place.model_copy(update={"row": place.row + len(batches[-1])})
    return batches, place if place.row < rows else None


@given(
    rows=st.integers(1, 30),
    size=st.integers(1, 12),
    batches=st.integers(1, 9),
    steps=st.integers(0, 40),
    seeds=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    draw=st.integers(0, 3),
    used=st.floats(0, 1, exclude_max=True),
)
def test_a_window_that_is_drawn_as_it_is_used_is_the_same_as_one_drawn_before(
    rows: int, size: int, batches: int, steps: int, seeds: tuple[int, int], draw: int, used: float
) -> None:
    work = Train(
        model=ModelKey("m"),
        version=0,
        epochs=1,
        batches=batches,
        steps=steps,
        batch_size=size,
        optimizer=OptimizerSpec(),
    )
    start = Place(seed=seeds[0], draw=draw, row=int(used * rows))
    window = open_window(start, seeds[1], rows, work)
    assert (drawn(window), window.end) == eagerly(start, seeds[1], rows, work)


def test_a_window_of_any_size_is_opened_at_once_and_ends_within_a_batch_when_the_task_is_withdrawn(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, 7, 2, batches=1)
    task = site.next(steps=ASKED)
    assert isinstance(task.work, Train)
    window = site.windows.begin(task, task.work, task_seed(task), site.data)
    assert window.count == ASKED
    withdrawn = False
    batches = window.batches(drop_single=False, cancelled=lambda: withdrawn)
    assert [len(next(batches)) for _ in range(9)] == [2, 2, 2, 1, 2, 2, 2, 1, 2]
    withdrawn = True
    with pytest.raises(Cancelled):
        for _ in batches:
            pass


def test_what_is_passed_over_for_a_later_window_ends_too_when_the_task_is_withdrawn() -> None:
    work = Train(model=ModelKey("m"), version=0, epochs=1, batches=1, batch_size=2, optimizer=OptimizerSpec())
    asked = 0

    def withdrawn() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(Cancelled):
        next(open_window(Place(seed=1, draw=ASKED), 1, 7, work).batches(False, withdrawn))
    assert asked == 6


@pytest.mark.parametrize(("rows", "size"), [(1, 5), (7, 1)])
def test_a_window_of_single_rows_only_gives_a_normalising_network_nothing_at_once(
    rows: int, size: int
) -> None:
    work = Train(
        model=ModelKey("m"), version=0, epochs=1, steps=ASKED, batch_size=size, optimizer=OptimizerSpec()
    )
    assert drawn(open_window(Place(seed=1), 1, rows, work), drop_single=True) == []


# What a learner still knows.


def test_a_restart_in_mid_pass_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    calm, killed = Site(tmp_path / "calm", 23, 5, 2), Site(tmp_path / "killed", 23, 5, 2)
    for _ in range(8):
        assert killed.take() == calm.take()
        killed.restart()


def test_a_task_that_was_not_committed_is_repeated_with_the_same_examples(tmp_path: Path) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    lost = site.begin(site.next())
    for restarted in (False, True, True):
        if restarted:
            site.restart()
        assert site.begin(site.next()) == lost  # a later task: nobody waited for the first any more
    site.acknowledge(site.task(site.number))
    assert site.take() != lost


def test_the_first_window_of_a_pass_is_repeated_too_though_a_later_task_has_another_seed(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, 23, 5, 5)
    lost = site.begin(site.next())
    site.restart()
    assert site.begin(site.next()) == lost


def test_a_learner_killed_between_receipt_and_note_hears_from_the_next_task_what_was_committed(
    tmp_path: Path,
) -> None:
    calm, killed = Site(tmp_path / "calm", 23, 5, 2), Site(tmp_path / "killed", 23, 5, 2)
    for turn in range(8):
        task = killed.next()
        assert killed.begin(task) == calm.take(), turn
        killed.after = task.id  # committed, and the learner dies before it can write that down
        killed.restart()


def test_the_same_task_gets_the_same_window_however_often_it_is_delivered(tmp_path: Path) -> None:
    site = Site(tmp_path, 23, 5, 2)
    task = site.next()
    once = site.begin(task)
    assert site.begin(task) == once
    site.restart()
    assert site.begin(task) == once
    site.acknowledge(task)
    assert site.begin(task) == once  # delivered again after the receipt: nothing moves
    site.acknowledge(task)
    mark = site.windows.bookmark(JOB)
    assert mark is not None
    assert (mark.task, mark.taken, mark.committed) == (task.id, 1, True)
    second = site.take()
    assert not set(flat([once])) & set(flat([second]))
    assert len(flat([once, second, site.take()])) == 23


def test_taken_counts_committed_windows_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    site.begin(site.next())
    site.restart()
    task = site.next()
    site.begin(task)
    site.after = task.id  # the note was lost
    site.restart()
    site.take()
    mark = site.windows.bookmark(JOB)
    assert mark is not None
    assert (mark.taken, mark.committed) == (3, True)


def test_a_lost_memory_begins_anew_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    assert not caplog.records  # a site that is new has lost nothing
    (tmp_path / "windows" / "j1.json").unlink()
    site.restart()
    assert len(flat([site.take(), site.take(), site.take()])) == 23
    assert [record.message for record in caplog.records] == [
        "job j1: the place in the data is lost; a new pass begins"
    ]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"task": 1}', b"\xff\x00"])
def test_a_damaged_memory_is_a_lost_one(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    (tmp_path / "windows" / "j1.json").write_bytes(content)
    site.restart()
    assert len(flat([site.take(), site.take(), site.take()])) == 23
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "damaged" in caplog.records[0].message


@pytest.mark.parametrize("changed", [examples(30), examples(22), examples(23, seed=1)])
def test_other_data_begin_anew_and_say_so(
    tmp_path: Path, changed: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    site.restart()
    site.data = changed
    rows = len(changed)
    windows = [site.take() for _ in range(ceil(ceil(rows / 5) / 2))]
    assert sorted(flat(windows)) == list(range(rows))
    (record,) = caplog.records
    assert "the data have changed" in record.message


def test_an_old_memory_says_that_it_is_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.take()
    old = (tmp_path / "windows" / "j1.json").read_bytes()
    site.take()
    (tmp_path / "windows" / "j1.json").write_bytes(old)
    site.restart()
    site.take()
    (record,) = caplog.records
    assert "is that of task j1-1, but task j1-2 was committed since" in record.message


def test_tasks_are_compared_by_their_numbers_not_by_their_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, 23, 5, 2)
    site.begin(site.task(10, after=""))
    site.begin(
        site.task(11, after="j1-9")
    )  # an update before the one that was lost is the last that was committed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    site = Site(tmp_path / "other", 23, 5, 2)
    site.begin(site.task(9, after=""))
    site.begin(site.task(11, after="j1-10"))
    assert "is that of task j1-9, but task j1-10 was committed since" in caplog.text


def test_a_bookmark_is_on_the_disk_before_training_begins(tmp_path: Path) -> None:
    """A machine that loses power must not forget which examples it has sent an update of."""
    written: list[bool] = []

    class Watched(MemoryFiles):
        def folder(self, name: str) -> "Watched":
            return Watched(self, name)

        def write(self, name: str, content: bytes, durable: bool = True) -> None:
            written.append(durable)
            super().write(name, content, durable)

    site = Site(tmp_path, 23, 5, 2)
    site.windows = Windows(Watched())
    site.take()
    assert written == [True, False]  # that it was committed, the next task says again


def test_the_receipt_of_another_task_moves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, 23, 5, 2)
    lost = site.begin(site.next())
    site.windows.commit(site.task(99))
    assert site.begin(site.next()) == lost


def test_a_disk_that_cannot_be_written_does_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "windows").write_text("in the way")
    site = Site(tmp_path, 23, 5, 2)
    assert len(flat([site.take(), site.take(), site.take()])) == 23
    assert "a restart would lose the place in the data" in caplog.text


def test_old_jobs_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    site = Site(tmp_path, 23, 5, 2)
    for number in range(6):
        task = site.task(1).model_copy(update={"job": JobId(f"j{number}")})
        site.begin(task)
        site.windows.commit(task)
    assert sorted(path.stem for path in (tmp_path / "windows").iterdir()) == ["j3", "j4", "j5"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "windows").iterdir())


def test_jobs_that_were_not_heard_of_for_the_longest_time_are_forgotten_in_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    files = module.JobFiles(DiskFiles(tmp_path / "windows"), Place, "the place in the data")
    for number, name in enumerate(("j1", "j2", "j3", "j1", "j4")):
        files.put(JobId(name), Place(seed=number), durable=False)
    assert [name for name in ("j1", "j2", "j3", "j4") if JobId(name) in files] == ["j1", "j3", "j4"]
    assert sorted(path.stem for path in (tmp_path / "windows").iterdir()) == ["j1", "j3", "j4"]


def test_a_job_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", 23, 5, 2)
    with pytest.raises(InvalidInput, match="is not a job id"):
        site.begin(site.next().model_copy(update={"job": JobId("../escape")}))


# Training on windows.


def test_a_function_of_the_apps_own_gets_a_window_of_several_passes_pass_by_pass(tmp_path: Path) -> None:
    """However many steps are asked for, it is handed no more examples at a time than the site has."""
    seen: list[list[int]] = []
    notes: list[tuple[int, int]] = []
    data = Examples(np.arange(7, dtype=np.float32).reshape(7, 1), np.zeros(7, np.int64))

    def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> dict[str, np.ndarray]:
        assert (run.epochs, run.steps) == (1, 0)
        seen.append(run.examples.x[:, 0].astype(int).tolist())
        run.progress(1, 0.5)
        return {"w": arrays["w"] + len(run.examples)}

    app = App(model=dict, classes=2, train=train, evaluate=lambda *_: Evaluation(n=0, loss_sum=0.0))
    site = Site(tmp_path, 7, 2, batches=1)
    task = site.next(steps=9)
    assert isinstance(task.work, Train)
    window = open_window(Place(seed=1, row=4), 5, 7, task.work)
    made, facts = train_own(
        app,
        task,
        task.work,
        5,
        {"w": np.zeros(1)},
        data,
        lambda epoch, steps, _: notes.append((epoch, steps)),
        Drag(1.0, Event()),
        window,
    )
    assert [len(rows) for rows in seen] == [
        3,
        7,
        6,
    ]  # the rest of a pass, a whole one, and three batches of the next
    assert [row for rows in seen for row in rows] == flat([drawn(window)])
    assert made["w"] == 16
    assert (facts["n_used"], facts["steps"], facts["epochs"]) == (16, 9, pytest.approx(16 / 7))
    assert notes == [(1, 2), (1, 6), (1, 9)]


def test_a_function_of_the_apps_own_does_not_train_for_more_steps_than_an_update_can_have(
    tmp_path: Path,
) -> None:
    rows = STEPS // EPOCHS + 1
    data = Examples(np.zeros((rows, 1), np.float32), np.zeros(rows, np.int64))

    def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> dict[str, np.ndarray]:
        raise AssertionError("it has trained for nothing")

    app = App(model=dict, classes=2, train=train, evaluate=lambda *_: Evaluation(n=0, loss_sum=0.0))
    task = Site(tmp_path, 7, 1, batches=1).next()
    assert isinstance(task.work, Train)
    work = task.work.model_copy(update={"epochs": EPOCHS, "batches": 0})
    with pytest.raises(Refused, match=f"at most {STEPS} are allowed"):
        train_own(app, task, work, 5, {}, data, lambda *_: None, Drag(1.0, Event()), None)


def test_a_window_of_many_batches_is_trained_on_without_holding_a_loss_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Train(model=ModelKey("m"), version=0, epochs=1, steps=23, batch_size=2, optimizer=OptimizerSpec())
    window = open_window(Place(seed=1), 1, 7, work)
    app = App(model=lambda: torch.nn.Linear(2, 2), classes=2)
    data = examples(7)
    tensors = Tensors(torch.from_numpy(data.x), torch.from_numpy(data.y))
    found = []
    for held in (4096, 5):
        monkeypatch.setattr(trainer, "HELD", held)
        torch.manual_seed(0)
        network = torch.nn.Linear(2, 2)
        found.append(
            trainer.train(app, network, tensors, work, 1, lambda *_: None, lambda: False, window=window)
        )
    assert found[0].n_used == found[1].n_used == len(flat([drawn(window)]))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-12)


def test_the_mean_of_squares_is_the_same_however_few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.tensor(float(n), dtype=torch.float64) for n in range(23)]
    monkeypatch.setattr(importance, "HELD", 5)
    mean = importance.Mean()
    assert mean.value() is None
    for value in values:
        mean.add([value])
    assert mean.value() == pytest.approx(11)
    assert mean.pending < 5
