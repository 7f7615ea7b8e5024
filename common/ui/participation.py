"""Which sites contributed little to a job, and whether anybody evaluated its models, in words."""

from collections.abc import Iterator

import click

from hansa.common.values.views import JobView, Shortfall
from hansa.common.values.words import counted

NAMED = 5  # sites that get a line of their own
LISTED = 10  # of the others, that are at least named
NO_EVALUATOR = "no evaluator is connected: no metrics"
NO_EXAMPLES = "the evaluators have no examples: no metrics (validation.fraction may be 0, or too small)"


def warning_lines(view: JobView) -> list[str]:
    """Return what is likely not meant in a job, and who contributed little to it: a line each, and only so many."""
    return [*view.warnings, *shortfall_lines(view)]


def warn_of_shortfalls(view: JobView) -> None:
    """Tell those who waited for a job which sites contributed little; programs that read JSON are not disturbed."""
    for line in shortfall_lines(view):
        click.echo(f"hansa: warning: {line}", err=True)


def shortfall_lines(view: JobView) -> Iterator[str]:
    """Yield who contributed little: the first few with the reason, others by name, many by number."""
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
    """Say what a site contributed, and why not more."""
    reasons = []
    if site.failures:
        how_often = f"{counted(site.failures, 'failure')}, the last: " if site.failures > 1 else ""
        reasons.append(how_often + site.reason)
    if site.missed:
        why = f" ({site.absence})" if site.absence else ""
        reasons.append(f"it missed {site.missed} of {counted(site.known, 'version')}{why}")
    if site.unfinished:
        reasons.append("its first update had not come when training stopped")
    what = f"{site.contributed} of the {counted(site.asked, 'update')} it was asked for"
    if not site.contributed:
        asked = f" ({'one was' if site.asked == 1 else f'{site.asked} were'} asked for)" if site.asked else ""
        what = f"no update{asked}"
    return f"{site.site} contributed {what}" + (f": {'; '.join(reasons)}" if reasons else "")


def metrics_missing(view: JobView) -> str:
    """Say that nobody can evaluate a job's models, and why, once there is one that could have been."""
    tried = view.metrics or any(
        entry.metrics or entry.evaluated or entry.unevaluated for entry in view.history
    )
    if tried or view.version < 1:
        return ""
    if not view.evaluators:
        return NO_EVALUATOR
    return NO_EXAMPLES if view.history and view.history[-1].examples_total == 0 else ""
