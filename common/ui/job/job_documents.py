"""The JSON documents of `--json`, for programs, and the exit codes of commands that wait for a job."""

from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import warning_lines

SUMMARY = {
    *("job", "name", "status", "reason", "version", "rounds", "seconds", "bytes_up", "bytes_down"),
    *("metrics", "metrics_version", "examples", "examples_total", "drawn", "test"),
}
SAID = {"rule", "app", "unit", "rounds_asked", "submitted", "evaluators"}  # only by `show` and report.json


def summary(view: JobView) -> dict[str, object]:
    """Return the JSON object that `submit`, `cancel` and `list` print for a job."""
    return view.model_dump(include=SUMMARY)


def outcome(view: JobView) -> dict[str, object]:
    """Return the JSON object that `run`, `watch` and `submit --wait` print for a job that has ended."""
    return summary(view) | {"warnings": warning_lines(view)}


def details(view: JobView) -> dict[str, object]:
    """Return the JSON object that `show` prints: a job with its history and the survey, if there was one."""
    return without_history(view) | {"history": [entry.model_dump() for entry in view.history]}


def without_history(view: JobView) -> dict[str, object]:
    """Return the same without the history."""
    more: dict[str, object] = {"survey": view.survey.model_dump()} if view.survey else {}
    more |= view.model_dump(include=SAID)
    more |= {"best": view.best, "kept": list(view.kept), "keep": view.keep.model_dump()}
    more["shortfalls"] = [shortfall.model_dump() for shortfall in view.shortfalls]
    more["resolved"] = view.resolved.model_dump(mode="json") if view.resolved else None
    return outcome(view) | more


def exit_code(view: JobView) -> int:
    """Return the exit code of a command that waited for a job."""
    return 0 if view.status == "completed" else 1
