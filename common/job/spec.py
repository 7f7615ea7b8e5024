"""A job as an operator writes it. It is checked once (`hansa.common.job.check`); a JobSpec is always valid.

The parts of a rule (pace, sample, local, layers, weigh, merge, server, evaluate) stay plain mappings: they
are checked against the registered plugins, and `hansa.controller.rulebook.compose` turns them into plugins.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hansa.common.job.simulate import SimulateSpec
from hansa.common.plugins.registry import POINTS
from hansa.common.values.bounds import BATCH, BATCHES, EPOCHS, ROUNDS, SECONDS, SITES, TEXT, Value
from hansa.common.values.ids import NAME
from hansa.common.values.resolved import Software
from hansa.common.values.training import OptimizerSpec, SurveySpec, ValidationSpec

PartSpec = Mapping[str, Any]
FieldPath = tuple[Any, ...]
Problem = tuple[FieldPath, str]  # where, and what is wrong there


class GroupSpec(Value):
    """Sites with their own thresholds, such as slow ones."""

    sites: tuple[str, ...] = Field(min_length=1)
    vc_loss: float | None = Field(None, ge=0)
    tombstones: int | None = Field(None, ge=0, le=EPOCHS, strict=True)


class UntilSpec(Value):
    """Train until the validation loss hardly falls, or the model is too stale (metis-dvw §4, §5)."""

    kind: Literal["adaptive"] = Field("adaptive", description="VC_Loss, tombstones and staleness decide")
    vc_loss: float = Field(
        1.0, ge=0, description="percent by which an epoch must lower the validation loss; 0: at all"
    )
    tombstones: int = Field(1, ge=0, le=EPOCHS, strict=True, description="epochs of a task that may fail to")
    max_epochs: int = Field(100, ge=1, le=EPOCHS, strict=True, description="the most epochs of a task")
    cycles: int = Field(
        20, ge=1, le=ROUNDS, strict=True, description="tasks after which a site's staleness is limited"
    )
    rolling: bool = Field(
        False,
        description="the limit is the median of all tasks, not of the first: each that it ends pulls it down",
    )
    groups: Mapping[str, GroupSpec] = Field(
        {},
        description="sites with other thresholds, by the group's name: `sites`, vc_loss and tombstones",
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
        """Return vc_loss and tombstones of a site: its group's, or the common ones."""
        group = next((group for group in self.groups.values() if site in group.sites), None)
        vc_loss = group.vc_loss if group and group.vc_loss is not None else self.vc_loss
        return vc_loss, group.tombstones if group and group.tombstones is not None else self.tombstones


class TrainSpec(Value):
    """How a learner trains for a task."""

    epochs: int | None = Field(
        None, ge=1, le=EPOCHS, strict=True, description="none: as many as the rule starts from"
    )
    batches: int | None = Field(
        None, ge=1, le=BATCHES, strict=True, description="instead of epochs: FedMMB's C"
    )
    until: UntilSpec | None = Field(None, description="instead of a fixed number of epochs")
    batch_size: int = Field(32, ge=1, le=BATCH, strict=True)
    optimizer: OptimizerSpec = OptimizerSpec()
    proximal: float | None = Field(
        None, ge=0, description="FedProx's μ: short for local: {kind: proximal, mu: …}"
    )
    keep_optimizer: bool = Field(
        False,
        description="a learner goes on from its optimizer's state after its last task, until it is restarted",
    )

    @model_validator(mode="after")
    def _epochs_or_batches(self) -> "TrainSpec":
        if self.batches is not None and self.epochs is not None:
            raise ValueError("a task has a number of epochs or of batches; give epochs or batches, not both")
        return self


class SitesSpec(Value):
    """Which sites take part: all that are connected, or those named; `min` of them start the job."""

    min: int = Field(1, ge=1, le=SITES, strict=True)
    together: int = Field(
        1, ge=1, le=SITES, strict=True, description="a community model is of so many sites' updates, or more"
    )
    wait: float = Field(
        60, ge=0, le=SECONDS, description="seconds to wait for `min` sites before the job fails"
    )
    names: tuple[str, ...] | None = None
    same_app: bool = Field(
        False, description="only sites that have loaded the same source of the app take part"
    )

    @model_validator(mode="after")
    def _enough_names(self) -> "SitesSpec":
        if self.names is not None and len(set(self.names)) < self.min:
            raise ValueError(
                f"{len(set(self.names))} different names are too few for `min`, which is {self.min} sites"
            )
        return self

    @model_validator(mode="after")
    def _enough_to_merge(self) -> "SitesSpec":
        if self.together > self.min:
            raise ValueError(
                f"models of {self.together} sites (`together`) require a `min` of {self.together} or more"
            )
        return self


class TargetSpec(Value):
    """Stop as soon as a metric is good enough."""

    metric: Literal["accuracy", "loss", "accuracy_personal", "loss_personal"]
    value: float


class StopSpec(Value):
    """When to stop earlier than the pace does."""

    seconds: float | None = Field(None, gt=0, le=SECONDS)
    target: TargetSpec | None = None


class DataSpec(Value):
    """Where the sites' data come from when `hansa run` runs all sites on one machine."""

    source: str | None = Field(
        None, description="a data set's name (`hansa data list`), a file, or a folder of images"
    )
    files: Mapping[str, str] | None = Field(
        None,
        max_length=SITES,
        description="instead: the file or folder of each site, from the job file's folder",
    )
    partition: Mapping[str, Any] = {}
    sites: int | None = Field(
        None, ge=1, le=SITES, strict=True, description="default: 5, or all values of a natural key"
    )
    examples: int | None = Field(
        None, ge=1, lt=1 << 53, strict=True, description="train on so many only, of each class in proportion"
    )
    test: float | None = Field(
        None, ge=0, lt=1, description="share held out for testing; default: the set's own part"
    )
    label: str | None = Field(None, description="the column of a table that is the label")
    central: bool = Field(False, description="one site holds all data, as after `hansa run --central`")

    @field_validator("files")
    @classmethod
    def _sites_have_names(cls, files: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if files is not None and not files:
            raise ValueError("name at least one site, such as files: {ana: a.csv, ben: b.csv}")
        for name in files or ():
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be a site's name: use letters, digits, '.', '_' and '-'")
        return files

    @model_validator(mode="after")
    def _source_or_files(self) -> "DataSpec":
        if self.source is None and self.files is None:
            raise ValueError(
                "give source (a data set that is split across sites) or files (one for each site)"
            )
        if self.files is None:
            return self
        others = [
            name for name in type(self).model_fields if name in self.model_fields_set and name != "files"
        ]
        if "label" in others:
            raise ValueError(
                "label: with files every site reads its own; name the column in the app, App(…, label=…)"
            )
        if others:
            raise ValueError(f"{others[0]}: it cannot be combined with files, which give each site its data")
        return self


class JobSpec(Value):
    """One federation run."""

    name: str = "job"
    seed: int = Field(1990, ge=0, lt=1 << 63, strict=True)
    app: str = Field(max_length=TEXT)
    rule: str = "fedavg"
    pace: PartSpec | None = None
    sample: PartSpec | None = None
    local: PartSpec | None = None
    layers: PartSpec | None = None
    transfer: PartSpec | None = None
    weigh: PartSpec | None = None
    merge: PartSpec | None = None
    server: PartSpec | None = None
    evaluate: PartSpec | None = None
    train: TrainSpec = TrainSpec()
    validation: ValidationSpec = ValidationSpec()
    survey: SurveySpec = SurveySpec()
    sites: SitesSpec = SitesSpec()
    stop: StopSpec = StopSpec()
    init: str | None = Field(None, description="a safetensors file with version 0")
    reference: str | None = Field(
        None, description="a safetensors file: how far each version is from it is measured"
    )
    operator: str = Field("", description="who submitted it; the controller writes it, never a job file")
    made_with: Software | None = Field(
        None, description="what it is run with; the controller writes it, likewise"
    )
    data: DataSpec | None = None
    simulate: SimulateSpec | None = None

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

    def part(self, point: str) -> PartSpec | None:
        """Return the job's own parameters at one point of its rule."""
        if point == "local" and self.train.proximal is not None:
            return (
                {"kind": "proximal", "mu": self.train.proximal} if self.train.proximal else {"kind": "plain"}
            )
        return getattr(self, point) if point in POINTS else None
