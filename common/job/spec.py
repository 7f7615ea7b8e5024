"""A job as an operator writes it. It is checked once (`hansa.common.job.check`); a JobSpec is always valid.

The parts of a rule (pace, sample, local, layers, weigh, merge, server, evaluate) stay plain mappings: they
are checked against the registered plugins, and `hansa.controller.rulebook.compose` turns them into plugins.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hansa.common.job.simulate import SimulateSpec
from hansa.common.job.training import TrainSpec
from hansa.common.plugins.registry import POINTS
from hansa.common.values.bounds import SECONDS, SITES, TEXT, Value
from hansa.common.values.ids import NAME
from hansa.common.values.resolved import Software
from hansa.common.values.settings.keep import KeepSpec, StopSpec
from hansa.common.values.settings.training import SurveySpec, ValidationSpec

PartSpec = Mapping[str, Any]
FieldPath = tuple[Any, ...]
Problem = tuple[FieldPath, str]  # where, and what is wrong there


class SitesSpec(Value):
    """Which sites take part: all that are connected, or those named; `min` of them start the job.

    Sites that are named in `validation` or `test` are held out: they evaluate, and never train.
    """

    min: int = Field(1, ge=1, le=SITES, strict=True)
    together: int = Field(
        1, ge=1, le=SITES, strict=True, description="a community model is of so many sites' updates, or more"
    )
    wait: float = Field(
        60, ge=0, le=SECONDS, description="seconds to wait for `min` sites before the job fails"
    )
    names: tuple[str, ...] | None = None
    validation: tuple[str, ...] = Field(
        (), description="sites that only evaluate, and whose reports alone make the job's metrics"
    )
    test: tuple[str, ...] = Field(
        (), description="sites that only evaluate; their metrics are reported apart and decide nothing"
    )
    same_app: bool = Field(
        False, description="only sites that have loaded the same source of the app take part"
    )

    @model_validator(mode="after")
    def _enough_names(self) -> "SitesSpec":
        if self.names is None:
            return self
        training = {*self.names} - {*self.validation, *self.test}
        if len(training) < self.min:
            raise ValueError(
                f"{len(training)} different names are too few for `min`, which is {self.min} sites"
            )
        return self

    @model_validator(mode="after")
    def _held_out_once(self) -> "SitesSpec":
        for site in sorted({*self.validation} & {*self.test}):
            raise ValueError(f"site {site} is in `validation` and in `test`; name it once")
        return self

    @model_validator(mode="after")
    def _enough_to_merge(self) -> "SitesSpec":
        if self.together > self.min:
            raise ValueError(
                f"models of {self.together} sites (`together`) require a `min` of {self.together} or more"
            )
        return self

    def trains(self, site: str) -> bool:
        """Whether a site's learner takes part."""
        return not self._holds_out(site) and (self.names is None or site in self.names)

    def evaluates(self, site: str) -> bool:
        """Whether a site's evaluator takes part."""
        return self._holds_out(site) or self.names is None or site in self.names

    def _holds_out(self, site: str) -> bool:
        return site in self.validation or site in self.test


class HoldoutSpec(Value):
    """Which sites are held out: one fold of a cross-validation by site (partitioning §9)."""

    folds: int = Field(5, le=1000, strict=True, description="sets that the sites are divided into")
    fold: int = Field(0, ge=0, strict=True, description="from 0: the set that tests; the next one validates")
    nested: bool = Field(
        False, description="folds are pairs of a test set and a validation set: the first set with each other"
    )

    @field_validator("folds")
    @classmethod
    def _three_sets(cls, folds: int) -> int:
        if folds < 3:
            raise ValueError(f"{folds} are too few: test, validation and training need one set each")
        return folds

    @model_validator(mode="after")
    def _fold_exists(self) -> "HoldoutSpec":
        count = self.folds * (self.folds - 1) if self.nested else self.folds
        if self.fold < count:
            return self
        what = f"{count} pairs of a test set and a validation set" if self.nested else f"{count} folds"
        more = "" if self.nested else "; with nested: true every pair of sets is a fold"
        raise ValueError(f"there is no fold {self.fold}: the {what} are numbered from 0 to {count - 1}{more}")


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
    holdout: HoldoutSpec | None = Field(
        None, description="some sites do not train: some validate, others test, on all their data"
    )
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
            name
            for name in type(self).model_fields
            if name in self.model_fields_set and name not in ("files", "holdout")
        ]
        if "label" in others:
            raise ValueError(
                "label: with files every site reads its own; name the column in the app, App(…, label=…)"
            )
        if others:
            raise ValueError(f"{others[0]}: it cannot be combined with files, which give each site its data")
        return self

    @model_validator(mode="after")
    def _nothing_else_is_held_out(self) -> "DataSpec":
        if self.holdout and self.test:
            raise ValueError(
                "test: with holdout, whole sites are held out instead of a share; leave test out"
            )
        if self.holdout and self.files is not None and len(self.files) < self.holdout.folds:
            raise ValueError(
                f"holdout: {len(self.files)} sites cannot make {self.holdout.folds} folds; use fewer folds"
            )
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
    keep: KeepSpec = KeepSpec()
    stop: StopSpec = StopSpec()
    init: str | None = Field(None, description="a safetensors file with version 0")
    reference: str | None = Field(
        None, description="a safetensors file: how far each version is from it is measured"
    )
    operator: str = Field("", description="who submitted it; the controller writes it, never a job file")
    key: str = Field(
        "", max_length=200, description="what it was submitted under; the controller writes it, likewise"
    )
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

    @field_validator("stop")
    @classmethod
    def _patience_has_a_measure(cls, stop: StopSpec, info: ValidationInfo) -> StopSpec:
        keep = info.data.get("keep")
        if stop.patience is not None and keep is not None and keep.best is None:
            raise ValueError(
                "patience: it waits for a better version than the best, so keep.best cannot be null"
            )
        return stop

    @property
    def evaluates_twice(self) -> bool:
        """Whether evaluators with test data also use validation data, by which a version can be chosen."""
        best = self.keep.best
        return best is not None and (best.metric is not None or self.stop.patience is not None)

    @property
    def holds_out(self) -> bool:
        """Whether some sites only evaluate."""
        return bool(self.sites.validation or self.sites.test or (self.data and self.data.holdout))

    def part(self, point: str) -> PartSpec | None:
        """Return the job's own parameters at one point of its rule."""
        if point == "local" and self.train.proximal is not None:
            return (
                {"kind": "proximal", "mu": self.train.proximal} if self.train.proximal else {"kind": "plain"}
            )
        return getattr(self, point) if point in POINTS else None
