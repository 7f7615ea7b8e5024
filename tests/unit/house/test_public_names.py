"""Documents and examples import only public names, and all of them exist."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from hansa.common.plugins.registry import ENCODING, LEARNERS_POINTS, RULE_POINTS, contracts

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = ("hansa", "hansa.data", "hansa.plugin", "hansa.plugin.testing", "hansa.trial")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Yield what a source imports from Hansa: module and name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hansa":
            yield from ((node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if each.name.split(".")[0] == "hansa")


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there(module: str) -> None:
    held = importlib.import_module(module)
    for name in held.__all__:
        assert getattr(held, name) is not None, f"{module}.{name}"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = held.nonsense


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_examples_import_public_names_only(path: Path) -> None:
    for source in blocks(path) if path.suffix == ".md" else [path.read_text()]:
        for module, name in imported(source):
            assert module in PUBLIC, f"{module} is not public: {', '.join(PUBLIC)} are"
            assert not name or name in importlib.import_module(module).__all__, (
                f"{name} of {module} is not public"
            )


def test_the_documents_have_blocks_to_check() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 5


def test_authors_of_plugins_import_from_one_place() -> None:
    (page,) = [page for page in PAGES if page.name == "adding-a-rule.md"]
    modules = {module for source in blocks(page) for module, _ in imported(source)}
    assert modules == {"hansa.plugin", "hansa.plugin.testing"}


def spoken(contract: type) -> Iterator[type]:
    """Yield the classes of Hansa that the methods of a contract take or return."""
    import torch

    from hansa.common.torch.data import Tensors
    from hansa.controller.plugin.composition import Composition

    names = {"Composition": Composition, "torch": torch, "nn": torch.nn, "Tensors": Tensors}
    for name, member in vars(contract).items():
        method = member.fget if isinstance(member, property) else member
        if inspect.isfunction(method) and not name.startswith("_"):
            for hint in get_type_hints(method, localns=names).values():
                yield from (each for each in within(hint) if each.__module__.startswith("hansa."))


def within(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not get_origin(hint):
        yield hint
    for part in get_args(hint):
        yield from within(part)


def test_all_that_contracts_speak_of_is_public() -> None:
    import hansa.plugin as public

    known = {id(getattr(public, name)) for name in public.__all__}
    for point in (*RULE_POINTS, *LEARNERS_POINTS, ENCODING):
        for contract in contracts()[point].__mro__:
            if contract.__module__.startswith("hansa.") and "[" not in contract.__name__:
                for each in spoken(contract):
                    assert id(each) in known, f"{contract.__name__} speaks of {each.__name__}"


def test_the_class_that_plugins_of_a_point_are_derived_from_is_public() -> None:
    import hansa.plugin as public

    exported = [getattr(public, name) for name in public.__all__]  # which loads them
    for point in (*RULE_POINTS, *LEARNERS_POINTS, ENCODING):
        assert contracts()[point] in exported, point
