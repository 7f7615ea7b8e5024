"""The table of a sweep: on the screen, as files and as pictures."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.common.client.rows import Rows, check_table
from hansa.common.report.sweep import read_sweep, sweep_page
from hansa.common.values.errors import InvalidInput
from hansa.simulation.sweep.api import SweepRows
from hansa.simulation.sweep.curves import draw_curves, line_of
from hansa.simulation.sweep.export import document, write_summary, write_table
from hansa.simulation.sweep.progress import ending
from hansa.simulation.sweep.results import Result
from hansa.simulation.sweep.show import cells, print_results, remarks
from hansa.simulation.sweep.table import Table
from tests.unit.drawing.test_markup import Reader
from tests.unit.sweep.samples import plan_of, result_of


def small_table(seeds: int = 3, **fields: Any) -> Table:
    """Return the table of two rules, of which the second is ahead by 0.1 and more; its last run failed."""
    axes = {"rule": ["fedavg", "fedprox"], "train.epochs": [1, 2]}
    plan = plan_of(axes=axes, seeds=list(range(seeds)), baseline={"rule": "fedavg"}, target=0.5, **fields)
    results = []
    for at, run in enumerate(plan.runs):
        ahead = 0.1 * (run.spec.rule == "fedprox") * (1 + run.spec.seed)
        results.append(result_of(plan, at, [0.2 + ahead, 0.4 + ahead, 0.45 + ahead + run.spec.seed / 100]))
    results[-1] = Result(plan.runs[-1], "failed", "it was not to be")
    return Table(plan, results)


def test_rows_have_means_and_margins_to_the_row_with_the_same_other_values() -> None:
    first, _, third, fourth = small_table().rows
    final = first.cells["accuracy"]["final"]
    assert final.summary is not None
    assert (final.summary.n, final.margin, first.is_baseline) == (3, None, True)
    assert final.summary.mean == pytest.approx(0.46)
    ahead = third.cells["accuracy"]["final"].margin
    assert ahead is not None
    assert (ahead.n, ahead.p) == (3, 0.25)
    assert (ahead.mean, ahead.least, ahead.most) == pytest.approx((0.2, 0.1, 0.3))
    without_one = fourth.cells["accuracy"]["final"].margin
    assert without_one is not None
    assert without_one.n == 2
    assert without_one.mean == pytest.approx(0.15)
    assert (fourth.count("completed"), fourth.count("failed")) == (2, 1)


def test_the_screen_shows_what_does_not_exist_as_such() -> None:
    columns, rows = cells(small_table(), "accuracy")
    shown = [dict(zip(columns, row, strict=True)) for row in rows]
    assert shown[0] | {"mean of curve": ""} == {
        "rule": "fedavg",
        "train.epochs": "1",
        "runs": "3",
        "final": "0.4600 ± 0.0100",
        "margin (range)": "baseline",
        "p": "–",
        "mean of curve": "",
        "last 5": "0.3533 ± 0.0033",
        "spread": "0.0424 ± 0.0071",
        "rounds to 0.5": "not reached",
        "bytes to 0.5": "not reached",
    }
    assert shown[2]["margin (range)"] == "+0.2000 (+0.1000 to +0.3000)"
    assert shown[2]["p"] == "0.25"
    assert shown[2]["rounds to 0.5"] == "1.67 (1 to 2)"
    assert shown[3]["runs"] == "2 of 3"


def test_the_compared_measure_comes_first() -> None:
    columns, rows = cells(small_table(compare="mean"), "accuracy")
    assert columns[3:5] == ["mean of curve", "margin (range)"]
    assert rows[0][3].startswith("0.3533")


def test_three_seeds_are_said_to_show_nothing_and_failures_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_results(small_table())
    shown = capsys.readouterr().out
    assert "3 pairs cannot show significance: the smallest p that they can have is 0.25" in shown
    assert "failed: rule=fedprox, train.epochs=2, seed=2: it was not to be" in shown
    assert not any("cannot show" in line for line in remarks(small_table(seeds=6)))
    assert any("of a single pair" in line for line in remarks(small_table(seeds=1)))


def test_a_sweep_without_results_has_a_table_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(seeds=[1, 2])
    print_results(Table(plan, [Result(run, "missing") for run in plan.runs]))
    shown = capsys.readouterr().out
    assert "no run has metrics yet" in shown
    assert "2 runs of 2 missing" in shown


def test_results_of_different_versions_of_hansa_are_noticed() -> None:
    table = small_table()
    table.results = (*table.results, Result(table.results[0].run, "completed", hansa="9"))
    assert any("different versions of Hansa: 0, 9" in line for line in remarks(table))


def test_progress_tells_how_a_run_ended_with_the_metrics_that_are_compared() -> None:
    plan = plan_of(seeds=[1])
    result = result_of(plan, 0, [0.4, 0.5], {"loss": [0.9, 0.8], "micro_f1": [0.1, 0.2]})
    assert ending(result, plan.spec) == "seed=1: accuracy 0.5000  (1.5 s)"
    assert ending(result, plan_of(metrics=["loss", "micro_f1"]).spec).endswith(
        ": loss 0.8000  micro_f1 0.2000  (1.5 s)"
    )
    assert ending(Result(plan.runs[0], "completed"), plan.spec) == "seed=1: no metrics  (0.0 s)"
    assert ending(Result(plan.runs[0], "failed", "a\nb"), plan.spec) == "seed=1: failed: a b"


def test_sweep_json_has_everything(tmp_path: Path) -> None:
    table = small_table()
    write_summary(table, tmp_path)
    whole = json.loads((tmp_path / "sweep.json").read_text())
    assert whole["hansa"] == hansa.__version__
    assert whole["baseline"] == {"rule": "fedavg"}
    assert "sign-flip" in whole["test"]
    assert len(whole["runs"]) == 12
    assert [len(run["versions"]) for run in whole["runs"]] == [3] * 11 + [0]
    assert whole["runs"][-1]["reason"] == "it was not to be"
    assert whole["runs"][-1]["measures"]["accuracy"]["final"] is None
    row = whole["rows"][2]
    assert row["combination"] == {"rule": "fedprox", "train.epochs": "1"}
    assert row["metrics"]["accuracy"]["final"]["margin"]["p"] == 0.25
    assert whole["rows"][0]["metrics"]["accuracy"]["rounds_to_target"] is None
    assert "versions" not in document(table, with_versions=False)["runs"][0]


def test_tables_have_a_row_for_each_run_and_for_each_version(tmp_path: Path) -> None:
    write_table(small_table(), tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as file:
        runs = list(csv.DictReader(file))
    with (tmp_path / "all-versions.csv").open() as file:
        versions = list(csv.DictReader(file))
    assert (len(runs), len(versions)) == (12, 33)
    assert (runs[0]["rule"], runs[0]["train.epochs"], runs[0]["seed"]) == ("fedavg", "1", "0")
    assert (runs[0]["accuracy_final"], runs[0]["accuracy_best"], runs[0]["bytes_up"]) == ("0.45", "", "300")
    assert (runs[-1]["status"], runs[-1]["accuracy_final"], runs[-1]["rounds"]) == ("failed", "", "")
    assert (versions[2]["version"], versions[2]["accuracy"]) == ("3", "0.45")


def test_parquet_has_the_same_with_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    write_table(small_table(), tmp_path / "all.parquet")
    runs = parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert runs["seed"][:2] == [0, 0]
    assert runs["accuracy_final"][-1] is None
    assert parquet.read_table(tmp_path / "all-versions.parquet").num_rows == 33


def test_an_axis_of_numbers_and_words_is_a_column_of_words(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    plan = plan_of(axes={"data.test": [0.2, None]})
    table = Table(plan, [Result(run, "missing") for run in plan.runs])
    write_table(table, tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pydict()["data.test"] == [0.2, None]


def test_a_table_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"the name must end in \.csv or \.parquet"):
        check_table(tmp_path / "a.txt")
    with pytest.raises(InvalidInput, match="there is no folder"):
        check_table(tmp_path / "no" / "a.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput, match=r"Parquet needs pyarrow: pip install 'hansa\[data\]'"):
        check_table(tmp_path / "a.parquet")


def test_curves_are_means_with_bands_over_the_versions_that_all_have() -> None:
    plan = plan_of(seeds=[0, 1, 2])
    results = [result_of(plan, 0, [0.1, 0.5, 0.6]), result_of(plan, 1, [0.3, 0.7])]
    results.append(Result(plan.runs[2], "failed"))
    line = line_of("a", results, "accuracy", lambda version: version.bytes_up)
    assert line is not None
    assert (line.x, line.least, line.most, line.repeated) == ([100, 200], [0.1, 0.5], [0.3, 0.7], True)
    assert line.mean == pytest.approx([0.2, 0.6])
    assert line_of("a", results, "loss", lambda version: version.round) is None


def test_curves_are_drawn_by_round_and_by_bytes(tmp_path: Path) -> None:
    files = draw_curves(small_table(title="Two rules"), tmp_path)
    assert [path.name for path in files] == ["accuracy-by-round.svg", "accuracy-by-bytes.svg"]
    text = (tmp_path / "accuracy-by-round.svg").read_text()
    for words in ("Two rules", "fedprox", "train.epochs = 2", "Mean over 3 seeds"):
        assert words in text
    assert draw_curves(Table(plan_of(), []), tmp_path) == []


def test_the_report_of_a_sweep_has_its_tables_curves_and_runs(tmp_path: Path) -> None:
    write_summary(small_table(title="<b>Two</b> rules"), tmp_path)
    page = (tmp_path / "report.html").read_text()
    read = Reader(page)
    assert "b" not in read.tags
    links = [value for name, value in read.attributes if name == "href" and value and "runs/" in value]
    assert len(links) == read.text.count("completed") - 1 > 0
    for words in ("<b>Two</b> rules", "margin (range)", "accuracy by bytes", "train.epochs = 2", "sign-flip"):
        assert words in read.text
    assert sweep_page(read_sweep(tmp_path)) == page
    (tmp_path / "sweep.json").write_text('{"sweep": 1}')
    with pytest.raises(InvalidInput, match="not the results of a sweep of this version"):
        read_sweep(tmp_path)


def test_python_gets_flat_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SweepRows(small_table(), tmp_path)
    assert [(row["rule"], row["completed"], row["failed"]) for row in rows] == [
        ("fedavg", 3, 0),
        ("fedavg", 3, 0),
        ("fedprox", 3, 0),
        ("fedprox", 2, 1),
    ]
    assert rows[2]["accuracy_final_margin"] == pytest.approx(0.2)
    assert (rows[0]["accuracy_best"], rows[0]["accuracy_final_p"]) == (None, None)
    assert len(rows.runs) == 12
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="a DataFrame needs pandas"):
        Rows(rows).to_pandas()
