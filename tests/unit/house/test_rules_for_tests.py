"""Tests keep the house rules: no privates of others, no sleeping, no processes in tests/unit."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests"
SLEEPERS = {  # files that may sleep, and why
    "tests/waiting.py": "the one place that asks again and again",
    "tests/cutting_proxy.py": "a network takes time, and nothing tells it that the far end has read its data",
    "tests/e2e/conftest.py": "an app that trains slowly, in the process of a learner",
}
INSIDERS = {  # files that may use privates of a library, and why
    "tests/e2e/commands.py": "multiprocessing has no public way to share a fork server between processes",
}
Fault = tuple[int, str]  # the line, and what is wrong there
Check = Callable[[ast.Module], Iterator[Fault]]

PRIVATE = re.compile(r"(?:\w+\.)*_(?!_|pb2\b)\w+(?:\.\w+)*")
REACHING = {"getattr", "setattr", "delattr", "hasattr", "setitem", "delitem"}
STARTING = re.compile(r"fork(pty)?|system|popen|posix_spawnp?|spawn[lv]p?e?|create_subprocess_(exec|shell)")
PROCESSES = {"subprocess", "multiprocessing", "pty"}
STARTERS = {"ProcessPoolExecutor", "RedisServer", "start_cluster", "Nursery"}
FIXTURES = {"redis", "scene", "federation"}


def privates(tree: ast.Module) -> Iterator[Fault]:
    """Yield the places that reach for the privates of somebody else."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                yield node.lineno, f".{name}"
            case ast.ImportFrom(module=module):
                for name in (module or "", *(alias.name for alias in node.names)):
                    if PRIVATE.fullmatch(name):
                        yield node.lineno, f"import of {name}"
            case ast.Import():
                for alias in node.names:
                    if PRIVATE.fullmatch(alias.name):
                        yield node.lineno, f"import of {alias.name}"
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in REACHING:
                for text in map(_text, node.args):
                    if PRIVATE.fullmatch(text):
                        yield node.lineno, f"{name} of {text!r}"
            case ast.Subscript(value=ast.Call(func=ast.Name(id="vars")) | ast.Attribute(attr="__dict__")):
                if PRIVATE.fullmatch(_text(node.slice)):
                    yield node.lineno, f"[{_text(node.slice)!r}]"


def sleeps(tree: ast.Module) -> Iterator[Fault]:
    """Yield the places that sleep, also in the source of an app; `asyncio.sleep(0)` only lets others run."""
    yields = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and [getattr(argument, "value", None) for argument in node.args] == [0]
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="sleep") if id(node) not in yields:
                yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module="time" | "asyncio") if any(a.name == "sleep" for a in node.names):
                yield node.lineno, "import of sleep"
            case ast.Constant(value=str(text)) if re.search(r"\bsleep\([^)]", text):
                yield node.lineno, "an app that sleeps"


def processes(tree: ast.Module) -> Iterator[Fault]:
    """Yield the places that start processes, or ask for a fixture that does."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    if alias.name.partition(".")[0] in PROCESSES:
                        yield node.lineno, f"import of {alias.name}"
            case ast.ImportFrom(module=str(module)):
                wrong = {alias.name for alias in node.names} & STARTERS
                if wrong or module.partition(".")[0] in PROCESSES or module.startswith("tests.e2e"):
                    yield node.lineno, f"import from {module}"
            case ast.Call(func=ast.Attribute(attr=name)) if STARTING.fullmatch(name):
                yield node.lineno, ast.unparse(node.func)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                for argument in node.args.args:
                    if argument.arg in FIXTURES:
                        yield node.lineno, f"the fixture {argument.arg}"


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def faults(check: Check, folder: Path) -> dict[str, list[Fault]]:
    """Return what a check finds in each file below a folder, except this one, which has bad examples."""
    found = {
        str(path.relative_to(ROOT)): list(check(ast.parse(path.read_text())))
        for path in sorted(folder.rglob("*.py"))
        if path != Path(__file__).resolve()
    }
    assert len(found) > 50
    return {path: wrong for path, wrong in found.items() if wrong}


def test_tests_keep_away_from_privates() -> None:
    wrong = {file: places for file, places in faults(privates, TESTS).items() if file not in INSIDERS}
    assert wrong == {}, "observe public behaviour, or give the class a public property that says it"


def test_tests_do_not_sleep() -> None:
    wrong = faults(sleeps, TESTS)
    assert wrong.keys() == SLEEPERS.keys(), (
        "wait for the event itself, or use tests/waiting.py for what cannot wake a test: "
        f"{ {path: places for path, places in wrong.items() if path not in SLEEPERS} }"
    )


def test_unit_tests_start_no_processes() -> None:
    wrong = faults(processes, TESTS / "unit")
    assert wrong == {}, "move the test to tests/contract or tests/integration"


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (privates, "fetcher._held.pop(digest)"),
        (privates, "super()._receive()"),
        (privates, "self.store._spares"),
        (privates, "from hansa.common.client.download import _origin"),
        (privates, "from hansa.common._secret import origin"),
        (privates, "import hansa._secret"),
        (privates, "monkeypatch.setattr(Accumulator, '_room', room)"),
        (privates, "monkeypatch.setattr('hansa.common.plugins.registry._rules', {})"),
        (privates, "getattr(runner, '_inbox')"),
        (privates, "vars(runner)['_inbox']"),
        (privates, "runner.__dict__['_inbox']"),
        (sleeps, "time.sleep(1)"),
        (sleeps, "async def f(): await asyncio.sleep(0.1)"),
        (sleeps, "async def f(): await asyncio.sleep(pause)"),
        (sleeps, "asyncio.to_thread(time.sleep, 1)"),
        (sleeps, "from time import sleep"),
        (sleeps, "from asyncio import sleep as rest"),
        (sleeps, "APP = 'import time; time.sleep(1)'"),
        (processes, "import subprocess"),
        (processes, "import multiprocessing.pool"),
        (processes, "from multiprocessing import Process"),
        (processes, "from concurrent.futures import ProcessPoolExecutor"),
        (processes, "from tests.redis_server import RedisServer"),
        (processes, "from tests.e2e.conftest import Site"),
        (processes, "os.fork()"),
        (processes, "os.spawnv(0, '', [])"),
        (processes, "asyncio.create_subprocess_exec('ls')"),
        (processes, "def test_a(redis): ..."),
    ],
)
def test_a_breach_is_noticed(check: Check, text: str) -> None:
    assert [line for line, _ in check(ast.parse(text))] == [1]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (privates, "self._held = cls._count"),
        (privates, "model.__class__, getattr(model, '__name__')"),
        (privates, "from hansa.protos import fleet_pb2"),
        (privates, "monkeypatch.setattr('hansa.controller.rulebook.resolve.__version__', '99')"),
        (sleeps, "async def f(): await asyncio.sleep(0)"),
        (sleeps, "clock.sleep_until(5)"),
        (processes, "os.getpid(), os.kill(1, 9)"),
        (processes, "from tests.redis_server import free_port"),
        (processes, "def test_a(store): ..."),
    ],
)
def test_what_is_allowed_is_not_taken_for_a_breach(check: Check, text: str) -> None:
    assert list(check(ast.parse(text))) == []
