"""The dashboard in a real browser, before a real controller and real sites."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import PROGRAM, Browser, Tab, browsing
from tests.e2e.conftest import JOB_TEXT, Site
from tests.integration.test_dashboard import dashboard, hostile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
]
DVW = JOB_TEXT.replace("rule: fedavg", "rule: sync-dvw").replace("rounds: 3", "rounds: 6")
ASYNC = """
name: plane-async
seed: 7
app: app.py:app
rule: async-dvw
pace: {kind: async, updates: 12}
train: {epochs: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}
validation: {fraction: 0.2}
sites: {min: 2, wait: 30}
"""
LIVE = "document.querySelector('#connection').textContent == 'live'"
FAULTS = """(() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  if (all('h1').length != 1) faults.push('not one h1');
  if (document.documentElement.lang != 'en') faults.push('no language');
  if (document.documentElement.scrollWidth > innerWidth) faults.push('wider than the window');
  for (const each of all('input:not([type=hidden])'))
    if (!each.labels.length && !each.ariaLabel) faults.push('no label: ' + each.outerHTML);
  for (const each of all('svg[role=img]'))
    if (!each.querySelector('title').textContent) faults.push('a picture without a title');
  for (const each of all('progress, nav, [role=region]'))
    if (!each.ariaLabel) faults.push('no name: ' + each.outerHTML);
  for (const each of all('a[href]')) if (!(each.innerText || each.ariaLabel)) faults.push('an empty link');
  const ids = all('[id]').map((each) => each.id);
  for (const each of ids) if (ids.indexOf(each) != ids.lastIndexOf(each)) faults.push('twice: ' + each);
  return faults;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


def start_dashboard(scene: Site) -> str:
    """Start the command; return the link that it prints."""
    words = ["dashboard", "--controller", scene.address, "--listen", "127.0.0.1:0"]
    scene.log("dashboard").touch()
    scene.nursery.start("dashboard", words, scene.log("dashboard"))
    found = scene.until(lambda: re.search(r"http://\S+", scene.log("dashboard").read_text()))
    return str(found[0])


def require_good(tab: Tab) -> None:
    """Fail if a page has faults that those notice who cannot see it, or use a phone; or if scripts failed."""
    for width in (1280, 390):
        tab.size(width, 800, phone=width < 600)
        assert tab.run(FAULTS) == []
    tab.size(1280, 800)
    assert tab.complaints() == []


def shown(tab: Tab) -> dict[str, float]:
    """Return the metrics on a job's page as numbers."""
    found: dict[str, float] = tab.run(
        "Object.fromEntries([...document.querySelectorAll('data[data-metric]')]"
        ".map((each) => [each.dataset.metric, Number(each.value)]))"
    )
    return found


def test_people_watch_a_dvw_and_an_async_job_live(scene: Site, browser: Browser) -> None:
    scene.controller()
    for site in "ab":
        scene.daemon("learner", site, pause=0.02)
        scene.daemon("evaluator", site)
    tab = browser.tab()
    tab.go(start_dashboard(scene))
    tab.until("location.pathname == '/' && document.body.innerText.includes('Sites connected')")
    tab.until(f"{LIVE} && [...document.querySelectorAll('tbody tr')].length == 2")
    require_good(tab)
    for text in (DVW, ASYNC):
        (scene.folder / "job.yaml").write_text(text)
        submitted = scene.json("job", "submit", "job.yaml")
        link = f"a[href='/jobs/{submitted['job']}']"
        tab.click("nav a[href='/jobs']", loads=True)  # where it stays, even if it is over already
        tab.until(f'document.querySelector("{link}")')
        tab.click(link, loads=True)
        tab.run("window.mark = 'the page has not been loaded again'")
        tab.until("document.querySelector('.feed').innerText.match(/merged/)")
        tab.until("document.querySelector('#live-head .badge').innerText.match('completed')", 60)
        assert tab.run("window.mark")
        require_same(tab, scene.json("job", "show", submitted["job"]))
        require_good(tab)
    visit_all_pages(tab)
    read_without_scripts(tab, submitted["job"])


def require_same(tab: Tab, told: dict[str, Any]) -> None:
    """Compare a job's page with what `hansa job show --json` says."""
    tab.until(f"document.querySelectorAll('#live-versions tbody tr').length == {len(told['history'])}")
    assert shown(tab) == {name: value for name, value in told["metrics"].items() if value is not None}
    rows = tab.run(
        "[...document.querySelectorAll('#live-versions tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert len(rows) > 1
    for cells, version in zip(rows, reversed(told["history"]), strict=True):
        assert cells[0].split()[0] == str(version["version"])
        for name, value in version["metrics"].items():
            assert f"{name} {value:.4f}" in cells[2]
        assert cells[3] == str(len(version["updates"]))
        for update in version["updates"]:
            assert update["site"] in cells[4]
    assert "by site" in tab.run("document.querySelector('#live-strip svg title').textContent")
    tab.until("document.querySelector('.feed li').innerText.match('completed')")  # the newest is the first


def visit_all_pages(tab: Tab) -> None:
    """Click through the pages, with the mouse and with the keyboard."""
    tab.click("nav a[href='/jobs']", loads=True)
    tab.click("input[name=job]")
    tab.run("document.querySelectorAll('input[name=job]')[1].focus()")
    tab.press(" ", 32)
    tab.run("document.querySelector('form[action=\"/compare\"] button').focus()")
    tab.press("Enter", 13, loads=True)
    assert tab.run("document.querySelector('tbody').rows.length") == 2
    assert "accuracy" in tab.text("main").lower()
    require_good(tab)
    tab.click("nav a[href='/audit']", loads=True)
    assert "submitted" in tab.text("main")
    require_good(tab)
    tab.press("Tab", 9)
    assert tab.run("document.activeElement.className") == "skip"
    tab.press("Enter", 13)
    assert tab.run("document.activeElement.id") == "content"
    tab.scheme("light")
    light = tab.run("getComputedStyle(document.body).backgroundColor")
    tab.click("button[value=dark]", loads=True)
    assert tab.run("location.pathname") == "/audit"
    assert tab.run("getComputedStyle(document.body).backgroundColor") != light


def read_without_scripts(tab: Tab, job: str) -> None:
    """Read a page in a browser that runs no scripts."""
    address = tab.run("location.origin")
    tab.scripts(allowed=False)
    tab.go(f"{address}/jobs/{job}")
    assert "completed" in tab.text("#live-head")
    tab.scripts(allowed=True)


def test_when_the_controller_restarts_the_page_says_so_and_goes_on(scene: Site, browser: Browser) -> None:
    scene.controller()
    for site in "ab":
        scene.daemon("learner", site, pause=0.05)
    scene.daemon("evaluator", "a")
    tab = browser.tab()
    tab.go(start_dashboard(scene))
    tab.until(LIVE)
    (scene.folder / "job.yaml").write_text(DVW)
    submitted = scene.json("job", "submit", "job.yaml")
    tab.go(f"{tab.run('location.origin')}/jobs/{submitted['job']}")
    tab.until("document.querySelector('.feed').innerText.match(/merged/)")
    scene.kill("controller")
    tab.until("document.querySelector('#connection').innerText.match(/reconnecting to the controller/)")
    assert "reconnecting" in tab.text("#connection")
    assert "sync-dvw" in tab.text("main")
    scene.controller(name="again", listen=scene.address)
    tab.until(LIVE)
    tab.until("document.querySelector('#live-head .badge').innerText.match('completed')", 60)
    require_same(tab, scene.json("job", "show", submitted["job"]))
    assert tab.complaints() == []


async def test_a_site_named_as_a_script_stays_text_in_a_browser(browser: Browser) -> None:
    async with hostile().listening() as address, dashboard(address) as served:

        def visit() -> None:
            tab = browser.tab()
            tab.go(served.link())
            tab.until("location.pathname == '/'")
            for path in ("/", "/jobs", "/jobs/j1", "/compare?job=j1", "/audit"):
                tab.go(served.address + path)
                tab.until(f"{LIVE} || !document.body.dataset.stream")
                assert "<script>alert(1)</script>" in tab.text("main")
                assert tab.run("document.querySelectorAll('main script, main img').length") == 0
                assert not [
                    each for each in browser.events if each["method"] == "Page.javascriptDialogOpening"
                ]
                assert tab.complaints() == []

        await asyncio.to_thread(visit)
