"""Which plugins a task asks for, and how they take part in its training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError

from hansa.common.app import App
from hansa.common.job.check import described
from hansa.common.models.auxiliary import require_auxiliary
from hansa.common.models.model import ModelSpec
from hansa.common.plugins.calling import calling
from hansa.common.plugins.registry import Plugin, discover, kinds, not_loaded
from hansa.common.values.bounds import METRICS
from hansa.common.values.errors import (
    InvalidApp,
    InvalidInput,
    PluginFailed,
    Refused,
    Rejected,
    TooLarge,
    Unequipped,
)
from hansa.common.values.ids import NAME
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Probe, Train
from hansa.common.values.wording.words import listed
from hansa.learner.plugins import (  # noqa: F401 - registers them
    ditto,
    importance,
    proximal,
    scaffold,
    starting_loss,
)
from hansa.learner.plugins.adaptive import Diverged
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun, ProbeRun, Returned
from hansa.learner.training import batches  # noqa: F401 - registers it
from hansa.learner.training.loop import Hooks
from hansa.learner.training.slow import Cancelled

P = TypeVar("P", LocalPlugin[Any], BatchSource)
Asked = tuple[list[LocalPlugin[Any]], BatchSource | None]
# Errors that a plugin may raise on purpose; they have messages of their own and are not faults of the plugin.
FORESEEN = (Cancelled, Diverged, InvalidInput, Unequipped)
IN_TRAINING = ("penalty", "watch", "pull", "after_epoch")  # what the training loop calls
WORDS = {"learner": "the learner's plugin", "batches": "the source of batches"}

discover(())


def asked_of(app: App, work: Train) -> Asked:
    """Return the plugins and the source of batches that a task asks for; none may be missing."""
    if work.keep_optimizer and app.train is not None:
        raise InvalidApp(
            "train.keep_optimizer: the app trains by a function of its own, with an optimizer of its own"
        )
    if app.train is not None and (names := _settings_of_steps(work)):
        raise InvalidApp(
            f"train.{names[0]}: the app trains by a function of its own, with steps of its own; leave it out"
        )
    if work.personal_epochs and app.train is not None:
        raise InvalidApp(
            "local head-first: the app trains by a function of its own, which trains all tensors together"
        )
    if work.source is not None and work.batches:
        raise Refused(
            f"batches {work.source.name!r}: a task that is a window of batches has no other source of them"
        )
    plugins = [_instance(LocalPlugin, "learner", spec, app) for spec in work.plugins]
    sent = {each.name for each in work.auxiliary}
    for plugin in plugins:
        unsent = [name for name in plugin.auxiliary if name not in sent]
        if unsent:
            what = f"auxiliary tensors {listed(unsent)}, which the rule does not declare"
            raise Refused(f"learner {plugin.kind!r} works with {what}")
    if work.source is None:
        return plugins, None
    return plugins, _instance(BatchSource, "batches", work.source, app)  # type: ignore[type-abstract]


def _settings_of_steps(work: Train) -> list[str]:
    """Return the settings of a task that only Hansa's own loop knows."""
    given = {
        "schedule": work.schedule.changes,
        "clip": bool(work.clip),
        "accumulate": work.accumulate > 1,
        "precision": work.precision != "float32",
        "max_seconds": bool(work.max_seconds),
    }
    return [name for name, is_set in given.items() if is_set]


def probe_of(app: App, work: Probe) -> LocalPlugin[Any]:
    """Return the plugin that looks at a model without training it."""
    plugin = _instance(LocalPlugin, "learner", work.plugin, app)
    if not overrides(type(plugin), "probe"):
        raise Refused(f"learner {plugin.kind!r} takes part in training, but a probe does not train")
    if app.train is not None:  # there is no network to look at
        raise InvalidApp(plugin.alone or LocalPlugin.alone)
    return plugin


def _instance(kind: type[P], point: str, spec: LocalPluginSpec, app: App) -> P:
    cls = kinds(point).get(spec.name)
    if cls is None:
        missing = f"{WORDS[point]} {spec.name!r}, which this learner does not have{not_loaded()}"
        raise Unequipped(f"the rule asks for {missing}")
    assert issubclass(cls, kind)
    if app.train is not None and (cls.alone or any(overrides(cls, method) for method in IN_TRAINING)):
        raise InvalidApp(cls.alone or LocalPlugin.alone)
    try:
        return cls.model_validate(spec.args)
    except ValidationError as error:
        wrong = described(error, cls)
        raise Refused(f"{point} {spec.name!r}: {wrong}") from None


def overrides(cls: type[Plugin], method: str) -> bool:
    """Whether plugins of a class have a method of their own."""
    return getattr(cls, method) is not getattr(LocalPlugin, method)


def probed_by(plugin: LocalPlugin[Any], run: ProbeRun) -> float:
    """Return what a plugin finds in a model, if it is a number."""
    with calling(plugin, *FORESEEN):
        result = plugin.probe(run)
    if not isinstance(result, int | float):
        raise PluginFailed(plugin, f"its probe returned {result!r:.100}, which is not a number")
    return float(result)


class Company:
    """The plugins of one task at work.

    Errors of plugins become PluginFailed, except those that are foreseen: a task that was withdrawn or
    diverges, an app or data that cannot be used, a site that lacks something.
    """

    def __init__(
        self, plugins: Sequence[LocalPlugin[Any]], source: BatchSource | None, run: LocalRun
    ) -> None:
        self._run = run
        self._source = source
        self._held: list[tuple[LocalPlugin[Any], Any]] = []
        for plugin in plugins:
            with calling(plugin, *FORESEEN):
                self._held.append((plugin, plugin.begin(run)))

    def hooks(self, awaken: Callable[[], object]) -> Hooks:
        """Return what the training loop has to call, without hooks that no plugin uses."""
        return Hooks(
            course=self._run,
            awaken=awaken,
            batches=self._batches if self._source else None,
            penalty=self._penalty if self._having("penalty") else None,
            watch=self._watch if self._having("watch") else None,
            pull=self._pull if self._having("pull") else None,
            enough=self._enough if self._having("after_epoch") else None,
        )

    def finish(self) -> dict[str, float]:
        """Return the metrics of all plugins."""
        metrics: dict[str, float] = {}
        for plugin, held in self._held:
            with calling(plugin, *FORESEEN):
                reported = plugin.finish(held, self._run)
            numbers = _require_metrics(plugin, reported)
            if twice := sorted(numbers.keys() & metrics):
                raise PluginFailed(plugin, f"it reported {twice[0]!r}, as another plugin did before")
            metrics |= numbers
        if len(metrics) > METRICS:
            raise TooLarge(f"the plugins reported {len(metrics)} metrics; {METRICS} are allowed")
        return metrics

    @property
    def amends(self) -> bool:
        """Whether a plugin may change what is returned."""
        return bool(self._having("amend"))

    def amend(self, update: Returned, spec: ModelSpec) -> dict[str, np.ndarray]:
        """Let all plugins change what is returned; return the auxiliary tensors as they are called there."""
        beside: dict[str, np.ndarray] = {}
        shapes = {name: (array.dtype, array.shape) for name, array in update.tensors.items()}
        for plugin, held in self._having("amend"):
            with calling(plugin, *FORESEEN):
                plugin.amend(held, self._run, update)
            _require_returned(plugin, update, shapes)
            beside |= self._require_beside(plugin, update, spec)
        return beside

    def _require_beside(
        self, plugin: LocalPlugin[Any], update: Returned, spec: ModelSpec
    ) -> dict[str, np.ndarray]:
        """Return the auxiliary tensors of an update, if the rule asks for them and they fit it."""
        if not isinstance(update.auxiliary, Mapping):
            raise PluginFailed(plugin, f"it returned {update.auxiliary!r:.100} as its auxiliary tensors")
        asked = {each.name for each in self._run.work.auxiliary if each.up}
        odd = [name for name in update.auxiliary if name not in asked]
        if odd:
            names = listed(map(repr, odd))
            raise PluginFailed(
                plugin, f"it returned auxiliary tensors {names}, which the rule does not declare"
            )
        arrays: dict[str, np.ndarray] = {}
        for name, by_tensor in update.auxiliary.items():
            try:
                arrays |= require_auxiliary(spec, name, by_tensor)
            except Rejected as error:
                raise PluginFailed(plugin, f"its auxiliary tensors do not fit the update: {error}") from None
        return arrays

    def _having(self, method: str) -> list[tuple[LocalPlugin[Any], Any]]:
        """Return the plugins that override a method."""
        return [(plugin, held) for plugin, held in self._held if overrides(type(plugin), method)]

    def _watch(self) -> None:
        for plugin, held in self._held:
            with calling(plugin, *FORESEEN):
                plugin.watch(held, self._run)

    def _pull(self) -> None:
        for plugin, held in self._held:
            with calling(plugin, *FORESEEN):
                plugin.pull(held, self._run)

    def _penalty(self) -> torch.Tensor | None:
        terms: list[torch.Tensor] = []
        for plugin, held in self._held:
            with calling(plugin, *FORESEEN):
                term = plugin.penalty(held, self._run)
            if term is None:
                continue
            if not isinstance(term, torch.Tensor) or term.ndim:
                raise PluginFailed(plugin, f"a penalty must be a tensor of one number, but is {term!r:.100}")
            terms.append(term)
        return torch.stack(terms).sum() if terms else None

    def _enough(self) -> bool:
        enough = False
        for plugin, held in self._held:  # ask all of them, as each may count epochs
            with calling(plugin, *FORESEEN):
                enough |= bool(plugin.after_epoch(held, self._run))
        return enough

    def _batches(self, generator: torch.Generator) -> Iterator[torch.Tensor]:
        assert self._source is not None
        count = len(self._run.examples)
        with calling(self._source, *FORESEEN) as source:
            epoch = source.epoch(self._run, generator)
        if not isinstance(epoch, Iterable):
            raise PluginFailed(source, f"an epoch must be an iterable of batches, but is {epoch!r:.100}")
        rest, end = iter(epoch), object()
        while True:
            with calling(source, *FORESEEN):
                rows: Any = next(rest, end)
            if rows is end:
                return
            yield _require_rows(source, rows, count)


def _require_metrics(plugin: LocalPlugin[Any], metrics: object) -> dict[str, float]:
    """Return the metrics of a plugin, if they are numbers by name; numpy's numbers will do."""
    if not isinstance(metrics, Mapping):
        raise PluginFailed(plugin, f"it reported {metrics!r:.100}; metrics must be numbers by name")
    numbers: dict[str, float] = {}
    for name, number in metrics.items():
        try:
            if isinstance(name, str) and NAME.fullmatch(name) and isinstance(number, Real):
                numbers[name] = float(number)
                continue
        except OverflowError:
            pass  # an integer that no float can hold
        odd = f"{name!r:.100}: {number!r:.100}"
        raise PluginFailed(plugin, f"it reported {odd}; a metric is a name without spaces, and a number")
    return numbers


def _require_returned(
    plugin: LocalPlugin[Any],
    update: Returned,
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> None:
    """Refuse what a plugin has made of an update, if it no longer fits the model."""
    if not isinstance(update.tensors, dict) or update.tensors.keys() != shapes.keys():
        raise PluginFailed(plugin, "it changed which tensors are returned; it may change their numbers only")
    for name, (dtype, shape) in shapes.items():
        array: object = update.tensors[name]
        if not isinstance(array, np.ndarray):
            raise PluginFailed(plugin, f"it returned {type(array).__name__} in place of the array {name}")
        if (array.dtype, array.shape) != (dtype, shape):
            wanted, given = f"{dtype.name} {list(shape)}", f"{array.dtype.name} {list(array.shape)}"
            raise PluginFailed(plugin, f"it returned {name} as {given}; it must stay {wanted}")
    update.metrics = _require_metrics(plugin, update.metrics)
    if len(update.metrics) > METRICS:
        raise PluginFailed(plugin, f"with its metrics there are more than {METRICS}")


def _require_rows(
    source: BatchSource, batch: "Iterable[int] | torch.Tensor | np.ndarray", count: int
) -> torch.Tensor:
    """Return a batch as a tensor, if it has row numbers of the site's data; negative ones are refused."""
    try:  # copied, because torch cannot read arrays with negative strides
        rows = batch if isinstance(batch, torch.Tensor) else torch.from_numpy(np.array(batch))
    except (TypeError, ValueError):
        rows = torch.empty(0)
    odd_kind = rows.is_floating_point() or rows.is_complex() or rows.dtype is torch.bool
    if rows.ndim != 1 or odd_kind or not len(rows):
        raise PluginFailed(source, f"a batch must be a list of row numbers, but is {batch!r:.100}")
    rows = rows.long()
    if rows.min() < 0 or rows.max() >= count:
        odd = rows.min() if rows.min() < 0 else rows.max()
        raise PluginFailed(source, f"row {int(odd)} does not exist: the site has rows 0 to {count - 1}")
    return rows
