"""`hansa job export`: tables, TensorBoard, and MLflow over its REST interface, without repeats."""

import asyncio
import csv
import json
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hansa import AsyncClient
from hansa.common.cli import hansa
from hansa.common.trackers.tensorboard import NOTE
from hansa.common.values.tasks import Task, Train
from tests.redis_server import free_port
from tests.support import APP, LightSite, serving
from tests.waiting import eventually

JOB = {"name": "to-export", "app": APP, "pace": {"kind": "sync", "rounds": 4}}


@pytest.fixture
async def finished(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """Run a job of two sites to its end; yield the controller's address and the job."""
    async with serving(tmp_path / "controller") as served, AsyncClient(served.address) as hub:
        north, south = LightSite(served.address, "north"), LightSite(served.address, "south")
        async with LightSite(served.address, "north", "evaluator").attending():
            async with north.attending(), south.attending():
                job = await hub.submit(JOB, set={"sites.min": 2})
                await job.result(60)
                yield served.address, job.id


async def export(address: str, job: str, target: str, *more: str) -> Result:
    words = ["job", "export", job, "--to", target, "--controller", address, *more]
    return await asyncio.to_thread(CliRunner().invoke, hansa, words)


async def test_tables_go_on_where_an_interruption_has_cut_them_off(
    finished: tuple[str, str], tmp_path: Path
) -> None:
    address, job = finished
    for kind in ("csv", "jsonl"):
        file = tmp_path / f"out.{kind}"
        done = await export(address, job, f"{kind}:{file}", "--follow")
        assert (done.exit_code, done.output.split(" of ")[0]) == (0, "5 versions")
        whole = file.read_text()
        assert (await export(address, job, f"{kind}:{file}")).output.startswith("0 versions")
        lines = whole.splitlines(keepends=True)
        file.write_text("".join(lines[:-2]) + lines[-2][:20])  # cut off in the middle of a line
        assert (await export(address, job, f"{kind}:{file}")).output.startswith("2 versions")
        assert file.read_text() == whole
        mine = tmp_path / f"mine.{kind}"
        for text in ("{}\nsomething else", "something else without an end"):
            mine.write_text(text)
            other = await export(address, job, f"{kind}:{mine}")
            assert (other.exit_code, "choose another file" in other.output) == (2, True)
            assert mine.read_text() == text
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["version"], row["accuracy"]) for row in rows[:2]] == [("0", ""), ("1", "0.75")]
    last = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert float(rows[-1]["accuracy"]) == last["metrics"]["accuracy"] == 0.75
    assert {update["site"] for update in last["updates"]} == {"north", "south"}


def shows(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
async def test_an_export_that_is_interrupted_while_it_follows_goes_on_without_gap_or_repeat(
    end: signal.Signals, tmp_path: Path
) -> None:
    """Both exports are ended while the site trains for version 3, in two formats."""
    resumed = asyncio.Event()

    async def paused(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.work.version == 2:
            await resumed.wait()
        await site.do(task)

    async with serving(tmp_path / "controller") as served, AsyncClient(served.address) as hub:
        site = LightSite(served.address, "a", answer=paused)
        async with LightSite(served.address, "a", "evaluator").attending(), site.attending():
            job = await hub.submit(JOB)
            file, board = tmp_path / "out.csv", tmp_path / "board"
            run = board / f"to-export-{job.id}"
            targets = (f"csv:{file}", f"tensorboard:{board}")
            words = [sys.executable, "-m", "hansa", "job", "export", job.id, "--follow"]
            words += ["--controller", served.address, "--to"]
            exports = [await asyncio.create_subprocess_exec(*words, target) for target in targets]
            try:
                await eventually(lambda: shows(file, ",2,2,") and shows(run / NOTE, '"version": 2'))
            finally:
                for process in exports:
                    process.send_signal(end)
            codes = [await process.wait() for process in exports]
            assert codes == [130 if end == signal.SIGINT else -signal.SIGKILL] * 2
            resumed.set()
            for target in targets:
                done = await export(served.address, job.id, target, "--follow")
                assert done.output.startswith("2 versions"), done.output
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["version"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["accuracy"] for row in rows] == [""] + ["0.75"] * 4
    shown = scalars(run)
    assert [step for name, step, _ in shown if name == "updates"] == [0, 1, 2, 3, 4]
    assert len(shown) == len({(name, step) for name, step, _ in shown})


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Read what TensorBoard would show of a run: name, step and value."""
    from tensorboardX.proto.event_pb2 import Event

    shown: list[tuple[str, int, float]] = []
    for file in sorted(folder.glob("events*")):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                shown = [each for each in shown if each[1] < event.step]
            shown += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return shown


async def test_tensorboard_has_a_run_for_the_job_and_one_for_each_site(
    finished: tuple[str, str], tmp_path: Path
) -> None:
    address, job = finished
    target, run = f"tensorboard:{tmp_path / 'board'}", tmp_path / "board" / f"to-export-{job}"
    assert (await export(address, job, target, "--follow")).output.startswith("5 versions")
    first = scalars(run)
    assert [step for name, step, _ in first if name == "accuracy"] == [1, 2, 3, 4]
    assert [step for name, step, _ in scalars(run / "south") if name == "weight"] == [1, 2, 3, 4]
    (run / NOTE).write_text('{"version": 2}')  # as if it had been killed then
    assert (await export(address, job, target)).output.startswith("2 versions")
    assert sorted(scalars(run)) == sorted(first)


class Tracking(BaseHTTPRequestHandler):
    """A server that speaks what we need of MLflow's interface, and keeps what it is told."""

    experiments: dict[str, str]
    runs: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        name = self.path.partition("experiment_name=")[2]
        known = self.experiments.get(name)
        self._answer(*((200, {"experiment": {"experiment_id": known}}) if known else (404, {})))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(
            200, getattr(self, self.path.rpartition("mlflow/")[2].replace("/", "_").replace("-", "_"))(asked)
        )

    def experiments_create(self, asked: Any) -> Any:
        self.experiments[asked["name"]] = "1"
        return {"experiment_id": "1"}

    def runs_search(self, asked: Any) -> Any:
        wanted = asked["filter"].rpartition("= ")[2].strip("'")
        found = [run for run in self.runs.values() if run["tags"]["hansa.job"] == wanted]
        listed = [
            {"info": run["info"], "data": {"tags": [{"key": k, "value": v} for k, v in run["tags"].items()]}}
            for run in found
        ]
        return {"runs": listed}

    def runs_create(self, asked: Any) -> Any:
        run = {"info": {"run_id": f"r{len(self.runs)}"}, "metrics": [], "params": {}}
        run["tags"] = {tag["key"]: tag["value"] for tag in asked["tags"]}
        self.runs[f"r{len(self.runs)}"] = run
        return {"run": run}

    def runs_log_batch(self, asked: Any) -> Any:
        run = self.runs[asked["run_id"]]
        run["metrics"] += [(each["key"], each["step"]) for each in asked.get("metrics", ())]
        run["params"] |= {each["key"]: each["value"] for each in asked.get("params", ())}
        run["tags"] |= {each["key"]: each["value"] for each in asked.get("tags", ())}
        return {}

    def runs_update(self, asked: Any) -> Any:
        self.runs[asked["run_id"]]["info"]["status"] = asked["status"]
        return {}

    def _answer(self, code: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - so called there
        """Say nothing."""


@contextmanager
def tracking() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Run such a server; yield its address and its runs."""

    class Fresh(Tracking):
        experiments: dict[str, str] = {}
        runs: dict[str, dict[str, Any]] = {}

    with ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Fresh.runs
        finally:
            server.shutdown()
            thread.join()


async def test_mlflow_has_a_run_for_the_job_with_a_child_for_each_site(finished: tuple[str, str]) -> None:
    address, job = finished
    with tracking() as (url, runs):
        done = await export(address, job, f"mlflow:{url}", "--follow")
        assert done.exit_code == 0, done.output
        of_job, *of_sites = runs.values()
        assert of_job["params"]["pace.rounds"] == "4"
        assert of_job["info"]["status"] == "FINISHED"
        assert [run["tags"]["hansa.site"] for run in of_sites] == ["north", "south"]
        assert {run["tags"]["mlflow.parentRunId"] for run in of_sites} == {of_job["info"]["run_id"]}
        # Killed after the sites' numbers of version 4, before the job's own: nothing is repeated.
        of_job["tags"]["hansa.version"] = "3"
        of_job["metrics"] = [each for each in of_job["metrics"] if each[1] < 4]
        assert (await export(address, job, f"mlflow:{url}")).output.startswith("1 version ")
        for run in runs.values():
            assert len(run["metrics"]) == len(set(run["metrics"]))
        assert [step for name, step in of_job["metrics"] if name == "accuracy"] == [1, 2, 3, 4]
        assert len(runs) == 3
        # Interrupted before anything but the run itself was there: its settings are not missing.
        for child in [*runs][1:]:
            del runs[child]
        of_job["tags"].pop("hansa.version")
        of_job |= {"metrics": [], "params": {}}
        assert (await export(address, job, f"mlflow:{url}")).output.startswith("5 versions ")
        assert of_job["params"]["pace.rounds"] == "4"


async def test_a_tracker_that_cannot_be_used_is_named_in_one_line(
    finished: tuple[str, str], tmp_path: Path
) -> None:
    address, job = finished
    for target, code, words in (
        (f"mlflow:http://127.0.0.1:{free_port()}", 3, "no MLflow server answers at http://127.0.0.1"),
        (f"mlflow:http://{address}", 3, "no MLflow server answers"),  # it is Hansa's controller
        ("mlflow:http://HOST:PORT", 2, "write the address of a tracking server"),
        ("mlflow:http://me:secret@localhost:5000", 2, "set MLFLOW_TRACKING_USERNAME"),
        ("mlflow:localhost", 2, "write the address of a tracking server"),
        ("wandb:x", 2, "write csv:FILE, jsonl:FILE, tensorboard:DIR or mlflow:http://HOST:PORT"),
        ("csv", 2, "write csv:FILE"),
        (f"csv:{tmp_path / 'no' / 'folder.csv'}", 2, "cannot be written: No such file or directory"),
    ):
        done = await export(address, job, target)
        assert (done.exit_code, done.output.count("\n")) == (code, 1), done.output
        assert words in done.output
        assert "secret" not in done.output


async def test_a_server_that_is_overloaded_is_not_a_mistake_of_the_user(finished: tuple[str, str]) -> None:
    class Overloaded(Tracking):
        experiments: dict[str, str] = {}

        def runs_search(self, asked: Any) -> Any:
            self.send_error(503)
            raise ConnectionAbortedError

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing."""

    address, job = finished
    with Server(("127.0.0.1", 0), Overloaded) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            done = await export(address, job, f"mlflow:http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert (done.exit_code, "(503: " in done.output) == (3, True), done.output
    assert "the same command goes on there" in done.output


async def test_a_real_mlflow_server_shows_the_runs(finished: tuple[str, str]) -> None:
    url = os.environ.get("HANSA_TEST_MLFLOW")
    if not url:
        pytest.skip("HANSA_TEST_MLFLOW is not the address of an MLflow server")
    address, job = finished
    for expected in ("5 versions", "0 versions"):
        done = await export(address, job, f"mlflow:{url}", "--follow")
        assert done.output.startswith(expected), done.output
