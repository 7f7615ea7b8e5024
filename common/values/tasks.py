"""What the controller asks of a site, as plain values."""

from typing import Annotated, Literal

from pydantic import Field

from hansa.common.values.bounds import (
    ASKED,
    AUXILIARY,
    BATCH,
    BATCHES,
    COLUMNS,
    EPOCHS,
    PLUGINS,
    SECONDS,
    Digest,
    Long,
    Number,
    ShortText,
    Text,
    Value,
)
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec, ScheduleSpec
from hansa.common.values.settings.training import (
    AuxiliarySpec,
    LocalPluginSpec,
    Standard,
    Travel,
    ValidationSpec,
)


class Survey(Value):
    """Report statistics of the training data: moments of columns, examples of each class, or both."""

    kind: Literal["survey"] = "survey"
    moments: bool
    columns: int | None = Field(None, ge=1, le=COLUMNS)
    classes: bool


class Init(Value):
    """Build version 0 from the app with the job's seed."""

    kind: Literal["init"] = "init"


class Train(Value):
    """Train the model and return the named tensors (all, if none are named)."""

    kind: Literal["train"] = "train"
    model: ModelKey
    base: ModelKey | None = None  # if set: the model is partial and replaces tensors of this one
    version: Long
    committed: Long = 0  # optimizer steps in the model when the task was issued
    tensors: tuple[Text, ...] = ()
    epochs: int = Field(ge=1, le=EPOCHS)
    # If not 0: first train the site's own tensors alone for this many epochs, then those that travel alone.
    personal_epochs: int = Field(0, ge=0, le=EPOCHS)
    steps: int = Field(0, ge=0, le=ASKED)  # if not 0: this many optimizer steps instead of epochs
    # If not 0: this many of the next batches of a pass instead of epochs.
    batches: int = Field(0, ge=0, le=BATCHES)
    after: ShortText = ""  # the task of the site's last update that has a receipt; "" if there is none
    batch_size: int = Field(ge=1, le=BATCH)
    optimizer: OptimizerSpec
    plugins: tuple[LocalPluginSpec, ...] = Field((), max_length=PLUGINS)
    validate_update: bool = False  # evaluate the update on the site's own validation data
    schedule: ScheduleSpec = ScheduleSpec()  # of the learning rate within the task
    clip: float = Field(0, ge=0, le=1e9)  # if not 0: the largest norm of a step's gradients
    accumulate: int = Field(1, ge=1, le=BATCHES)  # batches that make up a step
    precision: Literal["float32", "bf16"] = "float32"
    max_seconds: float = Field(0, ge=0, le=SECONDS)  # if not 0: the task ends after so many seconds
    keep_optimizer: bool = False  # continue with the optimizer's state after the site's last task of the job
    # The plugin that composes the batches; None: epochs in random order.
    source: LocalPluginSpec | None = None
    # How the update is sent; None: as it is.
    encoding: LocalPluginSpec | None = None
    auxiliary: tuple[AuxiliarySpec, ...] = Field((), max_length=AUXILIARY)  # tensors beside the model


class Probe(Value):
    """Report what a plugin finds in the model on the training data, without training."""

    kind: Literal["probe"] = "probe"
    model: ModelKey
    batch_size: int = Field(ge=1, le=BATCH)
    plugin: LocalPluginSpec


class Evaluate(Value):
    """Evaluate the model on the site's validation or test data."""

    kind: Literal["evaluate"] = "evaluate"
    model: ModelKey
    base: ModelKey | None = None  # if set: the model is partial and replaces tensors of this one
    version: Long
    validation: bool = False  # use the validation data, even if the evaluator usually uses test data
    own_model: bool = False  # evaluate the site's own model as well
    both: bool = False  # evaluate on the validation data as well, if the evaluator uses test data


class Terms(Value):
    """What a site's owner may want to know about a job before the site works for it."""

    operator: ShortText = ""
    sites: Number = 1  # the smallest number of sites that it starts with
    together: Number = 1  # the smallest number of sites whose updates make up a community model
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
    hop: Number = 0  # the hop within the round, from 1, if models travel from site to site
    slot: Number = 0  # the travelling model, from 1
    turn: Number = 0  # hops of the whole job up to this one, for learning-rate schedules
    local_statistics: bool = False  # batch-norm statistics and counters stay at each site
    travel: Travel = Travel()  # which tensors of the app's model are in the job's models
    backbone: Digest = ""  # the digest of what stays and is the same everywhere, once it is known
    terms: Terms = Terms()  # added when the task is sent

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """The models that the site needs: one, and its base if it is partial."""
        if isinstance(self.work, Survey | Init):
            return ()
        if isinstance(self.work, Probe):
            return (self.work.model,)
        return (self.work.model,) if self.work.base is None else (self.work.base, self.work.model)
