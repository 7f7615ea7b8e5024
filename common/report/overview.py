"""The head of a report: what happened in a sentence, and the numbers that matter."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.common.drawing.scale import brief
from hansa.common.drawing.sparkline import sparkline
from hansa.common.report.layout import tile
from hansa.common.report.material import Material, measured, sites_of
from hansa.common.values.history import Findings
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import metrics_missing
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted, share_of

WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
STATES = {"completed": "good", "failed": "bad", "cancelled": "warn"}
TILES = 2  # metrics with a tile


def head(material: Material) -> list[Element]:
    """Return the head of a report."""
    view = material.view
    what = "simulation" if material.simulation else "training"
    submitted = "" if material.simulation else view.submitted  # a simulation has a clock of its own
    kicker = f"Federated {what} · job {view.job}" + (f" · {when(submitted)}" if submitted else "")
    state = tag("span", view.status, class_=f"state {STATES.get(view.status, '')}".strip())
    return [
        tag("p", kicker, class_="kicker"),
        tag("h1", view.name, " ", state),
        tag("p", *_summary(material), class_="summary"),
        tag("dl", *tiles(view), class_="tiles"),
    ]


def when(moment: str) -> str:
    """Return a moment in ISO form to the minute."""
    return moment[:16].replace("T", " ") + (" UTC" if moment.endswith(("+00:00", "Z")) else "")


def duration(seconds: float) -> str:
    """Write a duration for people."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 100 else f"{hours / 24:.1f} days"


def spelled(count: int, noun: str) -> str:
    """Return a count with its noun, small ones in words."""
    return (
        counted(count, noun).replace(f"{count}", WORDS[count], 1)
        if count < len(WORDS)
        else counted(count, noun)
    )


def _summary(material: Material) -> Iterator[Child]:
    """Yield what happened, as one would say it aloud."""
    view = material.view
    yield _course(material)
    if view.rule:
        yield f"The rule {'was' if view.ended else 'is'} {view.rule}. "
    missing = metrics_missing(view)
    if missing or not view.examples:
        if view.version:
            begun = "was not" if view.ended else "has not yet been"
            yield f"How good the model is {begun} measured{': ' + missing if missing else ''}."
        return
    version = "" if view.metrics_version == view.version else f", as of version {view.metrics_version}"
    accuracy, loss = view.metrics.get("accuracy"), view.metrics.get("loss")
    if accuracy is not None:
        yield from (
            "The model classifies ",
            tag("strong", f"{accuracy:.1%}"),
            f" of {_on(view)} correctly{version}.",
        )
    elif loss is not None:
        yield from ("The model has a loss of ", tag("strong", brief(loss)), f" on {_on(view)}{version}.")
    tested = view.test
    if tested and tested.examples and tested.metrics.get("accuracy") is not None:
        share = tested.metrics["accuracy"]
        yield f" At the sites that are held out for testing it is {share:.1%} of {_on(tested)}."


def _course(material: Material) -> str:
    """Say who trained, how long, and how it ended."""
    view = material.view
    count = len(sites_of(view))
    work = counted(view.rounds, view.unit)
    if not count:
        if view.ended:
            return f"The job {_ended(view)} before any site trained: {view.reason}. "
        return f"No site has trained yet{': ' if view.reason else ''}{view.reason}. "
    sites = spelled(count, "virtual site" if material.simulation else "site")
    sites = f"{sites[:1].upper()}{sites[1:]}"
    if view.status == "completed":
        return f"{sites} trained one model together in {work}. "
    if not view.ended:
        return f"{sites} {'is' if count == 1 else 'are'} training one model together, {work} so far. "
    training = f"{'was' if count == 1 else 'were'} training one model together"
    return f"{sites} {training} when the job {_ended(view)} after {work}: {view.reason}. "


def _ended(view: JobView) -> str:
    return {"cancelled": "was cancelled", "completed": "ended"}.get(view.status, "failed")


def _on(findings: JobView | Findings) -> str:
    """Return the examples that metrics cover."""
    whole = findings.examples == findings.examples_total and findings.drawn is None
    share = (
        f"{findings.examples:,}"
        if whole
        else share_of(findings.examples, findings.examples_total, findings.drawn)
    )
    return f"{share} examples"


def tiles(view: JobView) -> Iterator[Element]:
    """Yield the numbers that matter."""
    counting = measured(view)
    names = [name for name in metrics_in_order(view) if name != "weighted_f1"][:TILES]
    for name in names:
        value = view.metrics.get(name)
        if value is None:
            continue
        curve = [entry.metrics.get(name) for entry in counting]
        spark = sparkline(f"{name} over time", curve) if len(curve) > 2 else None
        shown = f"{value:.1%}" if name.startswith("accuracy") else brief(value)
        yield tile(name, shown, _best(name, curve), spark)
    trained = {site for entry in view.history for site in entry.sites} | {
        site for entry in view.history for hop in entry.hops for site in hop.sites
    }
    yield tile("sites that trained", f"{len(trained):,}", f"{_updates(view):,} updates")
    asked = f"of {view.rounds_asked:,}" if view.rounds_asked and view.rounds_asked != view.rounds else ""
    yield tile(f"{view.unit}s", f"{view.rounds:,}", asked)
    each = duration(view.seconds / view.rounds) if view.rounds else ""
    yield tile("duration", duration(view.seconds), f"{each} per {view.unit}" if each else "")
    traffic = f"{amount(view.bytes_down)} to the sites, {amount(view.bytes_up)} back"
    yield tile("traffic", amount(view.bytes_up + view.bytes_down), traffic)


def _best(name: str, curve: list[float | None]) -> str:
    """Say which value was the best on the way; it is not the result, because it was chosen by looking."""
    known = [value for value in curve if value is not None]
    best = (min if "loss" in name else max)(known, default=None)
    if best is None or best == known[-1]:
        return ""
    return f"best on the way {best:.1%}" if name.startswith("accuracy") else f"best on the way {brief(best)}"


def _updates(view: JobView) -> int:
    return sum(
        sum(hop.trained for hop in entry.hops) if entry.hops else len(entry.updates) for entry in view.history
    )


def metrics_in_order(view: JobView) -> list[str]:
    """Return the names of a job's metrics, accuracy and loss first."""
    names = {
        name: None
        for entry in view.history
        for name in (*entry.metrics, *(entry.test.metrics if entry.test else ()))
    }
    return sorted(
        names,
        key=lambda name: (name != "accuracy", name != "loss", "loss" not in name and "accuracy" not in name),
    )
