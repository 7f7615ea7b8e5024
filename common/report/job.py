"""The report of one job: from its view, its history and its folder to one page."""

from hansa import __version__
from hansa.common.report.events import events, notices
from hansa.common.report.layout import Section, whole_page
from hansa.common.report.material import Material
from hansa.common.report.methods import methods
from hansa.common.report.overview import head
from hansa.common.report.progress import confusion, learning
from hansa.common.report.reproduce import reproduction
from hansa.common.report.sites import participation, traffic
from hansa.common.values.views import JobView


def sections(view: JobView) -> list[Section]:
    """Return what a job's history shows; those that it has nothing for have no parts."""
    return [
        learning(view),
        confusion(view),
        participation(view),
        *methods(view),
        traffic(view),
        events(view),
    ]


def job_page(material: Material) -> str:
    """Return the report of a job as one HTML file."""
    view = material.view
    return whole_page(
        f"{view.name}: report",
        [*head(material), *notices(view)],
        [*sections(view), reproduction(material)],
        f"Made by Hansa {__version__}. This file is complete: it loads nothing and runs nothing."
        " Numbers are from the job's history; `hansa job show --json` and report.json have all of them.",
    )
