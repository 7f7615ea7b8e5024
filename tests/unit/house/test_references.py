"""Every reference `page §n` in code and documents points to an existing section of docs/methods."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
METHODS = ROOT / "docs" / "methods"
ROOMS = (
    "benchmarks",
    "common",
    "controller",
    "dashboard",
    "deploy",
    "docs",
    "evaluator",
    "examples",
    "hansa",
    "learner",
    "protos",
    "simulation",
    "tests",
)
REFERENCE = re.compile(
    r"(?P<page>[A-Za-z-]+)?(?:\.md)?(?P<joint> |, | and | to |)§(?P<section>\d+)(?:\.(?P<item>\d+))?"
)


def sections(page: Path) -> dict[str, set[str]]:
    """Return the numbered sections of a page with the numbered points of each."""
    found: dict[str, set[str]] = {}
    for line in page.read_text().splitlines():
        if heading := re.match(r"## (\d+)\. ", line):
            found[heading[1]] = set()
        elif (point := re.match(r"(\d+)\. ", line)) and found:
            found[list(found)[-1]].add(point[1])
    return found


PAGES = {page.stem: sections(page) for page in METHODS.glob("*.md")}


def dangling(text: str, home: str = "") -> list[str]:
    """Return the broken references in a text; `home` is the page of a bare §."""
    wrong, page = [], home
    for found in REFERENCE.finditer(text):
        page = found["page"] if found["page"] in PAGES else (page or home)
        points = PAGES.get(page, {}).get(found["section"])
        if points is None or (found["item"] and found["item"] not in points):
            wrong.append(f"{page or 'no page'}: {found[0].strip()}")
        if home and not found["page"]:
            page = home
    return wrong


def documents() -> list[Path]:
    """Return all files that people write, except this one, whose examples are wrong on purpose."""
    kinds = (".py", ".md", ".proto", ".yaml")
    below = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*")))
    own = [path for path in below if path.suffix in kinds and "_pb2" not in path.name and path.is_file()]
    return [*sorted(ROOT.glob("*.md")), *(path for path in own if path != Path(__file__).resolve())]


@pytest.mark.parametrize("home", sorted(PAGES))
def test_sections_are_numbered_in_order(home: str) -> None:
    assert list(PAGES[home]) == [str(number + 1) for number in range(len(PAGES[home]))]


def test_every_reference_to_a_section_leads_somewhere() -> None:
    wrong = {}
    for path in documents():
        home = path.stem if path.parent == METHODS else ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "§" in line and (found := dangling(line, home)):
                wrong[f"{path.relative_to(ROOT)}:{number}"] = found
    assert wrong == {}


@pytest.mark.parametrize("text", ["metis-dvw §99", "feddaf §3.99", "(§2)", "nowhere §1"])
def test_a_reference_that_leads_nowhere_is_found(text: str) -> None:
    assert dangling(text)


def test_links_between_documents_lead_to_files_that_exist() -> None:
    links = [
        (path, target)
        for path in documents()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text())
        if not target.startswith(("http:", "https:", "mailto:"))
    ]
    wrong = [
        f"{path.relative_to(ROOT)}: {target}" for path, target in links if not (path.parent / target).exists()
    ]
    assert len(links) > 100
    assert wrong == []


TO_BE_WRITTEN = {  # by readers of the tutorial, by benchmarks and by `hansa pki`
    "controller/rules/baselines/tempered.py",
    "tests/unit/rules/test_tempered.py",
    "benchmarks/results/accuracy_NAME.json",
    "deploy/pki/ca.key",
}


def test_files_that_documents_name_exist() -> None:
    named = {
        f"{path.relative_to(ROOT)}: {name}": name
        for path in documents()
        if path.suffix == ".md"
        for name in re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./-]+)`", path.read_text())
    }
    wrong = [
        place for place, name in named.items() if name not in TO_BE_WRITTEN and not (ROOT / name).exists()
    ]
    assert len(named) > 100
    assert wrong == []
