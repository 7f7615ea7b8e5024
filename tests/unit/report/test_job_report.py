"""The report of a job: complete, inert, self-contained, and small however long the job was."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.report.job import job_page, sections
from hansa.common.report.layout import ROWS
from hansa.common.report.material import Material, material_of
from hansa.common.report.sites import cells, rounds_by_site
from hansa.common.ui.job.job_documents import details
from hansa.common.values.documents import written
from hansa.common.values.history import Update
from hansa.common.values.views import JobView
from tests.unit.drawing.test_markup import EVIL, QUOTES, Reader
from tests.unit.report.jobs import SITES, eventful, job, version


def report(view: JobView) -> str:
    """Return a job's report."""
    return job_page(Material(view))


def titles(view: JobView) -> list[str]:
    """Return the titles of the sections that have something in them."""
    return [section.title for section in sections(view) if section.parts]


@pytest.mark.parametrize("name", [EVIL, QUOTES])
def test_text_of_others_is_inert_everywhere(name: str) -> None:
    read = Reader(report(eventful(name)))
    assert not {"script", "img", "iframe", "link", "object", "form"} & set(read.tags)
    assert {name for name, _ in read.attributes if name.startswith("on") or name in {"src", "style"}} == set()
    links = {value or "" for name, value in read.attributes if name == "href"}
    assert links
    assert all(link.startswith("#") for link in links)
    assert read.text.count("alert(1)") > 20


def test_a_report_fetches_nothing() -> None:
    page = report(eventful("west"))
    assert not re.search(r"https?:|url\(|@import|@font-face", page)
    assert "default-src 'none'" in page


def test_a_report_has_a_section_for_all_that_a_job_has() -> None:
    assert titles(eventful("west")) == [
        "How the model learned",
        "What the model confuses",
        "What the sites contributed",
        "Scores of the updates",
        "Groups of similar sites",
        "Layers and their divergence",
        "Models on their way from site to site",
        "What the rule reports",
        "Traffic",
        "What happened besides",
    ]
    plain = [version(number) for number in (1, 2, 3)]
    assert titles(job(plain)) == [
        "How the model learned",
        "What the model confuses",
        "What the sites contributed",
        "Traffic",
    ]


def test_confusions_and_sites_with_few_examples_are_said_in_words() -> None:
    text = Reader(report(job([version(1), version(2)]))).text
    assert "Most often confused: 0 taken for 1 (5 of 25), 1 taken for 0 (3 of 35)." in text
    assert "Metrics of east, north, south are of fewer than 30 examples and jump by chance." in text
    many = job([version(1, confusion=[], labels=[[8, 2, 1], [0, 0, 0]])])
    assert "Precision: how often" in Reader(report(many)).text


def test_the_head_says_what_happened() -> None:
    text = Reader(report(job([version(1), version(2)]))).text
    assert "Three sites trained one model together in 2 rounds." in text
    assert "The model classifies 75.0% of 60 examples correctly." in text
    assert "2026-11-18 20:15 UTC" in text
    failed = job(
        [version(1)], status="failed", reason="south failed in round 2: no memory", metrics={}, examples=0
    )
    text = Reader(report(failed)).text
    assert "when the job failed after 1 round: south failed in round 2: no memory" in text
    assert "How good the model is was not measured" in text
    running = Reader(report(job([version(1, ["north"])], status="running"))).text
    assert "One site is training one model together, 1 round so far." in running


def test_validation_test_data_and_test_sites_are_told_apart_and_kept_models_are_named() -> None:
    found = {"metrics": {"accuracy": 0.5}, "examples": 4, "examples_total": 4}
    history = [version(number, test=found, validation=found) for number in (1, 2, 3)]
    text = Reader(report(job(history, best=2, kept=(2, 3)))).text
    for words in ("test data", "validation data", "test sites", "versions 2 (the best), 3"):
        assert words in text


def test_a_job_without_any_version_has_a_report() -> None:
    waiting = job([], status="waiting", reason="needs 3 connected sites")
    assert "No site has trained yet: needs 3 connected sites. The rule is" in Reader(report(waiting)).text


def test_reports_of_parts_that_look_like_those_of_others_are_not_trusted() -> None:
    odd = {"weigh": {"allocation": [1, 2]}, "layers": {"divergences": "none"}}
    short = {"weigh": {"allocation": {"north": [1.0]}, "shares": [0.5, 0.5], "weights": {}}}
    view = job([version(1, diagnostics=odd), version(2, diagnostics=short)])
    assert not {"Groups of similar sites", "Layers and their divergence"} & set(titles(view))


def test_versions_that_do_not_count_are_left_out_of_the_curves_and_that_is_said() -> None:
    view = job([version(1), version(2, covered=False), version(3)])
    assert "1 version left out: evaluated on too few of all examples to count." in Reader(report(view)).text


def test_the_report_of_a_long_job_with_many_sites_is_small_and_says_what_it_leaves_out() -> None:
    sites = [f"site-{number}" for number in range(60)]
    page = report(job([version(number, sites, lost={"site-1": "away"}) for number in range(1, 601)]))
    assert len(page) < 1_000_000
    assert "Each place stands for 2 points" in page
    assert "Each column stands for 4 rounds" in page
    assert f"The first {ROWS} of 600; report.json has all." in page


def test_the_report_of_a_folder_is_that_of_its_job(tmp_path: Path) -> None:
    view = eventful("west")
    document = details(view)
    (tmp_path / "report.json").write_text(written(document))
    assert report(view) in job_page(Material(material_of(json.loads(written(document)), "").view))
    said = CliRunner().invoke(hansa, ["job", "report", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert f"{tmp_path / 'report.html'}: " in said.output
    elsewhere = tmp_path / "board.html"
    assert CliRunner().invoke(hansa, ["job", "report", str(tmp_path), "-o", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_text() == (tmp_path / "report.html").read_text()
    assert set(SITES) <= set(re.findall(r"\w+", elsewhere.read_text()))


def test_what_is_not_a_report_is_refused(tmp_path: Path) -> None:
    refused = "not the report of a job"
    for name, text, why in (
        ("empty", None, "there is no report.json or sweep.json in it"),
        ("odd", '{"history": [1]}', refused),
        ("broken", "{", refused),
    ):
        folder = tmp_path / name
        folder.mkdir()
        if text is not None:
            (folder / "report.json").write_text(text)
        said = CliRunner().invoke(hansa, ["job", "report", str(folder)])
        assert (said.exit_code, said.output.count(why)) == (2, 1), said.output
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "report.json").write_text(written(details(job([version(1)]))))
    words = ["job", "report", str(tmp_path / "good"), "-o", str(tmp_path / "nowhere" / "x.html")]
    said = CliRunner().invoke(hansa, words)
    assert said.exit_code == 2
    assert "cannot be written: No such file or directory" in said.output


def test_the_strip_of_rounds_tells_late_updates_from_lost_ones() -> None:
    lost = {"south": "late: no update by the deadline of 5 s", "east": "the site left"}
    entry = version(1, ["north"], lost=lost)
    marks = {site: (bool(cell.lost), cell.late) for site, cell in cells(entry).items()}
    assert marks == {"north": (False, False), "south": (True, True), "east": (True, False)}
    text = Reader(report(job([entry, version(2)]))).text
    assert "Cross: its update was lost. Empty frame: it missed the deadline." in text
    assert "Cross" not in Reader(report(job([version(1), version(2)]))).text
    joined = Reader(report(job([version(at, ["north"], lost=lost) for at in range(1, 401)]))).text
    assert "orange of those that were late" in joined
    assert "Empty frame" not in joined
    assert "grey area" not in joined  # it belongs to many curves, and the contributions are none


def test_without_rounds_an_update_is_late_if_it_missed_more_than_a_turn() -> None:
    history = [
        version(number, updates=[Update(site=site, weight=0.5, steps=3, staleness=(behind, 9))])
        for number, (site, behind) in enumerate([("north", 0), ("south", 1), ("north", 2), ("east", 3)], 1)
    ]
    picture = rounds_by_site(job(history, unit="update"))
    assert picture is not None
    assert [each.get("d", "").count("M") for each in picture.iter("path") if each.get("class") == "late"] == [
        1
    ]
    assert "stale by 3 versions or more" in (picture.findtext("figcaption") or "")
