"""How models change on their way from site to site (RADFed), hop by hop."""

from collections.abc import Callable
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import curves
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, figure, figures
from hansa.common.values.history import Hop
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import counted

ROUNDS = 8  # that have a curve each


def hops(view: JobView) -> Section:
    """Return metrics and divergence of the models after each hop."""
    title = "Models on their way from site to site"
    travelled = [entry for entry in view.history if entry.hops]
    if not travelled:
        return Section("hops", title)
    shown = travelled[-ROUNDS:]
    last = f"The last {ROUNDS} of {len(travelled)} rounds." if len(travelled) > ROUNDS else ""

    def drawn(name: str, title: str, about: str, of: Callable[[Hop], float | None]) -> Element | None:
        series = [
            Series(f"{view.unit} {entry.round}", [(hop.hop, of(hop)) for hop in entry.hops])
            for entry in shown
        ]
        if not any(value is not None for each in series for _, value in each.points):
            return None
        axis = Axis(name, logarithmic=name == "loss")
        picture = curves(f"{name} by hop", series, Axis("hop", whole=True), axis)
        return figure(title, picture, f"{about} {last}".strip())

    trained = sum(hop.trained for entry in travelled for hop in entry.hops)
    skipped = sum(hop.skipped for entry in travelled for hop in entry.hops)
    most = max(len(entry.hops) for entry in travelled)
    lead = (
        f"In each round the models make up to {counted(most, 'hop')} before they are averaged."
        f" That was {counted(trained, 'training')}; {skipped:,} were skipped."
    )
    return Section(
        "hops",
        title,
        lead,
        figures(
            drawn("accuracy", "Accuracy after each hop", "Of the mean of the models.", _metric("accuracy")),
            drawn("loss", "Loss after each hop", "Of the mean of the models.", _metric("loss")),
            drawn(
                "divergence",
                "How far the models are from one another",
                "Mean of 1 − cosine over all pairs.",
                lambda hop: hop.divergence,
            ),
        ),
    )


def _metric(name: str) -> Callable[[Hop], float | None]:
    return lambda hop: hop.metrics.get(name)
