"""MLflow through its REST interface: a run for the job, and a child run for each site."""

import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from hansa.common.trackers.base import Tracker, pooled_numbers, site_numbers
from hansa.common.values.documents import flat_fields
from hansa.common.values.errors import InvalidInput, Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import plain

EXPERIMENT = "hansa"  # unless MLFLOW_EXPERIMENT_NAME says another
PATIENCE = 20.0  # seconds
PARAMETERS = 100  # of one request
JOB, SITE, NEWEST, PARENT = "hansa.job", "hansa.site", "hansa.version", "mlflow.parentRunId"
ENDED = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class MlFlow(Tracker):
    """Every run has a tag with its newest version, written together with the numbers of that version."""

    def __init__(self, uri: str) -> None:
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme not in ("http", "https") or not parts.netloc or not _has_valid_port(parts):
            raise InvalidInput(
                f"mlflow:{uri}: write the address of a tracking server: mlflow:http://HOST:PORT"
            )
        if parts.username is not None:
            raise InvalidInput(
                "mlflow: the address has a user name; set MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD instead"
            )
        self._uri = uri.rstrip("/")
        self._experiment = ""
        self._job = JobView(job="", name="", status="")
        self._runs: dict[str, tuple[str, int]] = {}  # of the job (empty) and of sites: id and newest version

    def open(self, job: JobView) -> int:
        """Find the runs of the job, or begin one."""
        self._job, self._experiment = job, self._find_experiment()
        for run in self._search():
            tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())}
            self._runs[tags.get(SITE, "")] = run["info"]["run_id"], int(tags.get(NEWEST, -1))
        if "" not in self._runs:
            self._begin("", job.name)
        if self._runs[""][1] < 0:  # also if an export was interrupted just after it had begun the run
            settings = dict(flat_fields(job.resolved.job)) if job.resolved else {}
            listed = [{"key": name, "value": str(value)[:500]} for name, value in settings.items()]
            for first in range(0, len(listed), PARAMETERS):
                self._log("", params=listed[first : first + PARAMETERS])
        return self._runs[""][1]

    def take(self, version: VersionView) -> None:
        """Log a version; the runs of sites come first, because the job's run says what is complete."""
        for site, numbers in site_numbers(version).items():
            if site not in self._runs:
                self._begin(site, f"{self._job.name} {site}")
            if version.version > self._runs[site][1]:
                self._log_version(site, version, numbers)
        self._log_version("", version, pooled_numbers(version))

    def finish(self, job: JobView) -> None:
        """Note how the job ended."""
        for run, _ in self._runs.values():
            end = {"run_id": run, "status": ENDED[job.status], "end_time": int(time.time() * 1000)}
            self._call("POST", "runs/update", end)

    def _log_version(self, site: str, version: VersionView, numbers: Mapping[str, float]) -> None:
        at = int(time.time() * 1000)
        metrics = [
            {"key": name, "value": value, "timestamp": at, "step": version.version}
            for name, value in numbers.items()
        ]
        self._log(site, metrics=metrics, tags=[{"key": NEWEST, "value": str(version.version)}])
        self._runs[site] = self._runs[site][0], version.version

    def _log(self, site: str, **what: Any) -> None:
        self._call("POST", "runs/log-batch", {"run_id": self._runs[site][0]} | what)

    def _begin(self, site: str, name: str) -> None:
        tags = {JOB: self._job.job, "mlflow.runName": name, "mlflow.source.name": "hansa"}
        if site:
            tags |= {SITE: site, PARENT: self._runs[""][0]}
        begun = {
            "experiment_id": self._experiment,
            "run_name": name,
            "start_time": int(time.time() * 1000),
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        self._runs[site] = str(self._call("POST", "runs/create", begun)["run"]["info"]["run_id"]), -1

    def _search(self) -> list[Any]:
        runs: list[Any] = []
        page = ""
        while True:
            query: dict[str, Any] = {
                "experiment_ids": [self._experiment],
                "filter": f"tags.`{JOB}` = '{self._job.job}'",
                "max_results": 1000,
            }
            found = self._call("POST", "runs/search", query | ({"page_token": page} if page else {}))
            runs += found.get("runs", [])
            page = str(found.get("next_page_token", ""))
            if not page:
                return runs

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        words = urllib.parse.urlencode({"experiment_name": name})
        found = self._call("GET", f"experiments/get-by-name?{words}", missing=True)
        if found is None:
            return str(self._call("POST", "experiments/create", {"name": name})["experiment_id"])
        return str(found["experiment"]["experiment_id"])

    def _call(self, method: str, path: str, body: Any = None, missing: bool = False) -> Any:
        """Call the server; with `missing`, None is returned if there is no such thing."""
        request = urllib.request.Request(  # noqa: S310 - the scheme has been checked
            f"{self._uri}/api/2.0/mlflow/{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"} | _authorisation(),
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if missing and error.code == 404:
                return None
            said = " ".join(error.read(400).decode(errors="replace").split())
            if error.code >= 500 or error.code == 429:
                raise self._silent(f"{error.code}: {said}") from None
            raise InvalidInput(
                f"MLflow at {self._uri} refused {path.partition('?')[0]} ({error.code}): {said}"
            ) from None
        except (OSError, ValueError, HTTPException) as error:
            raise self._silent(getattr(error, "reason", error)) from None

    def _silent(self, why: object) -> Unreachable:
        return Unreachable(
            f"no MLflow server answers at {self._uri} ({plain(str(why))}); what was exported before is kept,"
            " and the same command goes on there"
        )


def _has_valid_port(parts: urllib.parse.SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _authorisation() -> dict[str, str]:
    """Return what MLflow's own clients send, from the same variables."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}
