"""How a job wants sites to train: the section `train` of a job file."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from hansa.common.values.bounds import BATCH, BATCHES, EPOCHS, ROUNDS, SECONDS, Value
from hansa.common.values.settings.optimizers import OptimizerSpec, ScheduleSpec


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
    schedule: ScheduleSpec = Field(ScheduleSpec(), description="how the learning rate changes")
    clip: float | None = Field(
        None, gt=0, le=1e9, description="gradients with a larger norm are scaled down to it"
    )
    accumulate: int = Field(
        1, ge=1, le=BATCHES, strict=True, description="batches whose gradients make up one step"
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="bf16: networks compute in bfloat16 in training; weights stay as they are"
    )
    max_seconds: float | None = Field(
        None, gt=0, le=SECONDS, description="after so many seconds a task ends with the steps made by then"
    )
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

    @model_validator(mode="after")
    def _windows_are_whole(self) -> "TrainSpec":
        if self.batches is not None and self.accumulate > 1:
            raise ValueError(
                "accumulate does not go with batches: a batch of a window is a step; use a larger batch_size"
            )
        if self.batches is not None and self.max_seconds is not None:
            raise ValueError(
                "max_seconds does not go with batches: the next window begins where this one is to end"
            )
        return self
