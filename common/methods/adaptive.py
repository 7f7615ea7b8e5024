"""The adaptive trigger at the learner: the plugin that decides when an update is due."""

from pydantic import Field

from hansa.common.values.bounds import EPOCHS, Value

ADAPTIVE = "adaptive"  # the plugin of learners that decides when an update is due


class Adaptive(Value):
    """Its arguments: train until the validation loss hardly falls, or the model is too stale (metis-dvw §4)."""

    vc_loss: float = Field(ge=0)  # percent by which an epoch must lower the validation loss
    tombstones: int = Field(ge=0, le=EPOCHS)  # epochs that may fail to
    limit: float | None = None  # on the effective staleness, in optimizer steps
    epochs: int = Field(ge=1, le=EPOCHS)  # that a site without validation data makes
