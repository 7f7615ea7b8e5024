"""The job file: YAML that is read with the line of each field, and `--set` changes to it."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from hansa.common.job import rulebook
from hansa.common.job.check import Lines, located, parse_job, part_faults
from hansa.common.job.spec import JobSpec
from hansa.common.values.documents import excess
from hansa.common.values.errors import InvalidJob, one_line
from hansa.common.values.resolved import MADE_WITH

# What PyYAML raises, besides its own errors, for a scalar that does not have the form of its type.
ODD_SCALARS = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError)


def load_job(path: Path, changes: Iterable[str] | Mapping[str, object] = (), here: bool = False) -> JobSpec:
    """Read a job file, apply changes and check the result; `here`: the job runs on this machine.

    Changes are those of `--set`, or values by dotted path.
    """
    data, lines = read_job(path)
    if isinstance(data, dict):
        change_fields(data, changes)
    return check_job(data, lines, path, here)


def change_fields(data: dict[str, Any], changes: Iterable[str] | Mapping[str, object]) -> None:
    """Apply changes, which are those of `--set`, or values by dotted path."""
    if isinstance(changes, Mapping):
        for name, value in changes.items():
            set_field(data, name.split("."), deepcopy(value), f"set {name!r}")
        return
    for change in changes:
        apply_change(data, change)


def read_job(path: Path) -> tuple[object, dict[tuple[Any, ...], int]]:
    """Read a job file without checking it; return it with the line of each field."""
    data, lines = read_document(path)
    if isinstance(data, dict):
        data.pop(MADE_WITH, None)  # a resolved job says what it was run with
    return data, lines


def read_document(path: Path) -> tuple[object, dict[tuple[Any, ...], int]]:
    """Read a YAML file and return it with the line of each field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InvalidJob(f"{path}: cannot be read: {reason}") from None
    return parse_yaml(text, str(path))


def check_job(data: object, lines: Lines, path: Path, here: bool = False) -> JobSpec:
    """Check what a job file says, perhaps after changes; `here`: the job runs on this machine."""
    objections = rulebook.load()  # before the job is parsed: it registers the rules
    spec = parse_job(data, lines, str(path), final=here)
    # Otherwise the controller, which may know more rules, checks the job. A standing one ignores `data`.
    if not part_faults(spec.model_dump(), final=True):
        clashes = objections(spec if here else spec.model_copy(update={"data": None}))
        if clashes:
            raise InvalidJob([located(clash, lines, str(path)) for clash in clashes])
    files = {name: file for name, file in (("init", spec.init), ("reference", spec.reference)) if file}
    return spec.model_copy(update={name: str((path.parent / file).resolve()) for name, file in files.items()})


def parse_yaml(text: str, source: str) -> tuple[object, dict[tuple[Any, ...], int]]:
    """Parse plain YAML and return it with the line of each field."""
    lines: dict[tuple[Any, ...], int] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return {}, lines
        _locate(root, (), lines, source)
        return yaml.safe_load(text), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise InvalidJob(f"{where}: not valid YAML: {problem}") from None
    except RecursionError:
        raise InvalidJob(f"{source}: nested too deeply") from None
    except ODD_SCALARS as error:
        raise InvalidJob(f"{source}: not valid YAML: {one_line(error)}") from None


def _locate(node: Any, path: tuple[Any, ...], lines: dict[tuple[Any, ...], int], source: str) -> None:
    if len(lines) > 10_000:
        raise InvalidJob(f"{source}: too many fields; aliases that multiply are not allowed")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidJob(f"{source}:{key.start_mark.line + 1}: a list or mapping cannot be a key")
            step = (*path, key.value)
            if step in lines:
                raise InvalidJob(
                    f"{source}:{key.start_mark.line + 1}: {'.'.join(map(str, step))}: given twice"
                )
            lines[step] = key.start_mark.line + 1
            _locate(value, step, lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[*path, i] = value.start_mark.line + 1
            _locate(value, (*path, i), lines, source)


def apply_change(data: dict[str, Any], change: str) -> None:
    """Apply one `key=value`; the key is a dotted path, the value is YAML."""
    key, equals, text = change.partition("=")
    steps = key.strip().split(".")
    shown = f"--set {change:.80}" + (" …" if len(change) > 80 else "")
    if not equals or not all(steps):
        raise InvalidJob(f"{shown}: write key=value, for example train.epochs=2")
    try:
        value = yaml.safe_load(text)
    except RecursionError:
        raise InvalidJob(f"{shown}: the value is nested too deeply") from None
    except (yaml.YAMLError, *ODD_SCALARS):
        raise InvalidJob(f"{shown}: the value is not valid YAML") from None
    if beyond := excess(value):
        raise InvalidJob(f"{shown}: {located(beyond, {})}")
    set_field(data, steps, value, shown)


def set_field(data: dict[str, Any], steps: Sequence[str], value: object, shown: str) -> None:
    """Set the field at a path, and make the sections on the way; `shown` begins the message of a refusal."""
    at = data
    for step in steps[:-1]:
        inner = at.get(step)
        if inner is None:
            inner = at[step] = {}
        if not isinstance(inner, dict):
            raise InvalidJob(f"{shown}: {step} is not a section")
        at = inner
    at[steps[-1]] = value
