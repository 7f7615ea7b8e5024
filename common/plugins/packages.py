"""Which installed package a plugin came from."""

from functools import cache
from importlib.metadata import entry_points

from hansa import __version__
from hansa.common.plugins.registry import GROUP, Plugin
from hansa.common.values.resolved import PluginOrigin


def origin_of(plugin: Plugin) -> PluginOrigin:
    """Return a plugin's kind, and the name and version of the package that provides it."""
    root = type(plugin).__module__.partition(".")[0]
    package, version = ("hansa", __version__) if root == "hansa" else providers().get(root, (root, ""))
    return PluginOrigin(kind=plugin.kind, package=package, version=version)


def plugin_packages() -> dict[str, str]:
    """Return the versions of all installed packages that provide plugins or rules."""
    return dict(sorted(set(providers().values())))


@cache
def providers() -> dict[str, tuple[str, str]]:
    """Return name and version of each such package, by the name under which Python imports it."""
    packages = {}
    for entry in entry_points(group=GROUP):
        root = entry.module.partition(".")[0]
        packages[root] = (entry.dist.name, entry.dist.version) if entry.dist else (root, "")
    return packages
