"""Checks of third-party plugin classes, made when their package is loaded."""

import inspect
from collections.abc import Set
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from hansa.common.values.errors import one_line

ANYTHING = (Exception, SystemExit)  # what a plugin may raise: none of it may end a controller


def fault_of(cls: object, contract: type | None) -> str:
    """Return why a class cannot be a plugin, or ""; `contract` is its point's base class, if known here."""
    if not isinstance(cls, type):
        return f"{_name(cls)} is not a class"
    if contract is not None and not issubclass(cls, contract):
        return f"class {_name(cls)} is not derived from {_name(contract)}"
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        return f"class {_name(cls)} lacks {', '.join(f'{method}()' for method in lacking)}"
    for name in sorted(getattr(contract, "__class_vars__", ())):
        if not _alike(getattr(cls, name, None), getattr(contract, name, None)):
            return f"class {_name(cls)}: {name} cannot be {getattr(cls, name, None)!r:.100}"
    fields: dict[str, FieldInfo] = getattr(cls, "model_fields", {})
    for name, field in fields.items():
        wrong = _default_fault(field)
        if wrong:
            return f"class {_name(cls)}: the default of {name!r} does not fit: {wrong}"
    return ""


def _alike(value: object, usual: object) -> bool:
    """Whether a class attribute is of the type that the contract has; a property may compute it."""
    if isinstance(value, property):
        return True
    return not isinstance(usual, bool | Set) or isinstance(value, bool if isinstance(usual, bool) else Set)


def _default_fault(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    try:
        kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        TypeAdapter(kind).validate_python(field.get_default(call_default_factory=True, validated_data={}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{first['msg'][:1].lower()}{first['msg'][1:]} (given: {first['input']!r:.100})"
    except ANYTHING as error:
        return one_line(error)
    return ""


def summary_of(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return next(iter((inspect.getdoc(cls) or "").splitlines()), "")


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"
