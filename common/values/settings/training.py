"""How sites train and prepare their data, as jobs specify it and tasks carry it."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from hansa.common.values.bounds import ARGUMENTS, COLUMNS, PATTERNS, AuxiliaryName, ShortText, Value, writable


def _is_json(args: Mapping[str, object]) -> Mapping[str, object]:
    """Refuse arguments that cannot be written as JSON or are too long for a task."""
    try:
        size = len(writable(json.dumps(args, ensure_ascii=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"arguments are strings, numbers, lists and dictionaries; JSON cannot hold them: {error}"
        ) from None
    if size > ARGUMENTS:
        raise ValueError(f"arguments of {size} characters; at most {ARGUMENTS} are allowed")
    return args


class ValidationSpec(Value):
    """The part of a site's data that its learner never trains on."""

    fraction: float = Field(0.05, ge=0, lt=1)
    stratified: bool = True


class SurveySpec(Value):
    """What sites report about their data before the first round, and how features are standardised."""

    standardise: Literal["none", "local", "global"] = Field(
        "none", description="local: by each site's own means; global: by those of all sites together"
    )
    columns: int | None = Field(
        None, ge=1, le=COLUMNS, strict=True, description="only the first so many columns (default: all)"
    )
    classes: bool = Field(False, description="ask for the number of examples of each class")

    @property
    def asks(self) -> bool:
        """Whether sites have to be asked."""
        return self.standardise == "global" or self.classes

    @model_validator(mode="after")
    def _columns_are_standardised(self) -> "SurveySpec":
        if self.columns is not None and self.standardise == "none":
            raise ValueError("columns says what to standardise; set standardise to local or global")
        return self


class Standard(Value):
    """How features are standardised: by each site's own data, or everywhere by the same moments."""

    kind: Literal["local", "global"]
    columns: int | None = Field(None, ge=1, le=COLUMNS)  # local: how many columns; None: all
    mean: tuple[float, ...] = Field((), max_length=COLUMNS)  # global
    deviation: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=COLUMNS)

    @model_validator(mode="after")
    def _one_deviation_for_each_mean(self) -> "Standard":
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means do not fit {len(self.deviation)} deviations")
        return self


class AuxiliarySpec(Value):
    """Tensors beside the model, as a training task names them."""

    name: AuxiliaryName
    down: bool = True  # the site uses them in training
    up: bool = True  # the site returns some with its update
    reset: bool = False  # those that the model has do not count: they are zeros again


# The characters of tensors' names, and those that stand for others.
Pattern = Annotated[ShortText, StringConstraints(pattern=r"^[A-Za-z0-9._+:@/*?\[\]!-]+$")]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=PATTERNS)]


class Travel(Value):
    """Which tensors of the app's model travel; the others stay at the sites (personal-models §1).

    Patterns are those of a shell (`head.*`), and match the names of tensors.
    """

    kind: Literal["all", "trainable", "personal"] = "all"
    match: Patterns = ()  # trainable: what travels, in place of all that the app trains; personal: what stays
    norm: bool = False  # personal: normalisation layers stay
    last: int = Field(0, ge=0, le=COLUMNS)  # personal: this many of the last layers stay
    personal: Patterns = ()  # trainable: what stays and is the site's own

    @property
    def whole(self) -> bool:
        """Whether the whole model travels."""
        return self.kind == "all"

    @property
    def leaves_own(self) -> bool:
        """Whether some tensors are each site's own."""
        return self.kind == "personal" or bool(self.personal)


class LocalPluginSpec(Value):
    """A learner's plugin by name; its arguments are JSON."""

    name: ShortText
    args: Annotated[Mapping[str, object], AfterValidator(_is_json)] = {}
