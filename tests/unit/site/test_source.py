"""The digest of an app's source: it changes with the code that the app uses, and with nothing else."""

import os
import sys
from pathlib import Path

import pytest

from hansa.common.site.source import source_of

FILES = {
    "app.py": "import helper\nfrom tools import deep\nimport json, torch\napp = 1\n",
    "helper.py": "def late():\n    import lazy\n",
    "lazy.py": "x = 1\n",
    "tools/__init__.py": "",
    "tools/deep.py": "from . import beside\nfrom .other import *\n",
    "tools/beside.py": "x = 1\n",
    "tools/other.py": "from ..tools.beside import x\n",
    "unused.py": "x = 1\n",
    "second.py": "import unused\n",
    "broken.py": "def (",
}
USED = set(FILES) - {"unused.py", "second.py", "broken.py"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_an_app_imports_from_beside_it_is_in_its_source(folder: Path) -> None:
    source = source_of(f"{folder}/app.py:app")
    assert {path.relative_to(folder).as_posix() for path in source.stamps} == USED
    assert len(source.digest) == 64


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_edit_changes_the_digest_if_the_app_uses_the_file(folder: Path, name: str) -> None:
    before = source_of(f"{folder}/app.py:app")
    assert before.unchanged()
    (folder / name).write_text(FILES[name] + "# edited\n")
    after = source_of(f"{folder}/app.py:app")
    assert before.unchanged() == (name not in USED)
    assert (after.digest == before.digest) == (name not in USED)


def test_the_same_files_elsewhere_have_the_same_digest_whatever_else_is_loaded(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name in USED:
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text(FILES[name])
    assert source_of(f"{other}/app.py:app").digest == source_of(f"{folder}/app.py:app").digest
    (other / "lazy.py").rename(other / "tools" / "lazy.py")
    assert source_of(f"{other}/app.py:app").digest != source_of(f"{folder}/app.py:app").digest


def test_a_file_that_is_touched_or_gone_is_noticed(folder: Path) -> None:
    before = source_of(f"{folder}/app.py:app")
    os.utime(folder / "lazy.py", ns=(1, 1))
    assert not before.unchanged()
    assert source_of(f"{folder}/app.py:app").digest == before.digest  # it is still the same code
    (folder / "lazy.py").unlink()
    assert source_of(f"{folder}/app.py:app").digest != before.digest


def test_an_app_in_an_installed_package_has_that_package_as_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    for name, text in {
        "ours/__init__.py": "",
        "ours/app.py": "import ours.net, theirs",
        "ours/net.py": "",
        "theirs.py": "",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    __import__("ours.app")
    try:
        found = source_of("ours.app:app").stamps
        assert {path.relative_to(place).as_posix() for path in found} == {
            "ours/__init__.py",
            "ours/app.py",
            "ours/net.py",
        }
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("ours", "theirs")]:
            del sys.modules[name]


def test_an_app_that_cannot_be_found_has_a_source_nevertheless(tmp_path: Path) -> None:
    assert source_of(f"{tmp_path}/none.py:app").unchanged()
    assert source_of("no.such.module:app").unchanged()
