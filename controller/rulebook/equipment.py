"""Refuses rules that need an extra of Hansa that this controller was installed without."""

from importlib.util import find_spec

from hansa.common.job.check import located
from hansa.common.job.spec import Problem
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import InvalidJob
from hansa.controller.plugin.composition import Composition


def require_extras(rule: Composition) -> None:
    """Raise InvalidJob if extras are missing; it names each with the part that needs it.

    Only a controller asks this: what an operator's machine has does not matter.
    """
    problems: list[Problem] = []
    for point, part in rule.parts.items():
        with calling(part):
            missing = {name: instead for name, instead in part.extras.items() if find_spec(name) is None}
        for name, instead in missing.items():
            why = f"{part.kind} needs {name}, which the controller does not have: pip install 'hansa[{name}]'"
            problems.append(((point,), f"{why} there, or {instead}"))
    if problems:
        raise InvalidJob([located(problem, {}) for problem in problems])
