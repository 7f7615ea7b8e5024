"""Documents and examples import only public names, and all of them exist."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.common.plugins.registry import LEARNERS_POINTS, POINTS, contracts

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = ("hansa", "hansa.data", "hansa.plugin", "hansa.trial")
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


def test_the_class_that_plugins_of_a_point_are_derived_from_is_public() -> None:
    import hansa.plugin as public

    exported = [getattr(public, name) for name in public.__all__]  # which loads them
    for point in (*POINTS, *LEARNERS_POINTS):
        assert contracts()[point] in exported, point
