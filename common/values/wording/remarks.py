"""Sentences about a job that terminals, reports and pages share: warnings, missing sites, missing metrics."""

from collections.abc import Iterator

from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView, Shortfall
from hansa.common.values.wording.words import by_reason, counted

NAMED = 5  # sites with a line each
LISTED = 10  # further sites that are listed by name
LATE, LEFT = "late: ", "the site left"  # how reasons begin for sites that a round did not wait for
NO_EVALUATOR = "no evaluator is connected: no metrics"
NO_EXAMPLES = "the evaluators have no examples: no metrics (validation.fraction may be 0, or too small)"


def warning_lines(view: JobView) -> list[str]:
    """Return the warnings about a job's settings, and the sites that contributed little, up to a limit."""
    return [*view.warnings, *shortfall_lines(view)]


def shortfall_lines(view: JobView) -> Iterator[str]:
    """Yield the sites that contributed little: the first few with reasons, others by name, many by number."""
    for each in view.shortfalls[:NAMED]:
        yield shortfall_line(each)
    others = [each.site for each in view.shortfalls[NAMED:]]
    if others:
        names = ", ".join(others[:LISTED]) + (", …" if len(others) > LISTED else "")
        yield (
            f"{counted(len(others), 'more site')} contributed nothing or little: {names};"
            f" `hansa job show {view.job} --json` has the reasons"
        )


def shortfall_line(site: Shortfall) -> str:
    """Describe what a site contributed, and why not more."""
    reasons = []
    if site.failures:
        how_often = f"{counted(site.failures, 'failure')}, the last: " if site.failures > 1 else ""
        reasons.append(how_often + site.reason)
    if site.missed:
        why = f" ({site.absence})" if site.absence else ""
        reasons.append(f"it missed {site.missed} of {counted(site.known, 'version')}{why}")
    if site.unfinished:
        reasons.append("its first update had not arrived when training stopped")
    what = f"{site.contributed} of the {counted(site.asked, 'update')} it was asked for"
    if not site.contributed:
        asked = f" ({'one was' if site.asked == 1 else f'{site.asked} were'} asked for)" if site.asked else ""
        what = f"no update{asked}"
    return f"{site.site} contributed {what}" + (f": {'; '.join(reasons)}" if reasons else "")


def metrics_missing(view: JobView) -> str:
    """Return why a job has no metrics, once there is a model that could have been evaluated."""
    tried = view.metrics or any(
        entry.metrics or entry.evaluated or entry.unevaluated for entry in view.history
    )
    if tried or view.version < 1:
        return ""
    if not view.evaluators:
        return NO_EVALUATOR
    return NO_EXAMPLES if view.history and view.history[-1].examples_total == 0 else ""


def remarks(entry: VersionView) -> Iterator[str]:
    """Yield the missing sites and why, the divergence of travelling models, and notes of the rule's parts."""
    unevaluated = entry.unevaluated | (entry.test.unevaluated if entry.test else {})
    yield from (*by_reason(entry.lost), *by_reason(unevaluated))
    divergences = [f"{hop.divergence:.4f}" for hop in entry.hops if hop.divergence is not None]
    if divergences:
        last = f" to {divergences[-1]}" if len(divergences) > 1 else ""
        yield f"{len(entry.hops)} hops, divergence {divergences[0]}{last}"
    if entry.note:
        yield entry.note
    yield from entry.warnings
