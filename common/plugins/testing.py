"""What the checks of all plugins have in common: see `hansa.plugin.testing`."""

from pydantic import ValidationError

from hansa.common.plugins.registry import Plugin, contracts, kinds


class ContractBroken(AssertionError):
    """A plugin does not do what the contract of its point demands."""


def require(plugin: Plugin, holds: bool, otherwise: str) -> None:
    """Raise ContractBroken, naming the plugin, unless something holds."""
    if not holds:
        raise ContractBroken(f"{plugin.point} {plugin.kind!r}: {otherwise}")


def is_a_frozen_value(plugin: Plugin) -> None:
    """A plugin is registered, explains itself and is a frozen value that knows its parameters."""
    cls = type(plugin)
    if not hasattr(cls, "point") or kinds(cls.point).get(cls.kind) is not cls:
        raise ContractBroken(f"{cls.__name__} is not registered: decorate it with @register(point, kind)")
    contract = contracts()[cls.point]
    require(plugin, issubclass(cls, contract), f"it is not derived from {contract.__name__}")
    require(plugin, bool((cls.__doc__ or "").strip()), "it has no docstring")
    given = plugin.model_dump(mode="json", by_alias=True)
    require(plugin, cls.model_validate(given) == plugin, "it is another plugin once it is written and read")
    require(
        plugin, _refuses(cls, given | {"no_such_parameter": 1}), "it takes parameters that it does not have"
    )
    require(plugin, _is_frozen(plugin), "it can be changed")


def _refuses(cls: type[Plugin], given: dict[str, object]) -> bool:
    try:
        cls.model_validate(given)
    except ValidationError:
        return True
    return False


def _is_frozen(plugin: Plugin) -> bool:
    try:
        plugin.anything = 1  # type: ignore[attr-defined]
    except ValidationError:
        return True
    return False
