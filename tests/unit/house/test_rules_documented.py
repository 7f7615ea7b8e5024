"""The pages name every rule and every kind of part that Hansa has."""

from pathlib import Path

import pytest

import hansa.controller.rules  # registers them
from hansa.common.plugins.registry import RULE_POINTS, kinds, rules

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()


@pytest.mark.parametrize("rule", sorted(rules()))
def test_the_page_of_rules_names_every_rule(rule: str) -> None:
    assert f"`{rule}`" in PAGE


@pytest.mark.parametrize("point", RULE_POINTS)
def test_the_page_of_rules_names_every_kind_of_a_part(point: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{point}` | "))
    own = [kind for kind, cls in kinds(point).items() if cls.__module__.startswith(hansa.__name__)]
    assert [kind for kind in own if f"`{kind}`" not in row] == []
