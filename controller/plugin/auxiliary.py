"""Auxiliary tensors, as parts of a rule declare them: what travels beside the model, and how it is merged."""

from typing import Literal

from hansa.common.values.bounds import AuxiliaryName, Value


class Auxiliary(Value):
    """Tensors beside the model: one for each of its parameters, in float32, all zeros at first.

    `mean`: the next ones are the mean of those that come up, with the weights of the merge. `add`: the sum of
    those that come up, divided by the number of the job's sites (when the round began, if there are rounds),
    is added to the current ones. Updates that do not count in a merge (weight 0) do not count here, either.
    """

    name: AuxiliaryName
    down: bool = True  # sites are sent the current ones with a task
    up: bool = True  # sites return some with their updates
    merge: Literal["mean", "add"] = "mean"
    of: Literal["parameters"] = "parameters"
