"""The sites' files: their contents, and `hansa data`, which writes and describes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hansa.common.cli import hansa
from hansa.common.data.division import divide
from hansa.common.data.examples import load_npz
from hansa.common.data.shards import read_shards, write_pooled, write_shards
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import InvalidData, InvalidInput, Taken
from tests.hostile_text import NASTY, require_clean
from tests.published import write_mnist


def cli(*words: str, code: int = 0, **env: str | None) -> Result:
    done = CliRunner().invoke(hansa, ["data", *words], env={"HANSA_DATA": None, "HANSA_CONFIG": None} | env)
    assert done.exit_code == code, done.output
    return done


def spec(**words: Any) -> DataSpec:
    return DataSpec.model_validate({"source": "digits"} | words)


def write_wards(path: Path) -> None:
    rng = np.random.default_rng(1)
    x = np.arange(100, dtype=np.float32).reshape(100, 1)
    np.savez(path, x=x, y=rng.integers(0, 3, 100), ward=np.repeat(["north", "south", "east"], [50, 30, 20]))


def test_natural_sites_bear_their_names_and_test_on_a_fifth_of_their_own(tmp_path: Path) -> None:
    write_wards(tmp_path / "all.npz")
    paths = write_shards(
        spec(source=str(tmp_path / "all.npz"), partition={"by": "ward"}), None, 1, tmp_path / "out"
    )
    assert [path.name for path in paths] == ["east.npz", "north.npz", "south.npz"]
    for path, low, high in zip(paths, (80, 0, 50), (100, 50, 80), strict=True):
        mine, held = load_npz(path, "train"), load_npz(path, "test")
        assert sorted([*mine.x.ravel(), *held.x.ravel()]) == list(range(low, high))
        for label in range(3):
            count = int((mine.y == label).sum() + (held.y == label).sum())
            assert (held.y == label).sum() == max(round(0.2 * count), 1), "a fifth of each class"
    assert len(load_npz(tmp_path / "out" / "test.npz", "train")) == sum(
        len(load_npz(path, "test")) for path in paths
    )


def test_what_was_said_last_is_for_testing(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    text = "".join(chr(97 + at % 26) for at in range(180))
    speeches = [["mac", "FIRST", text], ["mac", "SECOND", text.upper()]]
    (tmp_path / "shakespeare" / "shakespeare.json").write_text(json.dumps({"speeches": speeches}))
    division = divide(spec(source="shakespeare", partition={"by": "role"}), None, 1, tmp_path)
    assert [shard.name for shard in division.shards] == ["mac-FIRST", "mac-SECOND"]
    for shard in division.shards:
        assert (len(shard.rows), len(shard.test)) == (80, 20)
        assert shard.rows.max() < shard.test.min()


def test_a_share_can_be_held_out_or_nothing(tmp_path: Path) -> None:
    half = divide(spec(test=0.5), 4, 1)
    assert len(half.test) == sum(len(shard.test) for shard in half.shards) == 898
    assert half.matrix.sum() == 899
    none = write_shards(spec(test=0), 4, 1, tmp_path / "out")
    assert not (tmp_path / "out" / "test.npz").exists()
    with np.load(none[0]) as held:
        assert set(held.files) == {"x", "y"}
    assert read_shards(tmp_path / "out").matrix.sum() == 1797


def test_labels_that_are_not_classes_can_be_split_at_random(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(50.0), y=np.arange(50) / 7)
    division = divide(spec(source=str(tmp_path / "all.npz")), 4, 1)
    assert division.matrix.tolist() == [[10], [10], [10], [10]]
    with pytest.raises(InvalidInput, match="labels are float64, not integers"):
        divide(spec(source=str(tmp_path / "all.npz"), partition={"classes": 2}), 4, 1)


@pytest.mark.parametrize(
    "words", [{"classes": 1}, {"kind": "dirichlet"}, {"labels": 2}, {"kind": "imbalance"}]
)
def test_an_empty_class_is_refused_by_schemes_that_part_by_class(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(90.0), y=np.array([0, 1, 3])[np.arange(90) % 3])
    with pytest.raises(InvalidData, match="class 2 is empty: labels run from 0 to 3"):
        divide(spec(source=str(tmp_path / "all.npz"), partition=words), 3, 1)
    assert divide(spec(source=str(tmp_path / "all.npz")), 3, 1).names == ("0", "1", "3")


def test_a_named_class_without_examples_is_empty_too(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", "", train=9, test=0)
    with pytest.raises(InvalidData, match=r"class 9 \(9\) is empty"):
        divide(spec(source="mnist", partition={"classes": 3}), 3, 1, tmp_path)


def test_a_scheme_may_change_the_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (80, 3, 2, 2)).astype(np.uint8)
    np.savez(tmp_path / "all.npz", x=x, y=np.arange(80) % 4)
    words = {"kind": "color-skew", "first": 1, "second": 0}
    paths = write_shards(spec(source=str(tmp_path / "all.npz"), partition=words), 2, 1, tmp_path / "out")
    gray, coloured = (load_npz(path, "train").x for path in paths)
    assert (gray[:, 0] == gray[:, 1]).all()
    assert not (coloured[:, 0] == coloured[:, 1]).all(axis=(1, 2)).any()


def test_a_partition_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    words = ("partition", "digits", "--sizes", "powerlaw(1.5)", "--classes", "8x1,5x2,4x2", "--sites", "5")
    for name in ("one", "two"):
        cli(*words, "--seed", "7", "--out", str(tmp_path / name))
    cli(*words, "--seed", "8", "--out", str(tmp_path / "three"))
    files = {
        name: sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("one", "two", "three")
    }
    assert files["one"] == files["two"] == files["three"]
    for file in files["one"]:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert (tmp_path / "one" / "site-1.npz").read_bytes() != (tmp_path / "three" / "site-1.npz").read_bytes()


def test_a_record_with_many_parameters_can_be_described(tmp_path: Path) -> None:
    words = ("--kind", "dirichlet", "--set", "moves.stop_band=[1.05,1.2]", "--set", "moves.search=10")
    cli("partition", "digits", *words, "--out", str(tmp_path / "out"))
    assert "stop_band=[1.05, 1.2]" in cli("describe", str(tmp_path / "out")).output


def test_the_record_says_how_a_partition_was_made(tmp_path: Path) -> None:
    cli(
        "partition",
        "digits",
        "--sizes",
        "skewed",
        "--sites",
        "6",
        "--folds",
        "3",
        "--out",
        str(tmp_path / "out"),
    )
    record = json.loads((tmp_path / "out" / "partition.json").read_text())
    assert (record["source"], record["seed"], record["scheme"]["kind"]) == ("digits", 1990, "metis")
    assert (record["test_share"], record["label"]) == (None, None)
    assert np.array(record["matrix"]).sum(axis=1).tolist() == [site["examples"] for site in record["sites"]]
    assert all(len(site["blake3"]) == 64 for site in record["sites"])
    assert [fold["test"] for fold in record["folds"]] != []
    assert record["placement"]["site-1"] == "fast"
    for site in record["sites"]:
        held = load_npz(tmp_path / "out" / site["file"], "train")
        assert np.bincount(held.y, minlength=10).tolist() == record["matrix"][record["sites"].index(site)]


def test_a_partition_is_described_with_and_without_its_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("partition", "digits", "--labels", "4", "--out", str(out))
    told = json.loads(cli("describe", str(out), "--json").output)
    assert told["measures"]["classes_per_site"] == 4
    shown = cli("describe", str(out)).output
    assert "digits: non-iid-l, labels 4, seed 1990" in shown
    assert "C-score     1.200" in shown
    site = out / "site-1.npz"
    before = site.read_bytes()
    site.write_bytes((out / "site-2.npz").read_bytes())
    assert (
        "site-1.npz: not the file that partition.json describes" in cli("describe", str(out), code=2).output
    )
    site.unlink()
    assert cli("describe", str(out)).output == shown, "files that have gone to their sites are not missed"
    site.write_bytes(before)
    (out / "partition.json").unlink()
    assert json.loads(cli("describe", str(out), "--json").output)["matrix"] == told["matrix"]
    assert "no partition.json and no .npz files" in cli("describe", str(tmp_path / "no"), code=2).output
    for odd in (
        '{"matrix": 3}',
        '{"matrix": [[1]], "sites": [], "classes": [], "source": "", "scheme": [], "seed": 1}',
    ):
        (out / "partition.json").write_text(odd)
        assert "not a partition's record" in cli("describe", str(out), code=2).output


def test_a_record_of_somebody_else_prints_clean(tmp_path: Path) -> None:
    record = {
        "source": NASTY,
        "seed": NASTY,
        "scheme": {"kind": "iid"},
        "classes": [NASTY],
        "matrix": [[1], [1]],
    }
    sites = [{"site": NASTY}, {"site": 7}]
    (tmp_path / "partition.json").write_text(json.dumps(record | {"sites": sites}))
    require_clean(cli("describe", str(tmp_path)).output, "hansa data describe")


def test_examples_with_several_labels_are_not_counted_by_class_and_that_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1)), y=np.array([[0, 1], [1, 1]]))
    told = cli("describe", str(tmp_path), code=2).output
    assert (
        "a.npz: y has shape [2, 2] and holds int64; to count classes it needs an integer for each example"
        in told
    )


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_partition_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    cli("partition", "digits", "--kind", "mcmahan", "--sites", "100", "--out", str(tmp_path / "out"))
    for name in ("one", "two"):
        cli("describe", str(tmp_path / "out"), "--picture", str(tmp_path / f"{name}.{ending}"))
    drawn = (tmp_path / f"one.{ending}").read_bytes()
    assert drawn == (tmp_path / f"two.{ending}").read_bytes()
    if ending == "svg":
        for said in (b"digits: mcmahan", b"site-100", b"C-score"):
            assert said in drawn
    else:
        assert drawn.startswith(b"\x89PNG")
    refused = cli("describe", str(tmp_path / "out"), "--picture", str(tmp_path / "a.jpeg"), code=2)
    assert "the name of a picture must end in" in refused.output


def test_data_sets_and_schemes_are_listed(tmp_path: Path) -> None:
    shown = cli("list").output
    for said in (
        "fashion-mnist",
        "not here: https://github.com/zalandoresearch",
        "dirichlet",
        "Set HANSA_DATA",
    ):
        assert said in shown
    told = json.loads(cli("list", "--json", "--root", str(tmp_path)).output)
    assert {each["name"]: each["here"] for each in told["sets"]} == {
        each["name"]: each["name"] == "digits" for each in told["sets"]
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("digits", "--kind", "dirchlet"), 2, "there is no 'dirchlet' (did you mean 'dirichlet'"),
        (("digits", "--sites", "5000"), 2, "5000 sites cannot share 1438 examples"),
        (("digits", "--by", "writer"), 2, "there is no key 'writer'; this data set has no keys"),
        (("digits", "--features", "ink=1"), 2, "data.partition.features: there is no key 'ink'"),
        (
            ("digits", "--classes", "3", "--sites", "2"),
            2,
            "no partition with these sizes and class counts: site-1 needs",
        ),
        (("digits", "--set", "kind=feddaf", "--set", "etha=1"), 2, "unknown key (did you mean 'eta'?)"),
        (("digitss",), 2, "there is no data set 'digitss' (did you mean 'digits'?)"),
        (("mnist",), 1, "Set HANSA_DATA to the folder"),
        (("digits", "--folds", "6"), 2, "5 sites cannot make 6 folds"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = cli("partition", *words, "--out", str(tmp_path / "out"), code=code)
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert "not empty" in cli("partition", "digits", "--out", str(tmp_path), code=1).output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(Taken):
        write_shards(spec(), 3, 1, tmp_path)


def test_a_part_of_the_training_examples_has_the_classes_in_proportion_and_leaves_the_test_set_alone(
    tmp_path: Path,
) -> None:
    whole, part = (divide(spec(examples=count, sites=4), None, 1) for count in (None, 300))
    assert np.array_equal(part.test, whole.test)
    rows = np.sort(np.concatenate([shard.rows for shard in part.shards]))
    everything = np.concatenate([shard.rows for shard in whole.shards])
    assert len(rows) == len(set(rows)) == 300
    assert set(rows) <= set(everything)
    y = part.data.examples.y
    exact = np.bincount(y[everything]) * 300 / len(everything)
    assert (abs(np.bincount(y[rows]) - exact) < 1).all()
    again, other = (divide(spec(examples=300, sites=4), None, seed) for seed in (1, 2))
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(part.shards, again.shards, strict=True))
    assert set(np.concatenate([shard.rows for shard in other.shards])) != set(rows)
    write_shards(spec(examples=300, sites=4), None, 1, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "partition.json").read_text())["examples"] == 300


def test_more_examples_than_there_are_and_a_part_of_natural_sites_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"data.examples: 5000 are wanted, but the set has only 1438 for training"
    ):
        divide(spec(examples=5000), None, 1)
    write_wards(tmp_path / "all.npz")
    with pytest.raises(InvalidInput, match="natural splits rows by their key"):
        divide(spec(source=str(tmp_path / "all.npz"), partition={"by": "ward"}, examples=10), None, 1)
    done = cli("partition", "digits", "--examples", "50", "--out", str(tmp_path / "out"))
    assert "50 examples" in done.output


def test_the_data_of_all_sites_can_be_put_in_one_place(tmp_path: Path) -> None:
    """It has exactly the rows that the sites have, for training and for testing."""
    write_wards(tmp_path / "all.npz")
    wards = spec(source=str(tmp_path / "all.npz"), partition={"by": "ward"})
    parted = write_shards(wards, None, 3, tmp_path / "sites")
    (path,), fold = write_pooled(wards, None, 3, tmp_path / "central")
    assert (path.name, [*fold.train]) == ("central.npz", [each.stem for each in parted])
    with np.load(path) as whole:
        for name in ("x", "x_test"):
            rows = [float(value) for each in parted for value in np.load(each)[name].ravel()]
            assert sorted(rows) == whole[name].ravel().tolist()
    tests = [load_npz(tmp_path / folder / "test.npz", "train").x.tolist() for folder in ("central", "sites")]
    assert tests[0] == tests[1]
    with pytest.raises(Taken, match="not empty"):
        write_pooled(wards, None, 3, tmp_path / "central")
