"""JSON documents for programs and for the history: JSON knows neither NaN nor infinity, so such numbers are null."""

import json
import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a value of JSON's kinds with null in the place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def written(document: object) -> str:
    """Write a document for programs."""
    return escaped(finite(document), indent=2)


def escaped(document: object, indent: int | None = None) -> str:
    """Write JSON in which nothing can steer a terminal: of ASCII, json escapes all control characters except DEL."""
    return json.dumps(document, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")
