"""The job file: what is accepted, and what the messages about the rest say."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hansa.common.cli import hansa
from hansa.common.job.check import parse_job
from hansa.common.job.file import apply_change, load_job, parse_yaml
from hansa.common.job.spec import JobSpec
from hansa.common.plugins.registry import kinds
from hansa.common.values.errors import InvalidJob
from hansa.controller.pacers.sync import Sync
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.fedavg import ByExamples, Equal, Uniform

MINIMAL = "app: app.py:app\n"


def _load(tmp_path: Path, text: str, *changes: str) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job(path, changes)


def _problems(tmp_path: Path, text: str, *changes: str) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        _load(tmp_path, text, *changes)
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


# What is accepted.


def test_an_app_is_all_a_job_needs(tmp_path: Path) -> None:
    spec = _load(tmp_path, MINIMAL)
    assert (spec.app, spec.name, spec.rule, spec.seed) == ("app.py:app", "job", "fedavg", 1990)
    assert (spec.train.epochs, spec.train.batch_size, spec.train.keep_optimizer) == (None, 32, False)
    usual = {"kind": "sgd", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "amsgrad": False}
    assert spec.train.optimizer.model_dump() == usual
    assert (spec.validation.fraction, spec.validation.stratified, spec.sites.min) == (0.05, True, 1)


def test_every_section_is_read(tmp_path: Path) -> None:
    text = """
name: fashion-1
seed: 7
app: hansa_apps.fashion:app
rule: fedavg
pace: {kind: sync, rounds: 3, deadline: 10, quorum: 2}
sample: {kind: uniform, fraction: 0.5}
weigh: {kind: equal}
train: {epochs: 4, batch_size: 100, optimizer: {kind: sgd, lr: 0.05, momentum: 0.75}}
validation: {fraction: 0.1, stratified: false}
evaluate: {every: 2}
sites: {min: 2, wait: 5, names: [a, b]}
stop: {seconds: 60, target: {metric: accuracy, value: 0.8}}
data: {source: digits, partition: {kind: iid}, sites: 3}
"""
    spec = _load(tmp_path, text)
    assert spec.train.optimizer.momentum == 0.75
    assert spec.sites.names == ("a", "b")
    assert spec.stop.target is not None
    assert spec.stop.target.value == 0.8
    rule = compose(spec)
    assert rule.pace == Sync(rounds=3, deadline=10, quorum=2)
    assert rule.sample == Uniform(fraction=0.5)
    assert rule.weigh == Equal()


def test_a_job_survives_the_journals_json(tmp_path: Path) -> None:
    spec = _load(tmp_path, MINIMAL + "pace: {rounds: 3}\nsites: {names: [a]}\nstop: {seconds: 5}\n")
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_first_model_is_expected_beside_the_job_file(tmp_path: Path) -> None:
    spec = _load(tmp_path, MINIMAL + "init: models/first.safetensors\n")
    assert spec.init == str(tmp_path / "models" / "first.safetensors")
    both = _load(tmp_path, MINIMAL + "init: first.safetensors\nreference: ../central.safetensors\n")
    assert both.init == str(tmp_path / "first.safetensors")
    assert both.reference == str(tmp_path.parent / "central.safetensors")
    assert _load(tmp_path, MINIMAL + "init: /abs/first.safetensors\n").init == "/abs/first.safetensors"


# What is refused.


def test_malformed_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, "name: x\napp: [unclosed\nrule: y\n")
    assert problem.startswith("job.yaml:3: not valid YAML: ")


@pytest.mark.parametrize(
    "text", ["a: b: c\n", "\tx: 1\n", "x: 'open\n", "x: *nobody\n", "---\na: 1\n---\nb: 2\n", "a: \x01\n"]
)
def test_whatever_is_not_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = _problems(tmp_path, text)
    assert "not valid YAML" in problem


def test_a_key_given_twice_is_refused_with_its_line_and_path(tmp_path: Path) -> None:
    text = MINIMAL + "train:\n  epochs: 1\n  batch_size: 2\n  epochs: 3\n"
    assert _problems(tmp_path, text) == ["job.yaml:5: train.epochs: given twice"]


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    text = MINIMAL + "train:\n  epoch: 3\nvalidaton: {}\n"
    assert _problems(tmp_path, text) == [
        "job.yaml:3: train.epoch: unknown key (did you mean 'epochs'?)",
        "job.yaml:4: validaton: unknown key (did you mean 'validation'?)",
    ]


def test_an_unknown_key_deep_inside_is_named_by_its_path(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, MINIMAL + "train: {optimizer: {kind: sgd, rate: 1}}\n")
    assert problem.startswith("job.yaml:2: train.optimizer.rate: unknown key")
    (problem,) = _problems(tmp_path, MINIMAL + "stop: {target: {metric: loss, valeu: 1, value: 2}}\n")
    assert problem == "job.yaml:2: stop.target.valeu: unknown key (did you mean 'value'?)"


def test_all_faults_are_reported_at_once_in_the_files_order(tmp_path: Path) -> None:
    text = """name: "no name!"
seed: -1
app: nowhere
train: {epochs: 0, batch_size: many}
validation: {fraction: 1}
pace: {rounds: none, qourum: 1}
extra: 1
"""
    problems = _problems(tmp_path, text)
    fields = [problem.split(": ")[1] for problem in problems]
    expected = "name seed app train.epochs train.batch_size validation.fraction pace.rounds pace.qourum extra"
    assert sorted(fields) == sorted(expected.split())
    lines = [int(problem.split(":")[1]) for problem in problems]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {epochs: many}", "train.epochs: input should be a valid integer"),
        ("train: {epochs: 1.5}", "train.epochs: input should be a valid integer"),
        ("train: 3", "train: should be a section of keys and values (given: 3)"),
        ("train: [1]", "train: should be a section of keys and values"),
        ("name: 5", "name: input should be a valid string"),
        ("sites: {names: a}", "sites.names: should be a list, as in [a, b] (given: 'a')"),
        ("sites: {names: [a, 1]}", "sites.names.1: input should be a valid string"),
        ("pace: sync", "pace: should be a section of keys and values, such as {kind: sync}"),
        ("layers: {kind: divide, order: a}", "layers.order: should be a list, as in [a, b] (given: 'a')"),
        (
            "stop: {target: {metric: wobble, value: 1}}",
            "stop.target: wobble: is more of it better, or less? Add mode: max or mode: min",
        ),
        (
            "stop: {patience: 0}",
            "stop.patience: give the number of versions to wait for a better one, 1 or more",
        ),
        ("stop: {patience: 2}\nkeep: {best: null}", "stop: patience: it waits for a better version"),
        ("keep: {last: 0}", "keep.last: the newest version is always kept, so give 1 or more"),
        ("keep: {every: 0}", "keep.every: give 1 to keep every version, 10 for every tenth"),
        ("keep: {best: {metric: loss, mode: max}}", "keep.best: loss is always better the smaller it is"),
        ("keep: {best: {mode: max}}", "keep.best: mode: max needs a metric"),
        ("keep: {bets: null}", "keep.bets: unknown key (did you mean 'best'?)"),
        ("stop: {target: {metric: loss}}", "stop.target.value: is required"),
        ("train: {optimizer: {lr: .nan}}", "train.optimizer.lr: "),
        ("train: {optimizer: {kind: adam, momentum: 0.5}}", "train.optimizer: momentum belongs to sgd"),
        ("train: {optimizer: {kind: muon}}", "train.optimizer.kind: muon cannot be used: it takes matrices"),
        ("train: {schedule: {kind: step, every: 3}}", "train.schedule: step needs factor"),
        ("train: {schedule: {kind: cosine, factor: 0.5}}", "train.schedule: cosine has no factor"),
        ("train: {batches: 3, accumulate: 2}", "train: accumulate does not go with batches"),
        ("train: {batches: 3, max_seconds: 2}", "train: max_seconds does not go with batches"),
        ("survey: {standardise: local, columns: true}", "survey.columns: input should be a valid integer"),
        ("data: {source: digits, sites: true}", "data.sites: input should be a valid integer"),
        ("data: {source: digits, examples: '5'}", "data.examples: input should be a valid integer"),
        ("weigh: {kind: fusion, refit: true}", "weigh.refit: input should be a valid integer"),
        (
            "data: {sites: 3}",
            "data: give source (a data set that is split across sites) or files (one for each site)",
        ),
        ("data: {source: digits, files: {a: a.csv}}", "data: source: it cannot be combined with files"),
        ("data: {files: {a: a.csv}, sites: 3}", "data: sites: it cannot be combined with files"),
        ("data: {files: {a: a.csv}, partition: {}}", "data: partition: it cannot be combined with files"),
        ("data: {files: {a: a.csv}, test: 0.5}", "data: test: it cannot be combined with files"),
        (
            "data: {files: {a: a.csv}, label: y}",
            "data: label: with files every site reads its own; name the column in",
        ),
        ("data: {files: {}}", "data.files: name at least one site, such as files: {ana: a.csv, ben: b.csv}"),
        ("data: {files: {../a: a.csv}}", "data.files: '../a' cannot be a site's name"),
        ("data: {files: [a.csv]}", "data.files: should be a section of keys and values"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_line(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = _problems(tmp_path, f"{MINIMAL}{text}\n")
    assert problem.startswith("job.yaml")
    assert said in problem


def test_a_missing_app_is_asked_for(tmp_path: Path) -> None:
    assert _problems(tmp_path, "name: x\n") == ["job.yaml: app: is required"]
    assert _problems(tmp_path, "") == ["job.yaml: app: is required"]


@pytest.mark.parametrize("app", ["app.py", ":app", "app.py:", "app.py:not-a-name", "''"])
def test_an_app_that_is_not_a_reference_is_refused(tmp_path: Path, app: str) -> None:
    (problem,) = _problems(tmp_path, f'app: "{app.strip(chr(39))}"\n')
    assert problem == "job.yaml:1: app: write path/to/app.py:attribute or package.module:attribute"


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n"])
def test_a_document_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = _problems(tmp_path, text)
    assert "expected a mapping" in problem


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="cannot be read: No such file"):
        load_job(tmp_path / "nothing.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidJob, match="not a text file"):
        load_job(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system ''",
        "!mine {a: 1}",
        "!!set {a, b}",
    ],
)
def test_yaml_tags_make_no_objects(tmp_path: Path, value: str) -> None:
    assert _problems(tmp_path, f"{MINIMAL}name: {value}\n")


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    (problem,) = _problems(tmp_path, MINIMAL + bomb)
    assert "too many fields" in problem


def test_an_alias_of_itself_is_refused(tmp_path: Path) -> None:
    assert len(_problems(tmp_path, MINIMAL + "data: &d {source: *d}\n")) == 1
    assert len(_problems(tmp_path, MINIMAL + "sites: {names: &n [*n]}\n")) == 1


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    assert len(_problems(tmp_path, "x: " + "[" * 5000)) == 1


@pytest.mark.parametrize("key", ["1", "null", "true", "1.5", "[a, b]", "{a: b}", "2001-01-01"])
def test_a_key_that_is_not_a_word_is_refused(tmp_path: Path, key: str) -> None:
    assert _problems(tmp_path, f"{MINIMAL}? {key}\n: 1\n")
    assert _problems(tmp_path, f"{MINIMAL}train:\n  ? {key}\n  : 1\n")


LONG = "1.5" + ":59" * 200  # sexagesimal: more than a float can hold


@pytest.mark.parametrize(
    "value",
    [
        *("2001-99-99", "!!int word", "!!float word", "!!bool word", "!!timestamp word"),
        *("!!int ''", "!!int _", "!!float ''", f"!!float {LONG}"),
    ],
)
def test_a_value_that_yaml_itself_cannot_make_is_refused(tmp_path: Path, value: str) -> None:
    assert _problems(tmp_path, f"{MINIMAL}name: {value}\n")
    assert _problems(tmp_path, MINIMAL, f"name={value}")


@pytest.mark.parametrize("value", ["2001-01-01", "!!set {a, b}", "!!binary /9g=", "2001-01-01T00:00:00Z"])
@pytest.mark.parametrize("place", ["name", "data.partition", "data.partition.a.b"])
def test_a_value_that_json_does_not_know_is_refused_wherever_it_stands(
    tmp_path: Path, value: str, place: str
) -> None:
    (problem,) = _problems(tmp_path, f"{MINIMAL}data: {{source: digits}}\n", f"{place}={value}")
    assert "which JSON does not have; if it is meant as text, put quotes around it" in problem


@pytest.mark.parametrize("key", ["null", "true", "1.5", ".nan", "2001-01-01"])
def test_a_key_that_json_would_make_another_of_is_refused_wherever_it_stands(
    tmp_path: Path, key: str
) -> None:
    (problem,) = _problems(tmp_path, f"{MINIMAL}data: {{source: digits, partition: {{x: {{{key}: 1}}}}}}\n")
    assert "as a key, a" in problem


@given(st.text(max_size=60))
def test_no_text_at_all_makes_the_parser_fail_in_any_other_way(text: str) -> None:
    with contextlib.suppress(InvalidJob):
        data, lines = parse_yaml(text, "x")
        parse_job(data, lines, "x")


# Rules and their parts.


@pytest.mark.parametrize("rule", ["fedavgg", "fed-avg", "FedAvg"])
def test_an_unknown_rule_is_refused_with_the_nearest_names(rule: str) -> None:
    with pytest.raises(InvalidJob, match=f"rule: there is no rule '{rule}' .*fedavg"):
        compose(JobSpec(app="a.py:app", rule=rule))


def test_an_unknown_kind_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(InvalidJob) as caught:
        compose(JobSpec(app="a.py:app", weigh={"kind": "example"}, sample={"kind": "zzz"}))
    known = ", ".join(sorted(kinds("sample")))  # other tests add some
    assert caught.value.problems == [
        f"sample.kind: there is no 'zzz' (known: {known})",
        "weigh.kind: there is no 'example' (did you mean 'examples'?)",
    ]


def test_bad_parameters_of_all_parts_are_reported_at_once() -> None:
    spec = JobSpec(
        app="a.py:app",
        pace={"rounds": 0, "dedline": 3},
        sample={"kind": "uniform", "fraction": 2},
        merge={"trim": 1},
    )
    with pytest.raises(InvalidJob) as caught:
        compose(spec)
    problems = caught.value.problems
    assert [problem.split(":")[0] for problem in problems] == [
        "pace.rounds",
        "pace.dedline",
        "sample.fraction",
        "merge.trim",
    ]
    assert problems[1] == "pace.dedline: unknown key of sync (did you mean 'deadline'?)"


def test_the_parts_of_a_rule_are_what_the_job_does_not_override() -> None:
    rule = compose(JobSpec(app="a.py:app", pace={"rounds": 3}))
    assert rule.name == "fedavg"
    assert rule.pace == Sync(rounds=3)
    assert rule.weigh == ByExamples()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": ["fedavg"]},
        {"rule": {"a": 1}},
        {"pace": {"kind": ["sync"]}},
        {"pace": {"kind": {}}},
        {"rule": None},
    ],
)
def test_a_name_of_the_wrong_type_is_refused_like_any_other(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        parse_job({"app": "a.py:app", **wrong})


def test_a_job_file_with_a_bad_part_names_its_line(tmp_path: Path) -> None:
    assert _problems(tmp_path, MINIMAL + "pace:\n  kind: sync\n  round: 3\n") == [
        "job.yaml:4: pace.round: unknown key of sync (did you mean 'rounds'?)"
    ]


# --set.


def test_changes_reach_into_sections_and_make_them(tmp_path: Path) -> None:
    spec = _load(
        tmp_path,
        MINIMAL,
        "train.epochs=7",
        "pace.rounds=2",
        "name=other",
        "stop.target={metric: loss, value: 1}",
    )
    assert (spec.train.epochs, spec.name) == (7, "other")
    assert spec.pace == {"rounds": 2}
    assert spec.stop.target is not None


def test_a_later_change_wins_and_the_rest_of_a_section_stays(tmp_path: Path) -> None:
    spec = _load(
        tmp_path, MINIMAL + "train: {epochs: 3, batch_size: 5}\n", "train.epochs=4", "train.epochs=5"
    )
    assert (spec.train.epochs, spec.train.batch_size) == (5, 5)


# Aliases that multiply: eight lists, each ten times as long as the one before.
BOMB = (
    "[&a [1],"
    + ",".join(
        f"&{new} [{','.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    + "]"
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.epochs", "write key=value"),
        ("=3", "write key=value"),
        ("train..epochs=3", "write key=value"),
        ("app.x=3", "app is not a section"),
        ("name=[", "not valid YAML"),
        ("train.epoch=3", "train.epoch: unknown key"),
        ("train.epochs=x", "train.epochs: input should be"),
        ("seed=2001-99-99", "seed"),
        ("pace=[[[[", "not valid YAML"),
        ("pace=" + 3000 * "[" + 3000 * "]", "[[ …: the value is nested too deeply"),
        ("pace=" + 100 * "[" + 100 * "]", "0.0.0.0.…: nested more than 20 levels deep"),
        ("pace=&a [*a]", "nested more than 20 levels deep"),
        ("pace=" + BOMB, "more than 100000 values"),
        ("name='" + "x" * 20_000 + "'", "a text of 20000 characters; at most 10000 are allowed"),
        ('name="\\ud800"', "half a surrogate pair"),
        ("seed=" + "9" * 30, "a whole number beyond 64 bits"),
        ("\udcff=1", "half a surrogate pair"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused(tmp_path: Path, change: str, said: str) -> None:
    (problem,) = _problems(tmp_path, MINIMAL, change)
    assert said in problem


def test_changes_are_applied_in_place() -> None:
    data: dict[str, Any] = {"train": None}
    apply_change(data, "train.optimizer.lr=0.5")
    apply_change(data, "name=a=b")
    assert data == {"train": {"optimizer": {"lr": 0.5}}, "name": "a=b"}


def test_a_job_file_that_is_nested_too_deeply_is_refused_in_a_sentence_before_anything_else_looks_at_it(
    tmp_path: Path,
) -> None:
    deep = "data: {source: x, partition: " + "{a: " * 100 + "1" + "}" * 100 + "}\n"
    (problem,) = _problems(tmp_path, MINIMAL + deep)
    assert problem == "job.yaml: data.partition.a.a.…: nested more than 20 levels deep"


@pytest.mark.parametrize(
    "words",
    [("job", name) for name in ("show", "cancel", "watch", "events", "model")] + [("job", "delete", "--yes")],
)
def test_a_job_that_is_named_with_broken_text_is_refused_by_the_command_line(words: tuple[str, str]) -> None:
    more = ["-o", "x.safetensors"] if "model" in words else []
    done = CliRunner().invoke(hansa, [*words, "\udcff", *more, "--controller", "127.0.0.1:1"])
    assert done.exit_code == 2, done.output
    assert "the text is not UTF-8" in done.stderr


@pytest.mark.parametrize("command", [("job", "submit"), ("run",)])
@pytest.mark.parametrize("value", ["[" * 3000, "[" * 3000 + "]" * 3000, "[[[["])
def test_a_change_that_is_nested_too_deeply_ends_with_a_message_and_exit_code_2(
    tmp_path: Path, command: tuple[str, ...], value: str
) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL)
    done = CliRunner().invoke(hansa, [*command, str(tmp_path / "job.yaml"), "--set", f"pace={value}"])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("hansa: --set pace=[[[")
