"""The package: its contents, its public names, and the cost of `hansa --help`."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hansa

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "controller", "dashboard", "evaluator", "learner", "protos", "simulation")


def test_the_packages_in_pyproject_are_those_on_disk() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {"hansa", "hansa.plugin"} | {
        "hansa." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert config["packages"] == sorted(found)
    assert config["package-dir"] == {f"hansa.{folder}": folder for folder in FOLDERS}


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), f"{module} is in no package"


def test_the_links_lead_to_the_folders() -> None:
    for folder in FOLDERS:
        assert (ROOT / "hansa" / folder).resolve() == ROOT / folder


@pytest.mark.parametrize("name", hansa.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(hansa, name) is not None


def test_other_names_do_not() -> None:
    with pytest.raises(AttributeError, match="module 'hansa' has no attribute 'nonsense'"):
        _ = hansa.nonsense


def _modules_after(code: str) -> set[str]:
    tell = "print('\\n' + json.dumps(list(sys.modules)))"
    script = f"import json, sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n{tell}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_client_imports_neither_pytorch_nor_a_web_framework() -> None:
    loaded = _modules_after("import hansa; hansa.Client('127.0.0.1:7300').close(); hansa.AsyncClient")
    assert "hansa.common.client.blocking" in loaded
    assert not {"torch", "aiohttp", "pandas", "numba", "scipy"} & loaded


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    loaded = _modules_after(f"from hansa.common.cli import hansa; hansa({arguments!r})")
    assert "hansa.common.cli" in loaded
    heavy = {"torch", "grpc", "numpy", "pydantic", "google.protobuf", "safetensors", "rich", "yaml"}
    assert sorted(loaded & heavy) == []


def test_importing_hansa_imports_nothing_heavy() -> None:
    assert not _modules_after("import hansa") & {"torch", "grpc", "numpy", "pydantic", "click"}


@pytest.mark.parametrize(
    "module", ["hansa.controller.cli", "hansa.controller.server", "hansa.controller.federation"]
)
def test_the_controller_needs_no_torch(module: str) -> None:
    assert "torch" not in _modules_after(f"import {module}")


def test_files_of_the_tutorial_are_ignored_by_git() -> None:
    """Otherwise readers who follow the README would commit the controller's journal and the sites' data."""
    assert "hansa controller start --state demo/controller" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )
    assert "/demo/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
