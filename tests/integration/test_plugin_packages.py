"""Plugins of installed packages, good and faulty, as the command line shows them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.support import install

PACKAGE = '''
import numpy as np
from hansa.plugin import FEDAVG, Rule, Weigher, add_rule, register

@register("weigh", "steps")
class BySteps(Weigher):
    """A contribution is worth its optimizer steps."""

    def weigh(self, state, contributions, view):
        return np.array([c.facts.steps for c in contributions], dtype=np.float64)

add_rule(Rule("by-steps", "weights by optimizer steps", "-", FEDAVG.parts | {"weigh": {"kind": "steps"}}))
'''


def _run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(ROOT), str(folder)))
    env = {"PATH": "", "HANSA_CONFIG": "", "PYTHONPATH": path}
    command = [sys.executable, "-m", "hansa", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_an_installed_package_brings_its_plugins_and_a_broken_one_does_no_harm(tmp_path: Path) -> None:
    install(tmp_path, "steps_rule", PACKAGE)
    install(tmp_path, "broken_rule", "raise RuntimeError('half installed')")
    listed = _run(tmp_path, "rules", "list")
    assert listed.returncode == 0, listed.stderr
    assert "by-steps" in listed.stdout
    why = "the plugin package 'broken_rule' could not be loaded: broken_rule: RuntimeError: half installed"
    assert listed.stderr == f"hansa: {why}\n"
    shown = _run(tmp_path, "rules", "show", "by-steps")
    assert "weigh: steps — A contribution is worth its optimizer steps." in shown.stdout


def test_a_rule_of_unknown_parts_is_not_there_and_its_package_is_named(tmp_path: Path) -> None:
    odd = 'add_rule(Rule("bare", "-", "-", {"weigh": {"kind": "steps"}}))\n'
    odd += 'add_rule(Rule("misspelt", "-", "-", FEDAVG.parts | {"weigh": {"kind": "step"}}))\n'
    install(tmp_path, "odd_rules", PACKAGE + odd)
    why = "rule 'bare' has no known kind of pace, sample, merge, server; "
    why += "rule 'misspelt' has no known kind of weigh"
    for name in ("bare", "misspelt"):
        shown = _run(tmp_path, "rules", "show", name)
        assert shown.returncode == 1
        assert f"the plugin package 'odd_rules' has faults: {why}" in shown.stderr
        assert f"there is no rule '{name}'" in shown.stderr
    assert "weigh: steps" in _run(tmp_path, "rules", "show", "by-steps").stdout


HEAD = """
import sys
from typing import ClassVar
from pydantic import Field, model_validator
from hansa.plugin import FEDAVG, Plugin, Policy, Rule, Sampler, Weigher, add_rule, register

"""
RULE = 'add_rule(Rule("faulty", "-", "-", FEDAVG.parts | {"weigh": {"kind": "faulty"}}))\n'
META = """
class Shy(type(Weigher)):
    def __getattribute__(cls, name):
        if name == "model_fields":
            raise RuntimeError("do not look")
        return super().__getattribute__(name)

"""
BODY = "    def weigh(self, state, contributions, view):\n        return [1.0 for c in contributions]\n"
WEIGHER = '@register("weigh", "faulty")\nclass Faulty(Weigher):\n'
MANY = {"kind": "epochs", "epochs": "many"}
FAULTY = {
    "a method is missing": (
        '@register("weigh", "faulty")\nclass Faulty(Weigher):\n    "Says nothing."\n' + RULE,
        "weigh 'faulty': class faulty_package.Faulty lacks weigh()",
    ),
    "it is derived from another point's class": (
        f'@register("weigh", "faulty")\nclass Faulty(Sampler):\n{BODY}' + RULE,
        "class faulty_package.Faulty is not derived from hansa.controller.plugin.parts.Weigher",
    ),
    "it is derived from nothing": (
        f'@register("weigh", "faulty")\nclass Faulty:\n{BODY}' + RULE,
        "class faulty_package.Faulty is not derived from hansa.controller.plugin.parts.Weigher",
    ),
    "it is a function": (
        '@register("weigh", "faulty")\ndef faulty(*given):\n    pass\n' + RULE,
        "weigh 'faulty': faulty_package.faulty is not a class",
    ),
    "a default does not fit": (
        f'{WEIGHER}    share: float = Field("half", gt=0)\n{BODY}' + RULE,
        "class faulty_package.Faulty: the default of 'share' does not fit: input should be a valid number",
    ),
    "a default cannot be made": (
        f"{WEIGHER}    n: int = Field(default_factory=str)\n{BODY}" + RULE,
        "the default of 'n' does not fit: input should be a valid integer",
    ),
    "it has no kind": (
        f'@register("weigh", "")\nclass Faulty(Weigher):\n{BODY}' + RULE,
        "could not be loaded: faulty_package: ValueError: '' is not a kind: use up to 64 letters",
    ),
    "there is no such point": (
        f'@register("wiegh", "faulty")\nclass Faulty(Weigher):\n{BODY}' + RULE,
        "could not be loaded: faulty_package: ValueError: there is no point 'wiegh'; known: pace, sample",
    ),
    "it ends in the middle": (
        f'@register("weigh", "faulty")\nclass Faulty(Weigher):\n{BODY}{RULE}raise SystemExit("no licence")\n',
        "could not be loaded: faulty_package: SystemExit: no licence",
    ),
    "its rule has parameters that do not fit": (
        'add_rule(Rule("faulty", "-", "-", FEDAVG.parts | {"weigh": {"kind": "equal", "shares": 3}}))\n',
        "rule 'faulty' does not fit its weigh: shares: Extra inputs are not permitted",
    ),
    "its rule has no sections": (
        'add_rule(Rule("faulty", "-", "-", FEDAVG.parts | {"weigh": "equal"}))\n',
        "rule 'faulty' is not well formed: parts.weigh: Input should be a valid dictionary",
    ),
    "its rule has no words": (
        'add_rule(Rule("faulty", 3, None, FEDAVG.parts))\n',
        "rule 'faulty' is not well formed: summary: Input should be a valid string",
    ),
    "its rule has no number of epochs": (
        f'add_rule(Rule("faulty", "-", "-", FEDAVG.parts | {{"train": {MANY}}}))\n',
        "rule 'faulty' does not fit its train: epochs: Input should be a valid integer",
    ),
    "its rule has no name": (
        'add_rule(Rule("faulty\\nrule", "-", "-", FEDAVG.parts))\n',
        "could not be loaded: faulty_package: ValueError: 'faulty\\nrule' is not a rule's name",
    ),
    "it says nonsense of itself": (
        f'@register("weigh", "faulty")\nclass Faulty(Weigher):\n    joint: ClassVar[object] = "no"\n{BODY}'
        + RULE,
        "weigh 'faulty': class faulty_package.Faulty: joint cannot be 'no'",
    ),
    "it cannot be looked at": (
        f"{META}@register('weigh', 'faulty')\nclass Faulty(Weigher, metaclass=Shy):\n{BODY}{RULE}",
        "weigh 'faulty': RuntimeError: do not look",
    ),
}


def _message(package: str, why: str) -> str:
    return f"the plugin package '{package}' {'' if why.startswith('could') else 'has faults: '}"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The list of rules where all faulty packages are installed, each with names of its own."""
    folder = tmp_path_factory.mktemp("packages")
    for number, (source, _) in enumerate(FAULTY.values()):
        install(folder, f"faulty{number}_package", (HEAD + source).replace("faulty", f"faulty{number}"))
    install(folder, "steps_rule", PACKAGE)
    return _run(folder, "rules", "list")


@pytest.mark.parametrize("what", FAULTY)
def test_a_package_with_a_fault_is_named_with_it_and_the_others_work(
    listed: "subprocess.CompletedProcess[str]", what: str
) -> None:
    number, why = list(FAULTY).index(what), FAULTY[what][1]
    assert listed.returncode == 0, listed.stderr
    named = _message(f"faulty{number}_package", why)
    (line,) = [line for line in listed.stderr.splitlines() if named in line]
    assert why.replace("faulty", f"faulty{number}") in line
    assert "Traceback" not in listed.stderr
    assert "by-steps" in listed.stdout


@pytest.mark.parametrize(
    "what", ["a method is missing", "there is no such point", "its rule has parameters that do not fit"]
)
def test_a_rule_of_a_faulty_package_can_be_neither_shown_nor_used(tmp_path: Path, what: str) -> None:
    source, why = FAULTY[what]
    install(tmp_path, "faulty_package", HEAD + source)
    install(tmp_path, "steps_rule", PACKAGE)
    (tmp_path / "job.yaml").write_text("app: app.py:app\nrule: faulty\ndata: {source: digits}\n")
    (tmp_path / "part.yaml").write_text("app: app.py:app\nweigh: {kind: faulty}\ndata: {source: digits}\n")
    (tmp_path / "app.py").write_text("")
    commands: list[tuple[int, tuple[str, ...]]] = [
        (1, ("rules", "show", "faulty")),
        (2, ("run", str(tmp_path / "job.yaml"))),
        (2, ("run", str(tmp_path / "part.yaml"))),
    ]
    for code, words in commands:
        done = _run(tmp_path, *words)
        assert done.returncode == code, done.stderr
        assert _message("faulty_package", why) in done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert "weigh: steps" in _run(tmp_path, "rules", "show", "by-steps").stdout


def test_what_is_whole_of_a_faulty_package_can_be_used(tmp_path: Path) -> None:
    install(tmp_path, "mixed", PACKAGE + '@register("weigh", "half")\nclass Half(Weigher):\n    pass\n')
    shown = _run(tmp_path, "rules", "show", "by-steps")
    assert shown.returncode == 0
    assert "weigh: steps" in shown.stdout
    assert shown.stderr == (
        "hansa: the plugin package 'mixed' has faults: weigh 'half': class mixed.Half lacks weigh()\n"
    )


@pytest.mark.parametrize("answer", ["'no'", "['no']", "[('weigh', 'no')]", "[(3, 4)]", "[((), None)]"])
def test_a_plugin_that_objects_in_no_known_way_is_named(tmp_path: Path, answer: str) -> None:
    objects = f"    def objections(self, spec, rule):\n        return {answer}\n"
    install(tmp_path, "odd_words", f'{HEAD}@register("weigh", "odd")\nclass Odd(Weigher):\n{objects}{BODY}')
    for more in ((), ("--json",)):
        shown = _run(tmp_path, "rules", "show", "fedavg", *more)
        assert shown.returncode == 0, shown.stderr
        assert "odd failed: TypeError: it returned " in shown.stdout
        assert "which is not a list of places and reasons" in shown.stdout


def test_a_plugin_whose_own_checks_fail_is_named_where_it_is_shown_and_used(tmp_path: Path) -> None:
    check = "    @model_validator(mode='after')\n    def look(self):\n        return 1 / 0\n"
    install(tmp_path, "odd_checks", f'{HEAD}@register("weigh", "odd")\nclass Odd(Weigher):\n{check}{BODY}')
    (tmp_path / "job.yaml").write_text("app: app.py:app\nweigh: {kind: odd}\ndata: {source: digits}\n")
    shown = _run(tmp_path, "rules", "show", "fedavg")
    assert shown.returncode == 0, shown.stderr
    assert "(refused: odd failed: ZeroDivisionError: division by zero)" in shown.stdout
    done = _run(tmp_path, "run", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert (
        done.stderr
        == f"hansa: {tmp_path}/job.yaml:2: weigh: odd failed: ZeroDivisionError: division by zero\n"
    )


def test_a_plugin_with_a_parameter_that_must_be_given_is_shown(tmp_path: Path) -> None:
    body = f'@register("weigh", "faulty")\nclass Faulty(Weigher):\n    share: float\n{BODY}'
    install(tmp_path, "demanding", HEAD + body + RULE)
    shown = _run(tmp_path, "rules", "show", "faulty")
    assert shown.returncode == 0, shown.stderr
    assert "    share = (required)" in shown.stdout
    assert "is required" not in shown.stdout
    told = json.loads(_run(tmp_path, "rules", "show", "faulty", "--json").stdout)
    assert told["parts"]["weigh"]["parameters"] == [
        {"name": "share", "default": None, "meaning": "", "required": True}
    ]
    assert "faulty" in _run(tmp_path, "rules", "show", "fedavg").stdout
