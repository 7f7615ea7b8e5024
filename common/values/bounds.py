"""Bounds of every number and text that crosses the wire (`protos/fleet.proto`), and the values that keep to them.

Jobs and plugins are held to the same bounds, so that nothing is accepted that cannot be sent to a site; sites hold
controllers to them.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from hansa.common.values.ids import NAME

COLUMNS = 16_384  # that can be standardised: means and deviations travel with every task
STEPS = 1 << 32  # of the optimizer, that an update can have
ASKED = 1_000_000_000  # of them, that one task can ask for
EPOCHS = 100_000  # of one task
BATCHES = 1_000_000  # of one task that is a window of batches
BATCH = 1 << 31  # examples in a batch, at most: more than any site has
ROUNDS = 100_000_000  # of a job, and updates of one without rounds
HOPS = 10_000  # of a round, where models travel
SITES = 1_000_000  # of a job
SECONDS = 1e9  # of any wait: thirty years, which a clock can still be set to
TEXT = 1000  # characters of a text that is no path, such as the name of a plugin
ARGUMENTS = 1 << 20  # characters of a plugin's arguments, as JSON
PLUGINS = 100  # of learners that one task asks for: each may hold as much as the model
MOST_NAMED = 1000  # apps that a site allows, and tasks in hand, when it enrols
TIES = 1000  # parameters of a model that have several names
METRICS = 100  # of an app's own, and of an update; the history keeps the former for every version

MetricName = Annotated[str, StringConstraints(pattern=f"^(?:{NAME.pattern})$")]

Count = Annotated[int, Field(ge=0, lt=1 << 53)]  # of examples

Number = Annotated[int, Field(ge=0, lt=1 << 32)]  # a uint32 of the wire

Long = Annotated[int, Field(ge=0, lt=1 << 63)]  # a uint64 of the wire that can be told in a signed one, too


def writable(text: str) -> str:
    """Refuse text with half a surrogate pair: no UTF-8 stands for it, so it can be neither sent nor stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half a surrogate pair, which UTF-8 cannot express") from None
    return text


Text = Annotated[str, AfterValidator(writable)]

ShortText = Annotated[Text, Field(max_length=TEXT)]


class Value(BaseModel):
    """A frozen, strict value: what the journal keeps and the wire carries."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=False)
