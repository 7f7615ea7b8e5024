"""Takes the pictures of docs/dashboard.md: `PYTHONPATH=. python docs/pictures/dashboard/take.py [FOLDER]`.

It starts a controller and five sites that learn to read digits, runs a few jobs, and takes every page of the
dashboard in Chromium, light, dark and on a phone, while one more job is under way.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.data import DataSpec, write_shards
from tests.browser import Tab, browsing

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
SITES = ("aurora", "bellevue", "charite", "delphi", "eastside")
LATE = "eastside"
APP = '''
"""Handwritten digits; PAUSE makes a site slow."""
import os, time
from torch import nn
from hansa import App

def pause(x):
    time.sleep(float(os.environ.get("PAUSE", "0.01")))
    return x

def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

app = App(model=build, task="classification", classes=10, transform=pause)
'''
JOB = {
    "seed": 1990,
    "app": "app.py:app",
    "train": {"epochs": 2, "batch_size": 32, "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}},
    "validation": {"fraction": 0.2},
    "sites": {"min": 5, "wait": 60},
}
ENDED = {
    "digits-fedavg": {"rule": "fedavg", "pace": {"kind": "sync", "rounds": 25}},
    "digits-dvw": {"rule": "sync-dvw", "pace": {"kind": "sync", "rounds": 25}},
    "digits-async": {"rule": "async-dvw", "pace": {"kind": "async", "updates": 60}},
}
LIVE = {"rule": "sync-dvw", "pace": {"kind": "sync", "rounds": 40, "deadline": 0.9, "quorum": 0.5}}
WIDTHS = {"light": 1280, "dark": 1280, "phone": 390}
TALLEST = 1700
ON_PAGE = "document.querySelector('#connection').textContent == 'live' || !document.body.dataset.stream"


@contextmanager
def federation(folder: Path) -> Iterator[str]:
    """Run controller and sites; yield the controller's address."""
    (folder / "app.py").write_text(APP)
    data = DataSpec(source="digits", partition={"kind": "non-iid-l", "labels": 4})
    shards = list(write_shards(data, len(SITES), seed=1990, folder=folder / "data"))
    running = []
    environment = os.environ | {"HANSA_CONFIG": os.devnull, "OMP_NUM_THREADS": "1"}

    def start(*words: str, **more: str) -> None:
        with (folder / f"{words[0]}-{len(running)}.log").open("wb") as log:
            command = [sys.executable, "-m", "hansa", *words]
            running.append(
                subprocess.Popen(command, cwd=folder, env=environment | more, stdout=log, stderr=log)
            )

    start("controller", "start", "--listen", "127.0.0.1:7333", "--state", "controller")
    controller = "127.0.0.1:7333"
    try:
        for site, shard in zip(SITES, shards, strict=True):
            for role, split in (("learner", ()), ("evaluator", ("--split", "test"))):
                pause = {"PAUSE": "0.08"} if site == LATE and role == "learner" else {}
                words = (
                    "--site",
                    site,
                    "--data",
                    str(shard),
                    "--app",
                    "app.py:app",
                    "--state",
                    f"{role}-{site}",
                )
                start(role, "start", "--controller", controller, *words, *split, **pause)
        yield controller
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait()


def hansa(folder: Path, controller: str, *words: str, check: bool = True) -> str:
    """Run a command to its end and return its output."""
    settings = os.environ | {"HANSA_CONTROLLER": controller, "HANSA_CONFIG": os.devnull}
    command = [sys.executable, "-m", "hansa", *words]
    done = subprocess.run(command, cwd=folder, env=settings, check=check, capture_output=True, text=True)
    return done.stdout


def submit(folder: Path, controller: str, name: str, parts: dict[str, object], *more: str) -> str:
    """Submit a job; return its id."""
    (folder / "job.json").write_text(json.dumps(JOB | {"name": name} | parts))
    document = json.loads(hansa(folder, controller, "job", "submit", "job.json", "--json", *more))
    return str(document["job"])


def take(tab: Tab, address: str, pages: dict[str, str], out: Path) -> None:
    """Take all pages."""
    for look, width in WIDTHS.items():
        tab.scheme("dark" if look == "dark" else "light")
        for name, path in pages.items():
            tab.size(width, 900, phone=look == "phone")
            tab.go(address + path)
            tab.until(ON_PAGE)
            height = min(tab.run("document.documentElement.scrollHeight"), TALLEST)
            tab.size(width, height, phone=look == "phone")
            tab.picture(out / f"{name}-{look}.png", whole=False)
            assert tab.complaints() == []


def smaller(path: Path) -> None:
    """Store a picture with a palette: a quarter of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(192, dither=Image.Dither.NONE).save(path, optimize=True)


def main(out: Path) -> None:
    """Take the pictures."""
    with tempfile.TemporaryDirectory() as scratch, federation(Path(scratch)) as controller:
        folder = Path(scratch)
        while hansa(folder, controller, "site", "list", check=False).count("attending") < 2 * len(SITES):
            time.sleep(0.5)
        ids = {name: submit(folder, controller, name, parts) for name, parts in ENDED.items()}
        for each in ids.values():
            hansa(folder, controller, "job", "watch", each)
        log = folder / "dashboard.log"
        words = ["dashboard", "--controller", controller, "--listen", "127.0.0.1:0", "--allow", "cancel"]
        with log.open("wb") as file:
            command = [sys.executable, "-m", "hansa", *words]
            served = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)
        try:
            while not (link := re.search(r"http://\S+", log.read_text())):
                time.sleep(0.1)
            with browsing() as browser:
                tab = browser.tab()
                tab.go(link[0])
                tab.until("location.pathname == '/'")
                address = tab.run("location.origin")
                running = submit(folder, controller, "digits-live", LIVE)
                tab.go(f"{address}/jobs/{running}")
                tab.until("document.querySelectorAll('#live-versions tbody tr').length > 12", 60)
                compared = "&".join(f"job={each}" for each in list(ids.values())[:2])
                pages = {"job": f"/jobs/{running}", "fleet": "/", "jobs": "/jobs"}
                pages |= {"compare": f"/compare?{compared}", "audit": "/audit"}
                take(tab, address, pages, out)
        finally:
            served.terminate()
            served.wait()
    for picture in sorted(out.glob("*.png")):
        smaller(picture)
        print(f"{picture}: {picture.stat().st_size >> 10} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
