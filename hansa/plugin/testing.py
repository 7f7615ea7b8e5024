"""The contract of plugins, to be run over your own in one line of a test:

    from hansa.plugin.testing import check

    def test_mine() -> None:
        check(Mine())

`check` raises ContractBroken, which says what the plugin does wrong. `checks_of` returns the checks one by
one, for `pytest.mark.parametrize`; `check_rule` composes a rule. Nothing here needs pytest.
"""

from collections.abc import Callable
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.registry import ENCODING, LEARNERS_POINTS, RULE_POINTS, Plugin, rules
from hansa.common.plugins.testing import ContractBroken, is_a_frozen_value

__all__ = ["ContractBroken", "check", "check_rule", "checks_of"]


def check(plugin: Plugin) -> None:
    """Run all checks over a plugin: of a controller, of a learner, or an encoding."""
    for each in checks_of(plugin):
        each(plugin)


def checks_of(plugin: Plugin) -> list[Callable[[Any], None]]:
    """Return the checks that a plugin must pass, by the point that it fills."""
    is_a_frozen_value(plugin)  # registered as what it is: the others depend on it
    if plugin.point == ENCODING:
        from hansa.common.encodings import testing as encodings

        return [is_a_frozen_value, *encodings.CHECKS]
    if plugin.point in LEARNERS_POINTS:
        from hansa.learner.plugins import testing as learners

        return [is_a_frozen_value, *learners.checks_of(plugin)]
    from hansa.controller.plugin import testing as controllers

    return [is_a_frozen_value, *controllers.checks_of(plugin)]


def check_rule(name: str) -> None:
    """Compose a job of a rule as it is: every point is filled, and no part objects to another."""
    from hansa.controller.rulebook.compose import compose

    rule = rules().get(name)
    if rule is None or not rule.summary or not rule.paper:
        raise ContractBroken(f"rule {name!r} is not known, or has no summary or no paper")
    spec = JobSpec(app="app.py:app", rule=name)
    composed = compose(spec)
    wrong = {point for point in RULE_POINTS if composed.parts[point].point != point}
    if wrong or JobSpec.model_validate_json(spec.model_dump_json()).rule != name:
        raise ContractBroken(f"rule {name!r} does not fill {', '.join(sorted(wrong))}")
