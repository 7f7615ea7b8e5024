"""SCAFFOLD: the learner plugin that corrects a site's gradients by control variates."""

from hansa.common.values.bounds import ShortText, Value

SCAFFOLD = "scaffold"
CONTROL = "control"  # the auxiliary tensors: c on the way down, Δc_i on the way up
LOST = "scaffold_lost"  # the metric of a site that no longer has its control variate


class Scaffold(Value):
    """Arguments: whose control variate the site continues (scaffold §2)."""

    merged: ShortText = (
        ""  # the task of the site's last merged update in this epoch; empty: it starts at zero
    )
