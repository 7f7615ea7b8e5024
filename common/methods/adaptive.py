"""The adaptive trigger: the learner plugin that decides when an update is due."""

from pydantic import Field

from hansa.common.values.bounds import EPOCHS, Value

ADAPTIVE = "adaptive"


class Adaptive(Value):
    """Arguments: train until the validation loss hardly falls, or the model is too stale (metis-dvw §4)."""

    vc_loss: float = Field(ge=0)  # percent by which an epoch must lower the validation loss
    tombstones: int = Field(ge=0, le=EPOCHS)  # epochs that may fail to lower it so much
    limit: float | None = None  # of the effective staleness, in optimizer steps
    epochs: int = Field(ge=1, le=EPOCHS)  # for a site without validation data
