"""What a site states about an app when it enrols. Its reports must agree with it."""

from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import Field

from hansa.common.values.bounds import Value
from hansa.common.values.wording.words import counted, in_order, listed

TaskKind = Literal["classification", "multilabel", "regression"]
OWN = "own"  # the task of an app with its own train and evaluate functions
TASKS = (*get_args(TaskKind), OWN)
SHORT = 8  # digits of a digest that are shown to people
GROUPS = 5  # groups of daemons that are listed


class Stated(Value):
    """An app as a daemon of a site has loaded it."""

    task: str = ""
    classes: int = Field(0, ge=0)  # classes or labels; 0: reports do not count any
    source: str = ""  # digest of its source, in hex
    changed: bool = False  # the source on disk is no longer the one that was loaded

    @property
    def matrix(self) -> tuple[int, ...]:
        """The numbers of classes that a report's confusion matrix may have; 0: no matrix."""
        return {"classification": (self.classes,), OWN: (0, self.classes)}.get(self.task, (0,))

    @property
    def labels(self) -> tuple[int, ...]:
        """The numbers of labels that a report may count; 0: none."""
        return {"multilabel": (self.classes,), OWN: (0, self.classes)}.get(self.task, (0,))

    @property
    def shape(self) -> str:
        """The form of the app's reports, in words; daemons that differ in it cannot work for the same job."""
        several = (
            counted(self.classes, "label")
            if self.task == "multilabel"
            else counted(self.classes, "class", "classes")
        )
        task = "own functions" if self.task == OWN else self.task or "no task"
        return f"{task} with {several if self.classes else 'no classes'}"


def short(source: str) -> str:
    """Shorten the digest of an app's source for people."""
    return source[:SHORT] or "unknown"


def shapes_differ(apps: Mapping[str, Stated]) -> bool:
    """Whether these daemons' reports cannot be pooled; an app with its own functions may do any task."""
    tasks = {app.task for app in apps.values()} - {OWN}
    return len(tasks) > 1 or len({app.classes for app in apps.values()}) > 1


def sources_differ(apps: Mapping[str, Stated]) -> bool:
    """Whether these daemons have loaded different sources."""
    return len({app.source for app in apps.values()}) > 1


def by_shape(apps: Mapping[str, Stated]) -> str:
    """List which daemons have which kind of app."""
    return _grouped({name: app.shape for name, app in apps.items()})


def by_source(apps: Mapping[str, Stated]) -> str:
    """List which daemons have loaded which source."""
    return _grouped({name: f"source {short(app.source)}" for name, app in apps.items()})


def _grouped(kinds: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name in sorted(kinds, key=in_order):
        groups.setdefault(kinds[name], []).append(name)
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    shown = "; ".join(f"{kind}: {listed(names)}" for kind, names in largest_first[:GROUPS])
    return shown + (f"; and {len(groups) - GROUPS} more" if len(groups) > GROUPS else "")
