"""How the redistributing pacer draws sites for travelling models."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hansa.common.values.ids import SiteName
from hansa.controller.pacers.trips import Trip
from hansa.controller.plugin.parts import Draw
from hansa.controller.plugin.view import View


def draw_for_slots(state: Trip, due: Sequence[int], draw: Draw, view: View) -> dict[int, SiteName]:
    """Draw a site for each slot that is due, in the order of the slots."""
    chosen = draw_several(draw, view, state.hop, len(due))
    return dict(zip(sorted(due[: len(chosen)]), chosen, strict=True))


def draw_unseen(state: Trip, due: Sequence[int], draw: Draw, view: View) -> dict[int, SiteName]:
    """Draw a site for each slot that is due, one that has not trained it in this round if possible."""
    assigned: dict[int, SiteName] = {}
    for i in due:
        site = draw_one(state, i, draw, view, taken=set(assigned.values()), attempt=0, no_repeat=True)
        if site is None:
            break
        assigned[i] = site
    return assigned


def draw_one(
    state: Trip,
    i: int,
    draw: Draw,
    view: View,
    taken: AbstractSet[SiteName],
    attempt: int,
    no_repeat: bool,
) -> SiteName | None:
    """Draw a site for one slot that is not taken; with `no_repeat` preferably one that has not trained it."""
    avoided = state.slots[i].seen if no_repeat else set()
    at = replace(view, draw=(state.hop, i + 1, attempt))
    for exclude in (taken | avoided, taken) if avoided else (taken,):
        chosen = draw_order(draw(at, exclude), draw, at)
        if chosen:
            return chosen[0]
    return None


def draw_several(draw: Draw, view: View, hop: int, count: int) -> list[SiteName]:
    """Draw `count` different sites in random order, or fewer if there are not as many."""
    at = replace(view, draw=(hop,))
    chosen = draw_order(draw(at), draw, at)[:count]
    while len(chosen) < count:  # sites have left since the round began, so the sampler draws fewer
        more = draw(replace(view, draw=(hop, 0, len(chosen))), frozenset(chosen))
        if not more:
            break
        chosen += more[: count - len(chosen)]
    order = at.rng("redistribute").permutation(len(chosen))
    return [chosen[i] for i in order]


def draw_order(chosen: Sequence[SiteName], draw: Draw, view: View) -> list[SiteName]:
    """Shuffle sites, unless the sampler ranks them: the first may be the only one that is taken."""
    if draw.sampler.ranks:
        return list(chosen)
    return [chosen[i] for i in view.rng("redistribute", 1).permutation(len(chosen))]
