"""Turns a document into a JobSpec, or names every wrong field in the terms of job files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_origin

from pydantic import ValidationError

from hansa.common.job.spec import FieldPath, JobSpec, PartSpec, Problem
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.check import ANYTHING
from hansa.common.plugins.registry import POINTS, Plugin, not_loaded
from hansa.common.values.bounds import Value
from hansa.common.values.documents import excess
from hansa.common.values.errors import InvalidJob, one_line
from hansa.common.values.resolved import MADE_WITH
from hansa.common.values.wording.words import suggestion

REQUIRED = "is required"
Lines = Mapping[FieldPath, int]  # the line of each field


def parse_job(data: object, lines: Lines | None = None, source: str = "", final: bool = True) -> JobSpec:
    """Turn a document into a JobSpec or raise InvalidJob naming every wrong field.

    Rules and kinds of plugins that are unknown here are faults only if `final`: the controller may know more.
    """
    if not isinstance(data, Mapping):
        raise InvalidJob(f"{source or 'the job'}: expected a mapping of fields such as name, app and rule")
    beyond = excess(data)
    if beyond:  # no other check may look at it
        raise InvalidJob(located(beyond, lines or {}, source))
    faults = part_faults(data, final)
    if data.get("operator"):
        faults.append((("operator",), "only the controller says who submitted a job"))
    if data.get("key"):
        faults.append((("key",), "it is given when a job is submitted: --key, or submit(…, key=…)"))
    if data.get(MADE_WITH):
        faults.append(((MADE_WITH,), "only the controller says what a job is run with"))
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as error:
        faults = problems(error, JobSpec) + part_faults(data, final=True)
    if faults:
        raise InvalidJob(
            [located(fault, lines or {}, source) for fault in sorted(faults, key=_line_in(lines or {}))]
        )
    return spec


def _as_part(name: str) -> str:
    """Return the hint that a name is not that of a rule, but of a kind of one of its parts."""
    point = next((point for point in POINTS if name in plugins.kinds(point)), None)
    return f"; write {point}: {{kind: {name}}}, with any rule that it goes with" if point else ""


def part_faults(data: Mapping[str, Any], final: bool) -> list[Problem]:
    """Check the rule and its parts against the plugins that are registered here."""
    known = plugins.rules()
    name = data.get("rule", JobSpec.model_fields["rule"].default)
    if not isinstance(name, str):
        return []  # JobSpec reports it
    faults: list[Problem] = []
    if name not in known and final:
        hint = suggestion(name, list(known)) or _as_part(name) or "; see `hansa rules list`"
        faults.append((("rule",), f"there is no rule {name!r:.100}" + hint + not_loaded()))
    rule = known.get(name)
    for point in POINTS:
        given = data.get(point)
        if given is not None and not isinstance(given, Mapping):
            continue  # JobSpec reports it
        kind, kinds = (given or {}).get("kind"), plugins.kinds(point)
        if kind is not None and (not isinstance(kind, str) or kind not in kinds):
            if final:
                faults.append(
                    (
                        (point, "kind"),
                        f"there is no {kind!r:.100}" + suggestion(str(kind), list(kinds)) + not_loaded(),
                    )
                )
            continue
        if rule is None and kind is None:  # a part of a rule that is unknown here
            faults += _faults_of_any(point, given) if final and given else []
            continue
        try:
            plugins.fill(point, rule, given)
        except ValidationError as error:
            cls = kinds[str(kind or (rule.part(point)["kind"] if rule else ""))]
            faults += problems(error, cls, (point,))
        except ANYTHING as error:  # a third-party plugin: its checks may fail in any way
            faults.append(
                ((point,), f"{kind or (rule.part(point)['kind'] if rule else '')} failed: {one_line(error)}")
            )
    return faults


def _faults_of_any(point: str, given: PartSpec) -> list[Problem]:
    """Return what is wrong with a part of unknown kind: the faults for the kind that it fits best."""
    candidates: list[tuple[int, list[Problem]]] = []  # with the number of keys that each kind lacks
    for cls in plugins.kinds(point).values():
        try:
            cls.model_validate(given)
        except ValidationError as error:
            strange = sum(fault["type"] == "extra_forbidden" for fault in error.errors())
            candidates.append((strange, problems(error, cls, (point,))))
        except ANYTHING:
            continue  # the other kinds may still fit
        else:
            return []
    return min(candidates, key=lambda each: (each[0], len(each[1])), default=(0, []))[1]


def problems(error: ValidationError, model: type[Value] = Value, within: FieldPath = ()) -> list[Problem]:
    """Describe every fault that pydantic found, with the field's path."""
    return [((*within, *f["loc"]), describe(f, model, f["loc"])) for f in error.errors(include_url=False)]


def described(error: ValidationError, model: type[Value] = Value) -> str:
    """Describe every fault that pydantic found in one line."""
    return "; ".join(located(problem, {}) for problem in problems(error, model))


def located(problem: Problem, lines: Lines, source: str = "") -> str:
    """Write a problem with its field and, if known, its line."""
    path, text = problem
    where = f"{source}:{lines[path]}: " if path in lines else (f"{source}: " if source else "")
    field = ".".join(str(step) for step in path)
    return f"{where}{field}: {text}" if field else f"{where}{text}"


def _line_in(lines: Lines) -> Callable[[Problem], int]:
    return lambda problem: lines.get(problem[0], 1 << 30)


def describe(fault: Mapping[str, Any], model: type[Value], path: Sequence[Any]) -> str:
    """Describe in one sentence what is wrong with a field, in the terms of job files."""
    given = fault.get("input")
    shown = "" if isinstance(given, Mapping | list) else f" (given: {given!r:.100})"
    match fault["type"]:
        case "extra_forbidden":
            of = ""
            # The rule may have chosen the kind, so the message names it.
            if issubclass(model, Plugin) and len(path) == 1:
                of = f" of {model.kind}"
            return f"unknown key{of}" + suggestion(str(path[-1]), known_at(model, path[:-1]))
        case "missing":
            return REQUIRED
        case "value_error":
            return str(fault["ctx"]["error"])
        case "dict_type" | "model_type":
            has_kind = (model is JobSpec and path[0] in POINTS) or "kind" in known_at(model, path)
            hint = f", such as {{kind: {given}}}" if has_kind and isinstance(given, str) else shown
            return f"should be a section of keys and values{hint}"
        case "tuple_type" | "list_type":
            return f"should be a list, as in [a, b]{shown}"
        case "too_short":
            return f"should have {fault['ctx']['min_length']} or more, not {fault['ctx']['actual_length']}"
    message = str(fault["msg"])
    return message[:1].lower() + message[1:] + shown


def known_at(model: type[Value], path: Iterable[Any]) -> list[str]:
    """Return the names that a section of a document may have; none if it is not a section of fixed names."""
    at: Any = model
    steps = iter(path)
    for step in steps:
        field = getattr(at, "model_fields", {}).get(step)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        at = next((k for k in kinds if isinstance(k, type) and issubclass(k, Value)), None)
        # A name of the operator's own follows, such as a group's.
        if field and get_origin(field.annotation) is Mapping and next(steps, None) is None:
            return []
    return list(at.model_fields) if at else []
