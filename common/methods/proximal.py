"""FedProx: the learner plugin that keeps an update near the model that it started from."""

from pydantic import Field

from hansa.common.values.bounds import Value

PROXIMAL = "proximal"


class Proximal(Value):
    """Arguments: how strongly (baselines §3)."""

    mu: float = Field(ge=0)
