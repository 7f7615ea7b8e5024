"""What each site did: who took part when, what its updates are worth, and its numbers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from hansa.common.drawing.bars import bars, histogram
from hansa.common.drawing.curves import curves
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import BYTES, Axis
from hansa.common.drawing.sparkline import sparkline
from hansa.common.drawing.stacked import stacked
from hansa.common.drawing.strip import COLUMNS, Cell, strip
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, figure, figures, table
from hansa.common.report.material import in_rounds, sites_of
from hansa.common.report.overview import duration
from hansa.common.report.progress import axis_of
from hansa.common.values.history import Update, VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import LATE
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted, in_order

STRIP = 120  # sites in the strip of rounds
BARS = 30  # sites with a bar


@dataclass
class Total:
    """What a site did in the whole job."""

    updates: int = 0
    lost: int = 0
    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    losses: list[float | None] = field(default_factory=list)


def totals(view: JobView) -> dict[str, Total]:
    """Return what each site did, over all versions and hops."""
    sums = {site: Total() for site in sites_of(view)}
    for entry in view.history:
        for update in entry.updates:
            total = sums[update.site]
            total.examples = update.examples or total.examples
            total.bytes_up += update.bytes_up
            total.seconds += update.seconds
            total.losses.append(update.loss)
            if not entry.hops:
                total.updates += 1
                total.steps += update.steps
        for hop in entry.hops:
            for site in hop.sites:
                sums[site].updates += 1
            for site, steps in hop.steps.items():
                sums[site].steps += steps
        for site in [*entry.lost, *(site for hop in entry.hops for site in hop.lost)]:
            sums[site].lost += 1
    return sums


def participation(view: JobView, with_strip: bool = True) -> Section:
    """Return the strip of rounds by site, contributions over time, and a table of the sites."""
    sites = sites_of(view)
    if not sites:
        return Section("sites", "The sites")
    parts = figures(rounds_by_site(view)) if with_strip else []
    parts += figures(_contributions(view, sites), _staleness(view))
    parts.append(_table(view))
    parts += figures(_classes(view))
    return Section("sites", "What the sites contributed", "", parts)


def rounds_by_site(view: JobView) -> Element | None:
    """Return the strip of rounds by site; nothing before the first round."""
    sites = sites_of(view)
    patience = 1 if view.unit == "round" else max(len(sites), 2)
    rounds = [
        (entry.version, cells(entry, patience))
        for entry in view.history
        if entry.updates or entry.lost or entry.hops
    ]
    if not (sites and rounds):
        return None
    caption = list(_legend(view, [row for _, row in rounds], patience))
    if len(sites) > STRIP:
        caption.append(f"The first {STRIP} of {len(sites):,} sites.")
    picture = strip(f"{view.unit}s by site", rounds, sites[:STRIP], axis_of(view))
    return figure(f"Who took part in which {view.unit}", picture, " ".join(caption), wide=True)


def _legend(view: JobView, rounds: Sequence[Mapping[str, Cell]], patience: int) -> Iterator[str]:
    """Yield what the marks mean that occur; of rounds drawn together, the picture says most of it itself."""
    shown = [cell for row in rounds for cell in row.values()]
    if len(rounds) > COLUMNS:
        if any(cell.late and not cell.lost for cell in shown):
            yield f"Late: stale by {counted(patience, 'version')} or more."
        return
    travelled = any(entry.hops for entry in view.history)
    yield "The darker, the more hops it trained in." if travelled else "Filled: its update was merged."
    if any(cell.lost and not cell.late for cell in shown):
        yield "Cross: its update was lost."
    if any(cell.lost and cell.late for cell in shown):
        yield f"{'Frame' if travelled else 'Empty frame'}: it missed the deadline."
    if any(cell.late and not cell.lost for cell in shown):
        yield f"Filled with a frame: its update was stale by {counted(patience, 'version')} or more."


def cells(entry: VersionView, patience: int = 1) -> Mapping[str, Cell]:
    """Return what each site did for a version; an update that is stale by so many versions is late.

    Without rounds every update is somewhat stale: it is late if as many versions as there are sites were made
    meanwhile, which is more than a site's turn.
    """
    done = {
        site: Cell(lost=why, late=why.startswith(LATE), words=why if why.startswith(LATE) else f"lost: {why}")
        for site, why in entry.lost.items()
    }
    if not entry.hops:
        stale = {site: behind >= patience for site, (behind, _) in entry.staleness.items()}
        return done | {
            update.site: Cell(1.0, late=stale[update.site], words=_words(update)) for update in entry.updates
        }
    trained = Counter(site for hop in entry.hops for site in hop.sites)
    most = max(trained.values(), default=1)
    for hop in entry.hops:
        for site, why in hop.lost.items():
            done[site] = Cell(lost=why, late=why.startswith(LATE), words=f"lost in hop {hop.hop}: {why}")
    for site, count in trained.items():
        gone = done.get(site, Cell())
        words = "; ".join(filter(None, [f"trained in {counted(count, 'hop')}", gone.words]))
        done[site] = Cell(count / most, gone.lost, gone.late, words)
    return done


def _words(update: Update) -> str:
    loss = f", loss {update.loss:.4g}" if update.loss is not None else ""
    weight = f", weight {update.weight:.4g}" if update.weight is not None else ", without weight"
    stale = f", {counted(update.staleness[0], 'version')} behind" if update.staleness[0] else ""
    return f"{counted(update.steps, 'step')} on {counted(update.examples, 'example')}{loss}{weight}{stale}"


def _contributions(view: JobView, sites: list[str]) -> Element | None:
    """Draw the sites' shares in each version; where updates stay in the sum, those of their last ones."""
    lasting = _lasting(view)
    weights: dict[str, float] = {}
    amounts: list[tuple[float, Mapping[str, float]]] = []
    for entry in view.history:
        given = entry.contributions
        weights = weights | given if lasting else given
        if given:
            amounts.append((entry.version, weights))
    if not amounts or any(entry.hops for entry in view.history):
        return None
    if lasting:
        caption = "The weight of each site's last update, which stays in the model until its next one."
    elif in_rounds(view):
        caption = "The weights of the updates that were merged in each round."
    else:
        return None  # one update makes a version alone, and a share of 100 % says nothing
    return figure(
        "Contributions to the model", stacked("Contributions", amounts, axis_of(view), sites), caption
    )


def _lasting(view: JobView) -> bool:
    merge = (view.resolved.job if view.resolved else {}).get("merge")
    return isinstance(merge, dict) and merge.get("kind") == "incremental"


def _staleness(view: JobView) -> Element | None:
    """Draw how many versions were made while updates were trained."""
    counts: dict[int, int] = {}
    for entry in view.history:
        for update in entry.updates:
            counts[update.staleness[0]] = counts.get(update.staleness[0], 0) + 1
    if not any(counts):
        return None
    caption = "How many versions were made between the model that an update started from and its merge."
    picture = histogram("Staleness", dict(sorted(counts.items())), Axis("staleness in versions"))
    return figure("Staleness of the updates", picture, caption)


def _classes(view: JobView) -> Element | None:
    """Draw how many examples of each class the sites have, if they were asked."""
    classes = dict(view.survey.classes) if view.survey else {}
    if not classes:
        return None
    sites = sorted(classes, key=in_order)[:STRIP]
    names = [str(label) for label in range(max(map(len, classes.values())))]
    counts = [[*classes[site], *[0] * (len(names) - len(classes[site]))] for site in sites]
    title = "Examples of each class at each site"
    picture = heat_map(title, counts, sites, names, lambda value: f"{value:,.0f}", across="class")
    return figure(title, picture, "As the sites reported them before the first round.")


def _table(view: JobView) -> Element:
    sums = totals(view)
    last = next((entry for entry in view.history[::-1] if entry.evaluations), None)
    accurate = last and any("accuracy" in each.metrics for each in last.evaluations.values())
    metric = "accuracy" if accurate else "loss"
    travelled = any(entry.hops for entry in view.history)
    columns = ["site", "examples", "updates", "lost", "steps"]
    columns += [] if travelled else ["training", "sent", "training loss", ""]
    columns += [f"{metric} there"] if last else []
    rows = []
    for site, total in sums.items():
        row: list[str | Element] = [
            site,
            f"{total.examples:,}" if total.examples else "–",
            f"{total.updates:,}",
            f"{total.lost:,}" if total.lost else "–",
            f"{total.steps:,}",
            *([] if travelled else _of_updates(site, total, spark=len(sums) <= STRIP)),
        ]
        if last:
            there = last.evaluations.get(site)
            value = there.metrics.get(metric) if there else None
            row.append("–" if value is None else f"{value:.1%}" if accurate else f"{value:.4g}")
        rows.append(row)
    caption = "" if travelled else "Training time and bytes are those of merged updates."
    return table(columns, rows, caption=caption)


def _of_updates(site: str, total: Total, spark: bool) -> list[str | Element]:
    """Return the cells that sum up a site's updates."""
    known = [loss for loss in total.losses if loss is not None]
    curve = sparkline(f"training loss of {site}", total.losses) if spark and len(known) > 2 else ""
    return [duration(total.seconds), amount(total.bytes_up), small(known[-1]) if known else "–", curve]


def small(loss: float) -> str:
    """Write a loss with as many decimals as those below and above it, unless it is far from 1."""
    return f"{loss:.4f}" if 5e-4 <= abs(loss) < 1e4 or loss == 0 else f"{loss:.1e}"


def traffic(view: JobView) -> Section:
    """Return what went over the network, over time and by site."""
    if not view.history or not (view.bytes_up or view.bytes_down):
        return Section("traffic", "Traffic")
    lead = (
        f"{amount(view.bytes_down)} went to the sites and {amount(view.bytes_up)} came back."
        " These are models and updates; no data left a site."
    )
    return Section("traffic", "Traffic", lead, figures(_over_time(view), _by_site(view)))


def _over_time(view: JobView) -> Element:
    up, down = 0, 0
    sums: list[tuple[int, int, int]] = []
    for entry in view.history:
        up, down = up + entry.bytes_up, down + entry.bytes_down
        sums.append((entry.version, down, up))
    series = [
        Series("to the sites", [(version, down) for version, down, _ in sums]),
        Series("back", [(version, up) for version, _, up in sums]),
    ]
    y = Axis("bytes so far", BYTES.form, zero=True)
    return figure("Bytes over time", curves("Bytes over time", series, axis_of(view), y))


def _by_site(view: JobView) -> Element | None:
    sent = sorted(
        ((total.bytes_up, site) for site, total in totals(view).items() if total.bytes_up), reverse=True
    )
    if len(sent) < 2:
        return None
    shown = [(site, [float(count)]) for count, site in sent[:BARS]]
    caption = f"The {BARS} sites that sent most, of {len(sent):,}." if len(sent) > BARS else ""
    return figure("Updates sent by each site", bars("Bytes sent by site", shown, form=amount), caption)
