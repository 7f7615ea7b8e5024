"""Which fields a job has: an axis or a change that names another is refused before anything runs."""

from functools import cache

from hansa.common.data.partition import KINDS as SCHEMES
from hansa.common.job import rulebook
from hansa.common.job.check import known_at
from hansa.common.job.spec import JobSpec
from hansa.common.plugins.registry import POINTS, kinds
from hansa.common.values.bounds import Value
from hansa.common.values.wording.words import suggestion

CONTROLLERS = ("operator", "key", "made_with")  # what only the controller writes
OF_THE_RUN = ("name",)  # what the sweep gives each run itself
PARTITION = ("data", "partition")


def field_fault(key: str, here: bool) -> str:
    """Return why a dotted path names no field of a job, with the nearest ones; empty if it names one.

    If jobs do not run `here`, parts of rules may have parameters that only the controller knows.
    """
    steps = tuple(key.split("."))
    for depth, step in enumerate(steps):
        names = _names_at(steps[:depth])
        if not here and depth and steps[0] in POINTS:
            return ""
        if names and step not in names:
            return "there is no such field" + _nearest(key)
    return ""


def _nearest(key: str) -> str:
    """Return a hint: fields of the same name in other sections, or else similar ones."""
    fields, last = every_field(), key.rpartition(".")[2]
    same = [field for field in fields if field.rpartition(".")[2] == last]
    return f" (did you mean {' or '.join(map(repr, same[:3]))}?)" if same else suggestion(key, fields)


def _names_at(path: tuple[str, ...]) -> list[str]:
    """Return the names that a section of a job may have; none if it is not a section of fixed names."""
    if not path:
        return [name for name in JobSpec.model_fields if name not in (*CONTROLLERS, *OF_THE_RUN)]
    if path == PARTITION:
        return sorted({name for scheme in SCHEMES.values() for name in _spelled(scheme)})
    if path[0] not in POINTS:
        return known_at(JobSpec, path)
    if len(path) > 1:  # inside a part's parameter
        return []
    rulebook.load()  # registers the parts
    return sorted({"kind", *(name for cls in kinds(path[0]).values() for name in _spelled(cls))})


def _spelled(model: type[Value]) -> list[str]:
    """Return a model's fields as job files write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


@cache
def every_field() -> list[str]:
    """Return all fields of a job as dotted paths."""
    paths: list[str] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        section = waiting.pop()
        for name in _names_at(section):
            paths.append(".".join((*section, name)))
            waiting.append((*section, name))
    return sorted(paths)
