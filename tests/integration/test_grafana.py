"""The Grafana board asks for metrics and labels that a controller exports."""

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hansa.controller.metrics.collector import TaskTimes, serving_metrics
from hansa.controller.server import collector
from tests.support import LightSite, ended, job, nothing, serving

BOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "hansa.json"
METRIC = re.compile(r"\b(?:hansa|process)_\w+")
LABEL = re.compile(r"[{,]\s*(\w+)\s*[=!]~?|\bby \((\w+)\)|\{\{(\w+)\}\}|label_values\(\w+, (\w+)\)")
FUNCTIONS = {"histogram_quantile", "label_values", "rate", "sum"}


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def exported(folder: Path) -> dict[str, set[str]]:
    """Return the names of what a controller exports once it has had a site and a job, with their labels."""
    times = TaskTimes()
    async with serving(folder, trained=times.observe) as served:
        async with LightSite(served.address, "a").attending():
            await ended(await served.submit(job(pace={"kind": "sync", "rounds": 1}), None, nothing()))
            with serving_metrics("127.0.0.1:0", collector(served.federation, times), None) as address:
                text = await asyncio.to_thread(read, f"http://{address}/metrics")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every query with its legend."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"], ""


async def test_every_query_asks_for_what_a_controller_exports(tmp_path: Path) -> None:
    known = await exported(tmp_path)
    asked = list(queries(json.loads(BOARD.read_text(encoding="utf-8"))))
    assert len(asked) > 15
    for query, legend in asked:
        metrics = METRIC.findall(query)
        assert metrics
        assert set(metrics) <= known.keys(), query
        labels = {label for groups in LABEL.findall(query + legend) for label in groups if label}
        for metric in metrics:
            assert labels <= known[metric], f"{query} ({legend})"
        assert set(re.findall(r"\b(\w+)\(", query)) <= FUNCTIONS
        assert query.count("(") == query.count(")")
    shown = {metric for query, _ in asked for metric in METRIC.findall(query)}
    of_hansa = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in known if name[:6] == "hansa_"}
    assert of_hansa == {re.sub(r"_bucket$", "", name) for name in shown if name[:6] == "hansa_"}


def test_panels_do_not_overlap() -> None:
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    squares: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & squares
        assert max(x for x, _ in own) < 24
        squares |= own
    assert len({panel["id"] for panel in panels}) == len(panels)
