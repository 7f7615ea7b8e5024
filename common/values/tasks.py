"""What the controller asks of a site, as plain values."""

from typing import Annotated, Literal

from pydantic import Field

from hansa.common.values.bounds import (
    ASKED,
    BATCH,
    BATCHES,
    COLUMNS,
    EPOCHS,
    PLUGINS,
    Long,
    Number,
    ShortText,
    Text,
    Value,
)
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.training import LocalPluginSpec, OptimizerSpec, Standard, ValidationSpec


class Survey(Value):
    """Tell sums over the training data: of columns (number, mean, squared deviations), of classes, or both."""

    kind: Literal["survey"] = "survey"
    moments: bool
    columns: int | None = Field(None, ge=1, le=COLUMNS)
    classes: bool


class Init(Value):
    """Build version 0 from the app with the job's seed."""

    kind: Literal["init"] = "init"


class Train(Value):
    """Train the model and return the tensors named (all, if none are)."""

    kind: Literal["train"] = "train"
    model: ModelKey
    base: ModelKey | None = None  # the model is partial and is laid over this one
    version: Long
    committed: Long = 0  # optimizer steps in the model when the task was given
    tensors: tuple[Text, ...] = ()
    epochs: int = Field(ge=1, le=EPOCHS)
    steps: int = Field(0, ge=0, le=ASKED)  # if not 0: so many optimizer steps instead of epochs
    batches: int = Field(
        0, ge=0, le=BATCHES
    )  # if not 0: the next so many batches of a pass instead of epochs
    after: ShortText = ""  # with batches: the task of the site's last update that is committed
    batch_size: int = Field(ge=1, le=BATCH)
    optimizer: OptimizerSpec
    plugins: tuple[LocalPluginSpec, ...] = Field((), max_length=PLUGINS)
    validate_update: bool = False  # measure the update on the site's own validation part
    keep_optimizer: bool = False  # go on from the optimizer's state after the job's last task at the site
    source: LocalPluginSpec | None = (
        None  # who says which examples make up which batch; none: epochs in random order
    )


class Probe(Value):
    """Tell how large the gradients of the model are over the training data; nothing is trained."""

    kind: Literal["probe"] = "probe"
    model: ModelKey
    batch_size: int = Field(ge=1, le=BATCH)
    plugin: LocalPluginSpec


class Evaluate(Value):
    """Measure the model on the site's validation or test data."""

    kind: Literal["evaluate"] = "evaluate"
    model: ModelKey
    base: ModelKey | None = None  # the model is partial and is laid over this one
    version: Long
    validation: bool = False  # on the validation part, even if the evaluator is there for test data


class Terms(Value):
    """What a site's owner may want to know of a job before the site works for it."""

    operator: ShortText = ""
    sites: Number = 1  # the least number it starts with
    together: Number = 1  # the least number whose updates make a community model
    redistributes: bool = False  # its rule shows sites' own models to other sites


Work = Annotated[Survey | Init | Probe | Train | Evaluate, Field(discriminator="kind")]


class Task(Value):
    """One piece of work for one site. The same id always means the same work."""

    id: TaskId
    job: JobId
    site: SiteName
    round: Number
    app: ShortText
    seed: Long
    validation: ValidationSpec
    standard: Standard | None = None
    work: Work
    hop: Number = 0  # which hop of the round, from 1 on, where models travel from site to site
    slot: Number = 0  # which of the travelling models, from 1 on
    turn: Number = 0  # hops of the whole job up to this one: what learning-rate schedules count
    local_statistics: bool = False  # batch-norm statistics and counters are each site's own: none travel
    terms: Terms = Terms()  # added when the task is sent

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """What the site needs for it: a model, and the one that it is laid over if it is partial."""
        if isinstance(self.work, Survey | Init):
            return ()
        if isinstance(self.work, Probe):
            return (self.work.model,)
        return (self.work.model,) if self.work.base is None else (self.work.base, self.work.model)
