"""The command line: options have variables, and messages and documents name options that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("common", "controller", "learner", "evaluator", "simulation")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OTHERS = re.compile(r"`ray [^`]*|\"srun [^\"]*\"")  # commands of others, which have options of their own
CALLED = re.compile(r"(?<![\w/.-])hansa((?: [a-z]+)+)([^`\n|]*)")
ONCE = {"--daemon", "--json", "--version"}  # given with each call, or not at all


def commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its name on the command line."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*words, name))


COMMANDS = dict(commands(hansa))


def options(words: tuple[str, ...]) -> set[str]:
    found = {
        option for param in COMMANDS[words].params for option in param.opts if isinstance(param, click.Option)
    }
    return found | {"--help"}


EVERY = {option for words in COMMANDS for option in options(words)}


@pytest.mark.parametrize("role", ["controller", "learner", "evaluator"])
def test_every_setting_of_a_daemon_has_a_variable_that_help_and_documents_name(role: str) -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    for param in COMMANDS[role, "start"].params:
        if not isinstance(param, click.Option) or set(param.opts) & ONCE:
            continue
        assert isinstance(param.envvar, str), param.opts
        assert param.envvar.startswith("HANSA_"), param.opts
        assert param.show_envvar, param.opts
        row = next(
            (line for line in page.splitlines() if line.startswith("|") and f"`{param.envvar}`" in line), ""
        )
        assert param.opts[0] in row, f"docs/operating.md names no {param.envvar} for {param.opts[0]}"


def test_the_address_and_the_certificate_come_from_variables_in_every_command() -> None:
    wanted = {
        "--controller": "HANSA_CONTROLLER",
        "--tls": "HANSA_TLS",
        "--store": "HANSA_STORE",
        "--state": "HANSA_STATE",
    }
    for words, command in COMMANDS.items():
        for param in command.params:
            for option in set(param.opts) & wanted.keys():
                assert param.envvar == wanted[option], (words, option)


def test_a_setting_that_is_missing_is_asked_for_with_its_variable() -> None:
    said = CliRunner().invoke(
        hansa, ["learner", "start", "--site", "a", "--data", "a.npz"], env={"HANSA_APP": ""}
    )
    assert said.exit_code == 2
    assert "HANSA_APP" in said.output


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_name_options_that_are_there() -> None:
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for text in _strings(path):
            for option in OPTION.findall(OTHERS.sub("", text)):
                assert option in EVERY, f"{path.relative_to(ROOT)}: {option} in {text!r:.200}"


def _calls(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the commands that a text calls, and the options that it gives them."""
    for match in CALLED.finditer(OTHERS.sub("", text.replace("\\\n", " "))):
        words = tuple(match[1].split())
        while words and words not in COMMANDS:
            words = words[:-1]
        if words and not isinstance(COMMANDS[words], click.Group):
            given = re.split(r" #|  | && | \|", match[2])[0]
            yield words, OPTION.findall(given)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_call_commands_with_options_that_they_have(page: Path) -> None:
    code = re.findall(r"```.*?```|`[^`\n]*`", page.read_text(), re.DOTALL)
    for words, given in (call for text in code for call in _calls(text)):
        assert set(given) <= options(words), f"hansa {' '.join(words)} has no {set(given) - options(words)}"


def test_messages_call_commands_with_options_that_they_have() -> None:
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for words, given in (call for text in _strings(path) for call in _calls(text)):
            assert set(given) <= options(words), (
                f"{path}: hansa {' '.join(words)} has no {set(given) - options(words)}"
            )


def test_data_that_are_not_there_are_asked_for_by_the_variable_that_every_command_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("")
    (tmp_path / "job.yaml").write_text("app: app.py:app\ndata: {source: mnist}\n")
    calls = (["run", "job.yaml"], ["data", "partition", "mnist", "--out", "parts"])
    for words in calls:
        said = CliRunner().invoke(hansa, words, env={"HANSA_DATA": ""})
        assert said.exit_code == 1
        assert "Set HANSA_DATA to the folder" in said.output
        for option in OPTION.findall(said.output):
            assert option in options(tuple(words[:1]) if words[0] == "run" else tuple(words[:2]))
