"""What belongs to a job's rule: a module for each method whose numbers are worth a section of their own."""

from hansa.common.report.layout import Section
from hansa.common.report.methods.groups import groups
from hansa.common.report.methods.hops import hops
from hansa.common.report.methods.layers import layers
from hansa.common.report.methods.parts import parts
from hansa.common.report.methods.scores import scores
from hansa.common.values.views import JobView


def methods(view: JobView) -> list[Section]:
    """Return the sections of all methods; those that this job has nothing for have no parts."""
    return [scores(view), groups(view), layers(view), hops(view), parts(view)]
