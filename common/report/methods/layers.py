"""How far the layers of the sites' updates diverge, and where Divide-and-Conquer splits the model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from pydantic import BaseModel, ValidationError

from hansa.common.drawing.bars import bars
from hansa.common.drawing.curves import curves
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, figure, figures
from hansa.common.report.progress import axis_of
from hansa.common.values.views import JobView


class Pass(BaseModel):
    """A round of the prepass, as the part `divide` reports it."""

    divergences: Mapping[str, Sequence[float | None]]  # of each layer, by metric
    layers: Sequence[str] = ()  # their names, in the first report
    split: int | None = None


def layers(view: JobView) -> Section:
    """Return divergences by layer and over time, and the split."""
    title, passes = "Layers and their divergence", _passes(view)
    if not passes:
        return Section("layers", title)
    version, last = passes[-1]
    metric = _metric(view, last)
    values = last.divergences[metric]
    names = next((list(each.layers) for _, each in passes if each.layers), [])
    names = names if len(names) == len(values) else [f"layer {at + 1}" for at in range(len(values))]
    lead = f"How far apart the sites' updates of each layer are, by the metric {metric}."
    if last.split is not None:
        lead += f" The model was split after {last.split} of {len(names)} layers."
    kinds = [name + _kind(at, last.split) for at, name in enumerate(names)]
    lengths = [(name, [value or 0.0]) for name, value in zip(kinds, values, strict=True)]
    drawn = figures(
        figure(f"Divergence of each layer in version {version}", bars("Divergence by layer", lengths)),
        _over_time(view, passes, metric, names),
        _phases(view),
    )
    return Section("layers", title, lead, drawn)


def _kind(layer: int, split: int | None) -> str:
    """Say to which part of a divided model a layer belongs."""
    return "" if split is None else " · feature" if layer < split else " · fine-tuning"


def _passes(view: JobView) -> list[tuple[int, Pass]]:
    """Return the reports with divergences, with their versions; those of other parts are left out."""
    found = []
    for entry in view.history:
        report = entry.diagnostics.get("layers", {})
        if report.get("divergences"):
            try:
                found.append((entry.version, Pass.model_validate(report)))
            except ValidationError:
                continue
    return found


def _metric(view: JobView, last: Pass) -> str:
    """Return the metric that the job decides by."""
    part = view.resolved.job.get("layers") if view.resolved else None
    named = part.get("metric") if isinstance(part, dict) else None
    return named if isinstance(named, str) and named in last.divergences else next(iter(last.divergences))


def _over_time(
    view: JobView, passes: Sequence[tuple[int, Pass]], metric: str, names: Sequence[str]
) -> Element | None:
    alike = [(at, row) for at, each in passes if len(row := each.divergences.get(metric, ())) == len(names)]
    if len(alike) < 2:
        return None
    series = [Series(name, [(at, row[layer]) for at, row in alike]) for layer, name in enumerate(names)]
    axis = Axis("divergence", logarithmic=True)
    return figure("Divergence over time", curves("Divergence over time", series, axis_of(view), axis))


def _phases(view: JobView) -> Element | None:
    counts = Counter(entry.phase for entry in view.history if entry.phase)
    if len(counts) < 2:
        return None
    lengths = [(phase, [float(count)]) for phase, count in counts.items()]
    return figure("Rounds of each phase", bars("Rounds of each phase", lengths))
