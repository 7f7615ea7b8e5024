"""Names of the updates in a merge: the site's name, or the slot's where models travel from site to site."""

from collections import Counter
from collections.abc import Sequence
from typing import NewType

from hansa.common.values.ids import SiteName
from hansa.controller.plugin.view import Contribution

SlotName = NewType("SlotName", str)  # contains a space, so it never equals a site's name
UpdateName = SiteName | SlotName


def travelled(contributions: Sequence[Contribution]) -> bool:
    """Whether any update was trained at several sites (`pace: redistribute`)."""
    return any(c.task.hop > 1 for c in contributions)


def owner_name(c: Contribution) -> UpdateName:
    """Return whom an update describes: its site or, if several sites have trained it, its slot."""
    return SlotName(f"slot {c.task.slot}") if c.task.hop > 1 else c.site


def distinct_names(contributions: Sequence[Contribution]) -> list[UpdateName]:
    """Name each update after the site that trained it last; with its slot or number if there are several."""
    updates_of, numbers = Counter(c.site for c in contributions), Counter[SiteName]()
    names: list[UpdateName] = []
    for c in contributions:
        numbers[c.site] += 1
        which = f"slot {c.task.slot}" if c.task.slot else f"update {numbers[c.site]}"
        names.append(SlotName(f"{c.site} ({which})") if updates_of[c.site] > 1 else c.site)
    return names
