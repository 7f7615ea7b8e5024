"""Sites that come and go in virtual time; the clock is that of `test_clock`."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.job.simulate import RandomAvailability
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import SiteName
from hansa.common.values.views import JobView
from hansa.simulation.clock.agenda import SECOND
from hansa.simulation.clock.availability import Random, Span, availability_of, read_spans
from tests.unit.simulation.test_clock import ASYNC, schedule, simulated

NAMES = [SiteName(name) for name in ("a", "b", "c")]


def run(folder: Path, lines: str, factors: tuple[float, ...] = (1, 2, 4), **job: Any) -> JobView:
    folder.mkdir(exist_ok=True)
    file = folder / "here.csv"
    file.write_text(f"site,from,to\n{lines}")
    return simulated(folder, factors, simulate={"availability": str(file)}, **job)


def test_a_task_in_hand_is_lost_and_sent_again_when_the_site_is_back(tmp_path: Path) -> None:
    view = run(tmp_path, "b,0,0.2\nb,0.5,\n", **ASYNC, factors=(1, 2, 9), pace={"updates": 5})
    # a delivers 160, 320, 480 and 640 ms after the first tasks, which are issued at 60 ms. b would deliver at
    # 320, but leaves at 200. At 500 it gets the same task again, from version 0, and delivers at 760.
    order = [
        (entry.seconds, entry.updates[0].site, entry.updates[0].staleness[0]) for entry in view.history[1:]
    ]
    assert order == [
        (0.22, "a", 0),
        (0.38, "a", 0),
        (0.54, "a", 0),
        (0.7, "a", 0),
        (0.76, "b", 4),
    ]


def test_rounds_go_on_without_a_site_that_leaves_until_it_is_back(tmp_path: Path) -> None:
    view = run(tmp_path, "c,0,0.3\nc,0.6,\n", rule="fedavg", pace={"rounds": 4}, sites={"min": 2})
    # Round 1 begins at 60 ms: a delivers at 220 and b at 320; c left at 300. Round 2 takes 260 ms without c,
    # until 580; so does round 3, which begins before c is back. Round 4 takes the 460 ms that c needs.
    assert schedule(view)[1:] == [
        (0.32, {"a": 4, "b": 4}),
        (0.58, {"a": 4, "b": 4}),
        (0.84, {"a": 4, "b": 4}),
        (1.3, {"a": 4, "b": 4, "c": 4}),
    ]
    assert view.history[1].lost == {"c": "the site left"}
    assert not view.history[2].lost


def test_a_site_may_come_later(tmp_path: Path) -> None:
    view = run(tmp_path, "c,0.07,\n", rule="fedavg", pace={"rounds": 2}, sites={"min": 2})
    assert [sorted(entry.steps) for entry in view.history[1:]] == [["a", "b"], ["a", "b", "c"]]


def test_an_update_that_arrives_when_its_site_leaves_counts(tmp_path: Path) -> None:
    # Version 0 takes a nanosecond, so b's update arrives at 320 ms and a nanosecond.
    lines = "b,0,0.320000001\n"
    view = run(tmp_path / "counts", lines, **ASYNC, pace={"updates": 2})
    assert [entry.updates[0].site for entry in view.history[1:]] == ["a", "b"]
    view = run(tmp_path / "late", lines.replace("1\n", "0\n"), **ASYNC, pace={"updates": 2})
    assert [entry.updates[0].site for entry in view.history[1:]] == ["a", "a"]


def test_what_only_the_learner_has_in_memory_is_lost_when_it_stops(tmp_path: Path) -> None:
    train = {"batch_size": 10, "optimizer": {"lr": 0.1, "momentum": 0.9}}
    jobs: dict[str, Any] = {"rule": "fedavg", "pace": {"rounds": 2}, "app": "network", "factors": (1, 1, 1)}

    def digests(folder: str, lines: str, keep: bool) -> list[str]:
        view = run(tmp_path / folder, lines, train=train | {"keep_optimizer": keep}, **jobs)
        return [entry.digest for entry in view.history]

    # Round 2 begins at 220 ms; at 230 all sites stop and start again, and forget their momentum.
    again = "".join(f"{site},0,0.23\n{site},0.23,\n" for site in NAMES)
    kept, forgotten = digests("kept", "", keep=True), digests("new", "", keep=False)
    assert kept[:2] == forgotten[:2]
    assert kept[2] != forgotten[2]
    assert digests("again", again, keep=True) == forgotten


def test_a_job_whose_sites_do_not_come_back_fails_after_its_wait(tmp_path: Path) -> None:
    lines = "".join(f"{site},0,0.1\n" for site in NAMES)
    with pytest.raises(AssertionError, match="did not come back in 5 s: a, b, c"):
        run(tmp_path, lines, rule="fedavg", sites={"min": 1, "wait": 5})


def test_chance_depends_on_seed_and_site_alone() -> None:
    spec = RandomAvailability(kind="random", up=30, down=10)
    names = [SiteName(f"s{number}") for number in range(200)]
    availability = availability_of(spec, names, 5)
    assert availability.first(3) == Random(spec, 5).first(3)
    here = total = 0
    for site in range(len(names)):
        span = availability.first(site)
        end = 0
        for _ in range(20):
            assert span is not None
            assert span.end is not None
            assert end <= span.begin < span.end
            here, end = here + span.end - span.begin, span.end
            span = availability.after(site, span)
        total += end
    assert 0.72 < here / total < 0.78  # 30 of 40 seconds
    at_first = [availability.first(site).begin == 0 for site in range(len(names))]  # type: ignore[union-attr]
    assert 130 < sum(at_first) < 170
    assert at_first != [Random(spec, 6).first(site).begin == 0 for site in range(len(names))]


def test_times_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "here.csv"
    file.write_text('site, from, to\nb, 10, 20.5\n\nb,0,1\n"a",3,\n')
    assert read_spans(file, NAMES) == {
        0: [Span(3 * SECOND, None, 0)],
        1: [Span(0, SECOND, 0), Span(10 * SECOND, 20_500_000_000, 1)],
    }


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["line 1: write the names of the columns, site,from,to"]),
        ("a,0,1\n", ["line 1: write the names of the columns, site,from,to"]),
        ("site,from,to\nd,0,1\nbb,0,1\n", ["line 2: 'd' is not a site of this job", "line 3: 'bb' is not a"]),
        ("site,from,to\na,5,4\n", ["line 2: to (4) must be later than from (5)"]),
        ("site,from,to\na,4,4\n", ["line 2: to (4) must be later than from (4)"]),
        ("site,from,to\na,-1,4\n", ["line 2: from: '-1' is not a number of seconds from 0 to 1e+09"]),
        ("site,from,to\na,x,4\na,0,nan\n", ["line 2: from: 'x' is not a", "line 3: to: 'nan' is not a"]),
        ("site,from,to\na,1\n", ["line 2: 2 fields; write site,from,to"]),
        (
            "site,from,to\na,0,10\nb,0,1\na,8,12\na,9,10\n",
            ["line 4: the site is already connected at that time, by line 2", "line 5: the site is already"],
        ),
        ('site,from,to\na,"0,1\n', ["line 2: this is not CSV: unexpected end of data"]),
        ("site,from,to\n" + "x,0,1\n" * 25, ["line 2: 'x'", *(["line "] * 19), "5 more lines are wrong"]),
    ],
)
def test_every_wrong_line_of_a_file_is_named(text: str, problems: list[str], tmp_path: Path) -> None:
    file = tmp_path / "here.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_spans(file, NAMES)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(str(file))
        assert problem in line


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes", "nothing"):
        with pytest.raises(InvalidInput, match=f"simulate.availability: .*{name} cannot be read"):
            read_spans(tmp_path / name, NAMES)
