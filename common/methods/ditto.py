"""Ditto: the learner plugin that trains a model of the site's own beside the community's."""

from pydantic import Field

from hansa.common.values.bounds import EPOCHS, Value

DITTO = "ditto"


class Ditto(Value):
    """Arguments: how near to the community's model, and for how long (personal-models §5)."""

    lam: float = Field(ge=0)  # λ
    epochs: int = Field(ge=1, le=EPOCHS, strict=True)  # site policies count them
