"""Bounds of all numbers and texts on the wire (`protos/fleet.proto`), and the types that enforce them.

Jobs and plugins are held to the same bounds, so that nothing is accepted that cannot be sent to a site. Sites
check the controller's messages against them, too.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from hansa.common.values.ids import NAME

COLUMNS = 16_384  # columns that can be standardised: means and deviations travel with every task
STEPS = 1 << 32  # optimizer steps behind one update
ASKED = 1_000_000_000  # optimizer steps that one task can ask for
EPOCHS = 100_000  # epochs of one task
BATCHES = 1_000_000  # batches of one task that is a window of batches
BATCH = 1 << 31  # examples in a batch: more than any site has
ROUNDS = 100_000_000  # rounds of a job, or updates of a job without rounds
HOPS = 10_000  # hops of a round in which models travel
SITES = 1_000_000  # sites of a job
SECONDS = 1e9  # length of any wait: thirty years, which a clock can still be set to
TEXT = 1000  # characters of a text that is not a path, such as the name of a plugin
ARGUMENTS = 1 << 20  # characters of a plugin's arguments, as JSON
PLUGINS = 100  # learner plugins that one task asks for: each may use as much memory as the model
PATTERNS = 100  # patterns of tensors' names that say what travels
MOST_NAMED = 1000  # apps that a site allows, and tasks in hand, when it enrols
TIES = 1000  # parameters of a model that have several names
METRICS = (
    100  # an app's own metrics, which the history keeps for every version; likewise metrics of an update
)

AUXILIARY = 10  # kinds of auxiliary tensors: each is as large as the model's parameters

AuxiliaryName = Annotated[str, StringConstraints(pattern=f"^(?:{NAME.pattern})$")]

MetricName = Annotated[str, StringConstraints(pattern=f"^(?:{NAME.pattern})$")]

Count = Annotated[int, Field(ge=0, lt=1 << 53)]  # a number of examples

Number = Annotated[int, Field(ge=0, lt=1 << 32)]  # a uint32 on the wire

Long = Annotated[int, Field(ge=0, lt=1 << 63)]  # a uint64 on the wire that also fits a signed integer


def writable(text: str) -> str:
    """Refuse text with half a surrogate pair: it has no UTF-8 form, so it can be neither sent nor stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half a surrogate pair, which UTF-8 cannot express") from None
    return text


Text = Annotated[str, AfterValidator(writable)]

ShortText = Annotated[Text, Field(max_length=TEXT)]


Digest = Annotated[str, StringConstraints(pattern="^([0-9a-f]{64})?$")]  # in hexadecimal; empty: of nothing


class Value(BaseModel):
    """A frozen, strict value, such as the journal stores and the wire carries."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=False)
