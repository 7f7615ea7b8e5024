"""The chronicle: what happened in a job, in plain words, in order, and the same after a restart."""

from hansa.common.values.tasks import Evaluate, Train
from hansa.controller.engine.chronicle import PER_SITE
from tests.unit.engine.play import Play

SYNC = {"kind": "sync", "rounds": 2, "deadline": 60, "quorum": 2}


def told(play: Play) -> list[tuple[str, str]]:
    return [(entry.kind, entry.text) for entry in play.machine.state.chronicle]


def test_a_job_is_told_from_its_submission_to_its_end() -> None:
    play = Play(name="trial", pace=SYNC, sites={"min": 2})
    play.training("north", "south", "east")
    play.join("north", role="evaluator")
    tasks = play.tasks(Train)
    play.update(tasks["north"])
    play.update(tasks["east"])
    play.ring("round-1-1")
    play.merged()
    play.report(play.tasks(Evaluate)["north"], right=9)
    play.fail(play.tasks(Train)["south"], "out of memory")
    play.update(play.tasks(Train)["north"])
    play.update(play.tasks(Train)["east"])
    play.leave("east")
    play.merged()
    play.report(play.tasks(Evaluate)["north"], right=8)
    assert told(play) == [
        ("submitted", "job trial was submitted: rule fedavg, 2 rounds; it begins with 2 sites"),
        ("joined", "north joined with 10 examples"),
        ("joined", "south joined with 10 examples"),
        ("running", "the job begins: 2 sites can train"),
        ("joined", "east joined with 10 examples"),
        ("first-model", "north built the first model"),
        ("joined", "the evaluator of north joined"),
        ("merged", "round 1 merged: 2 of 3 sites; south was late"),
        (
            "evaluated",
            "version 1 evaluated: loss 1.0000, accuracy 0.9000, weighted_f1 0.9474 on 10 of 10 examples",
        ),
        ("failed", "south could not train: out of memory"),
        ("left", "east left"),
        ("merged", "round 2 merged: 2 of 3 sites; south: out of memory"),
        ("closing", "training is over: all 2 rounds are done; the last evaluation is awaited"),
        (
            "evaluated",
            "version 2 evaluated: loss 1.0000, accuracy 0.8000, weighted_f1 0.8889 on 10 of 10 examples",
        ),
        ("ended", "the job is completed: all 2 rounds are done"),
    ]
    entries = play.machine.state.chronicle
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.version for entry in entries if entry.kind == "evaluated"] == [1, 2]
    assert [entry.site for entry in entries if entry.kind == "failed"] == ["south"]


def test_updates_without_rounds_are_told_by_site() -> None:
    play = Play(rule="async-fedavg", pace={"kind": "async", "updates": 9})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.merged()
    play.update(tasks["b"])
    play.merged()
    texts = [text for kind, text in told(play) if kind == "merged"]
    assert texts == [
        "version 1 merged: the update of a",
        "version 2 merged: the update of b, up to 1 version behind",
    ]


def test_a_site_that_comes_and_goes_all_the_time_does_not_fill_the_chronicle() -> None:
    play = Play()
    for _ in range(3 * PER_SITE):
        play.join("a")
        play.leave("a")
    about = [text for _, text in told(play) if text.startswith("a ")]
    assert len(about) == PER_SITE
    assert about[-1].endswith("is not told before the next version)")


def test_what_sites_write_is_told_in_one_clean_line_of_bounded_length() -> None:
    play = Play()
    task = play.training("a", "b")["a"]
    play.fail(task, "x\n\x1b[31m" + "y" * 10_000)
    text = told(play)[-1][1]
    assert "\n" not in text
    assert "\x1b" not in text
    assert len(text) < 500
