"""The job file: what an operator asks for. Parsed once, at the border; inside, a JobSpec is always sound.

The parts of a rule (pace, sample, local, layers, weigh, merge, server, evaluate) stay plain: they are checked against
the registered plugins, and `hansa.controller.rules.compose` makes plugins of them.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hansa.common import plugins
from hansa.common.errors import InvalidJob, one_line
from hansa.common.ids import NAME
from hansa.common.plugins import POINTS, Plugin, undiscovered
from hansa.common.tasks import OptimizerSpec, SurveySpec, ValidationSpec, Value
from hansa.common.words import suggestion

Part = Mapping[str, Any]
FieldPath = tuple[Any, ...]
Problem = tuple[FieldPath, str]  # where, and what is wrong there
Lines = Mapping[FieldPath, int]  # on which line each field stands


class GroupSpec(Value):
    """Sites with thresholds of their own, such as slow ones."""

    sites: tuple[str, ...] = Field(min_length=1)
    vc_loss: float | None = Field(None, ge=0)
    tombstones: int | None = Field(None, ge=0, strict=True)


class UntilSpec(Value):
    """A learner trains until its validation loss hardly falls, or its model is too stale (metis-dvw §4, §5)."""

    kind: Literal["adaptive"] = Field("adaptive", description="VC_Loss, tombstones and staleness decide")
    vc_loss: float = Field(1.0, ge=0, description="percent by which an epoch must lower the validation loss; 0: at all")
    tombstones: int = Field(1, ge=0, strict=True, description="epochs of a task that may fail to")
    max_epochs: int = Field(100, ge=1, le=100_000, strict=True, description="the most epochs of a task")
    cycles: int = Field(20, ge=1, strict=True, description="tasks after which a site's staleness is limited")
    rolling: bool = Field(
        False, description="the limit is the median of all tasks, not of the first: each that it ends pulls it down"
    )
    groups: Mapping[str, GroupSpec] = Field(
        {},
        description="sites with other thresholds: by a group's name its `sites`, and their vc_loss and tombstones",
    )

    @model_validator(mode="after")
    def _one_group_for_a_site(self) -> "UntilSpec":
        of: dict[str, str] = {}
        for name, group in self.groups.items():
            for site in group.sites:
                if of.setdefault(site, name) != name:
                    raise ValueError(f"site {site} is in two groups: {of[site]} and {name}")
        return self

    def thresholds(self, site: str) -> tuple[float, int]:
        """Return vc_loss and tombstones of a site: its group's, or everybody's."""
        group = next((group for group in self.groups.values() if site in group.sites), None)
        vc_loss = group.vc_loss if group and group.vc_loss is not None else self.vc_loss
        return vc_loss, group.tombstones if group and group.tombstones is not None else self.tombstones


class TrainSpec(Value):
    """What a learner does with a task."""

    epochs: int | None = Field(None, ge=1, le=100_000, strict=True, description="none: as many as the rule starts from")
    batches: int | None = Field(None, ge=1, le=1_000_000, strict=True, description="instead of epochs: FedMMB's C")
    until: UntilSpec | None = Field(None, description="instead of a fixed number of epochs")
    batch_size: int = Field(32, ge=1, strict=True)
    optimizer: OptimizerSpec = OptimizerSpec()
    proximal: float | None = Field(None, ge=0, description="FedProx's μ: short for local: {kind: proximal, mu: …}")
    keep_optimizer: bool = Field(
        False, description="a learner goes on from its optimizer's state after its last task, until it is restarted"
    )

    @model_validator(mode="after")
    def _epochs_or_batches(self) -> "TrainSpec":
        if self.batches is not None and self.epochs is not None:
            raise ValueError("a task has so many epochs or so many batches; give epochs or batches, not both")
        return self


class SitesSpec(Value):
    """Who takes part: every site that attends, or those named; the job starts when `min` of them are there."""

    min: int = Field(1, ge=1, strict=True)
    together: int = Field(1, ge=1, strict=True, description="a community model is of so many sites' updates, or more")
    wait: float = Field(60, ge=0, description="seconds to wait for `min` sites before the job fails")
    names: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _enough_names(self) -> "SitesSpec":
        if self.names is not None and len(set(self.names)) < self.min:
            raise ValueError(f"{len(set(self.names))} different names cannot make the {self.min} sites of `min`")
        return self

    @model_validator(mode="after")
    def _enough_to_merge(self) -> "SitesSpec":
        if self.together > self.min:
            raise ValueError(f"models of {self.together} sites (`together`) need `min` to be {self.together} or more")
        return self


class TargetSpec(Value):
    """Stop as soon as a metric is good enough."""

    metric: Literal["accuracy", "loss"]
    value: float


class StopSpec(Value):
    """When to stop before the pace says so."""

    seconds: float | None = Field(None, gt=0)
    target: TargetSpec | None = None


class DataSpec(Value):
    """Where the sites' data come from when `hansa run` plays all sites on one machine."""

    source: str = Field(description="a data set's name (`hansa data list`), a file, or a folder of images")
    partition: Mapping[str, Any] = {}
    sites: int | None = Field(None, ge=1, le=1000, description="default: 5, or all values of a natural key")
    examples: int | None = Field(None, ge=1, description="train on so many only, of each class in proportion")
    test: float | None = Field(None, ge=0, lt=1, description="share held out for testing; default: the set's own part")
    label: str | None = Field(None, description="the column of a table that is the label")


class JobSpec(Value):
    """One federation run."""

    name: str = "job"
    seed: int = Field(1990, ge=0, lt=1 << 63, strict=True)
    app: str
    rule: str = "fedavg"
    pace: Part | None = None
    sample: Part | None = None
    local: Part | None = None
    layers: Part | None = None
    weigh: Part | None = None
    merge: Part | None = None
    server: Part | None = None
    evaluate: Part | None = None
    train: TrainSpec = TrainSpec()
    validation: ValidationSpec = ValidationSpec()
    survey: SurveySpec = SurveySpec()
    sites: SitesSpec = SitesSpec()
    stop: StopSpec = StopSpec()
    init: str | None = Field(None, description="a safetensors file with version 0")
    reference: str | None = Field(None, description="a safetensors file: how far each version is from it is measured")
    operator: str = Field("", description="who submitted it; the controller writes it, never a job file")
    data: DataSpec | None = None

    @field_validator("name")
    @classmethod
    def _name_is_a_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("use up to 64 letters, digits, '.', '_' and '-'")
        return name

    @field_validator("app")
    @classmethod
    def _app_is_a_reference(cls, app: str) -> str:
        place, _, attribute = app.rpartition(":")
        if not place or not attribute.isidentifier():
            raise ValueError("write path/to/app.py:attribute or package.module:attribute")
        return app

    @field_validator("train")
    @classmethod
    def _proximal_or_local(cls, train: TrainSpec, info: ValidationInfo) -> TrainSpec:
        if train.proximal is not None and info.data.get("local") is not None:
            raise ValueError("proximal is short for local: {kind: proximal, …}; give one of them")
        return train

    def part(self, point: str) -> Part | None:
        """Return what the job says about one point of its rule."""
        if point == "local" and self.train.proximal is not None:
            return {"kind": "proximal", "mu": self.train.proximal} if self.train.proximal else {"kind": "plain"}
        return getattr(self, point) if point in POINTS else None


def parse_job(data: object, lines: Lines | None = None, source: str = "", final: bool = True) -> JobSpec:
    """Turn a document into a JobSpec or raise InvalidJob naming every wrong field.

    Rules and kinds of plugins that are not known here are faults only if `final`: a controller may know more of them.
    """
    if not isinstance(data, Mapping):
        raise InvalidJob(f"{source or 'the job'}: expected a mapping of fields such as name, app and rule")
    faults = part_faults(data, final)
    if data.get("operator"):
        faults.append((("operator",), "only the controller says who submitted a job"))
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as error:
        faults = problems(error, JobSpec) + part_faults(data, final=True)
    if faults:
        raise InvalidJob([located(fault, lines or {}, source) for fault in sorted(faults, key=_line_in(lines or {}))])
    return spec


def part_faults(data: Mapping[str, Any], final: bool) -> list[Problem]:
    """Check the rule and its parts against the plugins that are registered here."""
    known = plugins.rules()
    name = data.get("rule", JobSpec.model_fields["rule"].default)
    if not isinstance(name, str):
        return []  # JobSpec says so
    faults: list[Problem] = []
    if name not in known and final:
        faults.append((("rule",), f"there is no rule {name!r}" + suggestion(name, list(known)) + _not_loaded()))
    rule = known.get(name)
    for point in POINTS:
        given = data.get(point)
        if given is not None and not isinstance(given, Mapping):
            continue  # JobSpec says so
        kind, kinds = (given or {}).get("kind"), plugins.kinds(point)
        if kind is not None and (not isinstance(kind, str) or kind not in kinds):
            if final:
                faults.append(
                    ((point, "kind"), f"there is no {kind!r}" + suggestion(str(kind), list(kinds)) + _not_loaded())
                )
            continue
        if rule is None and kind is None:  # a part of a rule that nobody here knows
            faults += _faults_of_any(point, given) if final and given else []
            continue
        try:
            plugins.fill(point, rule, given)
        except ValidationError as error:
            cls = kinds[str(kind or (rule.part(point)["kind"] if rule else ""))]
            faults += problems(error, cls, (point,))
    return faults


def _faults_of_any(point: str, given: Part) -> list[Problem]:
    """Return what is wrong with a part whatever its kind is: the faults for the kind that it fits best."""
    found: list[tuple[int, list[Problem]]] = []  # with how many keys each kind does not know
    for cls in plugins.kinds(point).values():
        try:
            cls.model_validate(given)
        except ValidationError as error:
            strange = sum(fault["type"] == "extra_forbidden" for fault in error.errors())
            found.append((strange, problems(error, cls, (point,))))
        else:
            return []
    return min(found, key=lambda each: (each[0], len(each[1])), default=(0, []))[1]


def _not_loaded() -> str:
    """Name the packages whose plugins are missing."""
    return "".join(f"; the plugin package {name!r} could not be loaded: {why}" for name, why in undiscovered().items())


def problems(error: ValidationError, model: type[Value] = Value, within: FieldPath = ()) -> list[Problem]:
    """Describe every fault that pydantic found, with the field's path."""
    return [((*within, *f["loc"]), describe(f, model, f["loc"])) for f in error.errors(include_url=False)]


def located(problem: Problem, lines: Lines, source: str = "") -> str:
    """Write a problem with its field and, if known, its line."""
    path, text = problem
    where = f"{source}:{lines[path]}: " if path in lines else (f"{source}: " if source else "")
    field = ".".join(str(step) for step in path)
    return f"{where}{field}: {text}" if field else f"{where}{text}"


def _line_in(lines: Lines) -> Callable[[Problem], int]:
    return lambda problem: lines.get(problem[0], 1 << 30)


def describe(fault: Mapping[str, Any], model: type[Value], path: Sequence[Any]) -> str:
    """Say in one sentence what is wrong with a field, in the words of job files."""
    given = fault.get("input")
    shown = "" if isinstance(given, Mapping | list) else f" (given: {given!r})"
    match fault["type"]:
        case "extra_forbidden":
            of = ""
            if issubclass(model, Plugin) and len(path) == 1:  # perhaps the rule chose it: say of what it is no key
                of = f" of {model.kind}"
            return f"unknown key{of}" + suggestion(str(path[-1]), _known_at(model, path[:-1]))
        case "missing":
            return "is required"
        case "value_error":
            return str(fault["ctx"]["error"])
        case "dict_type" | "model_type":
            has_kind = (model is JobSpec and path[0] in POINTS) or "kind" in _known_at(model, path)
            hint = f", such as {{kind: {given}}}" if has_kind and isinstance(given, str) else shown
            return f"should be a section of keys and values{hint}"
        case "tuple_type" | "list_type":
            return f"should be a list, as in [a, b]{shown}"
        case "too_short":
            return f"should have {fault['ctx']['min_length']} or more, not {fault['ctx']['actual_length']}"
    message = str(fault["msg"])
    return message[:1].lower() + message[1:] + shown


def _known_at(model: type[Value], path: Iterable[Any]) -> list[str]:
    at: Any = model
    for step in path:
        field = getattr(at, "model_fields", {}).get(step)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        at = next((k for k in kinds if isinstance(k, type) and issubclass(k, Value)), None)
    return list(at.model_fields) if at else []


def load_job(path: Path, changes: Iterable[str] = (), here: bool = False) -> JobSpec:
    """Read a job file, apply `--set` changes and check the result; `here`: for a controller on this machine."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InvalidJob(f"{path}: cannot be read: {reason}") from None
    data, lines = parse_yaml(text, str(path))
    if isinstance(data, dict):
        for change in changes:
            apply_change(data, change)
    composer = importlib.import_module("hansa.controller.rules.compose")  # registers what is known on this machine
    spec = parse_job(data, lines, str(path), final=here)
    if not part_faults(spec.model_dump(), final=True):  # the controller knows more rules, and will say so itself
        clashes = composer.objections(spec)
        if clashes:
            raise InvalidJob([located(clash, lines, str(path)) for clash in clashes])
    files = {name: file for name, file in (("init", spec.init), ("reference", spec.reference)) if file}
    return spec.model_copy(update={name: str((path.parent / file).resolve()) for name, file in files.items()})


def parse_yaml(text: str, source: str) -> tuple[object, dict[tuple[Any, ...], int]]:
    """Parse plain YAML and remember on which line each field stands."""
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
    except (ValueError, KeyError, AttributeError, TypeError) as error:  # PyYAML's own way to refuse odd scalars
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
                raise InvalidJob(f"{source}:{key.start_mark.line + 1}: {'.'.join(map(str, step))}: given twice")
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
    if not equals or not all(steps):
        raise InvalidJob(f"--set {change}: write key=value, for example train.epochs=2")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError):
        raise InvalidJob(f"--set {change}: the value is not valid YAML") from None
    at = data
    for step in steps[:-1]:
        inner = at.get(step)
        if inner is None:
            inner = at[step] = {}
        if not isinstance(inner, dict):
            raise InvalidJob(f"--set {change}: {step} is not a section")
        at = inner
    at[steps[-1]] = value
