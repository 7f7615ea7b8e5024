"""FedProx at the learner: the plugin that holds an update near the model it started from."""

from pydantic import Field

from hansa.common.values.bounds import Value

PROXIMAL = "proximal"  # the plugin of learners that holds an update near the model it started from


class Proximal(Value):
    """Its argument: how strongly (baselines §3)."""

    mu: float = Field(ge=0)
