"""Calls of plugins: whatever goes wrong in one is raised as PluginFailed, which names the plugin."""

from types import TracebackType
from typing import Generic, TypeVar

from hansa.common.plugins.check import ANYTHING
from hansa.common.plugins.registry import Plugin
from hansa.common.values.errors import PluginFailed

P = TypeVar("P", bound=Plugin)


class calling(Generic[P]):  # noqa: N801 - it reads as a verb: `with calling(weigher): …`
    """The block calls a plugin: what the plugin raises becomes PluginFailed, SystemExit included.

    `answers` are errors that the plugin may raise as an answer; they pass as they are. So does the failure of
    another plugin that this one has called.
    """

    __slots__ = ("_answers", "_plugin")

    def __init__(self, plugin: P, *answers: type[Exception]) -> None:
        self._plugin = plugin
        self._answers: tuple[type[Exception], ...] = (PluginFailed, *answers)

    def __enter__(self) -> P:
        return self._plugin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ANYTHING) and not isinstance(error, self._answers):
            raise PluginFailed(self._plugin, error) from error
