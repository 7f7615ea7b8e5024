"""Pictures show what they are given: round ticks, honest thinning, names that do not overlap."""

import math
import re
from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.common.drawing.bars import histogram
from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import html
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import Axis, apart, brief, fitted, scale_of, ticks_between, width_of
from hansa.common.drawing.sparkline import sparkline
from hansa.common.drawing.stacked import stacked
from hansa.common.drawing.strip import Cell, strip
from hansa.common.drawing.thinning import Series, envelope, thinned

ROUND = Axis("round", whole=True)
NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


def texts(picture: Element) -> list[str]:
    """Return the texts of a picture."""
    return [element.text or "" for element in picture.iter("text")]


def description(picture: Element) -> str:
    """Return what is read to those who cannot see a picture."""
    return picture.findtext("desc") or ""


@given(NUMBERS, NUMBERS, st.integers(1, 10), st.booleans())
def test_ticks_are_round_in_order_and_within_the_range(a: float, b: float, most: int, whole: bool) -> None:
    low, high = sorted((a, b))
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        return
    ticks, step = ticks_between(low, high, most, whole)
    assert len(ticks) <= most + 1
    assert ticks == sorted(set(ticks))
    assert all(low - step * 1e-6 <= tick <= high + step * 1e-6 for tick in ticks)
    assert not whole or all(tick == round(tick) for tick in ticks)


@given(st.lists(NUMBERS, max_size=20), st.booleans(), st.booleans())
def test_every_value_is_within_the_picture(values: list[float], zero: bool, whole: bool) -> None:
    scale = scale_of(Axis(zero=zero, whole=whole), values, 200.0, 20.0, 5, wide=True)
    assert all(20 <= scale(value) <= 200 for value in [*values, *scale.ticks])
    assert all(
        scale.low - 1e-6 * abs(scale.low) <= value <= scale.high + 1e-6 * abs(scale.high) for value in values
    )


def test_values_far_apart_are_on_a_logarithmic_scale_if_it_is_allowed() -> None:
    scale = scale_of(Axis(logarithmic=True), [0.02, 400.0], 200.0, 0.0, 5, wide=True)
    assert scale.ticks == (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    assert scale(0.01) == 200
    assert scale(1000) == 0
    assert scale(math.sqrt(0.01 * 1000)) == pytest.approx(100)


@given(st.lists(st.floats(0, 100), max_size=12))
def test_names_keep_their_order_and_distance(places: list[float]) -> None:
    moved = apart(places, 5.0, 0.0, 100.0)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in moved)
    spread = sorted(moved)
    assert all(b - a >= 5 - 1e-6 for a, b in pairwise(spread))
    order = sorted(range(len(places)), key=places.__getitem__)
    assert [moved[at] for at in order] == spread


@given(st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=1, max_size=200), st.integers(2, 50))
def test_thinned_curves_hide_no_value(values: list[float | None], most: int) -> None:
    thin = thinned(Series("a", list(enumerate(values))), most)
    line = thin.series
    assert len(line.points) <= most
    if thin.each == 1:
        assert [value for _, value in line.points] == values
        return
    known = [value for value in values if value is not None]
    assert [max(each[2] for each in line.band)] == [max(known)] if known else not line.band
    assert not known or min(each[1] for each in line.band) == min(known)


def test_a_thinned_picture_says_so() -> None:
    long = Series("pooled", [(at, at / 3000) for at in range(3000)])
    assert "Each place stands for 10 points" in description(
        curves("Accuracy", [long], ROUND, Axis("accuracy"))
    )
    many = [Series(f"site-{at}", long.points) for at in range(20)]
    picture = curves("Accuracy", many, ROUND, Axis("accuracy"))
    assert "the mean of 50 points. The grey area goes from the lowest to the highest" in description(picture)
    assert [each.get("class") for each in picture.iter("path")].count("band all") == 1
    assert len(html(picture)) < 40_000


def test_many_curves_name_the_highest_the_lowest_and_their_median() -> None:
    many = [Series(f"site-{at}", [(1, 0.0), (2, float(at))]) for at in range(11)]
    named = [
        text
        for text in texts(curves("Loss", many, ROUND, Axis("loss")))
        if "site" in text or "median" in text
    ]
    assert sorted(named) == ["0 site-0", "10 site-10", "5 median"]


@given(st.lists(st.lists(st.floats(-100, 100), max_size=60), min_size=1, max_size=5), st.integers(1, 20))
def test_the_area_behind_many_lines_hides_no_value(lines: list[list[float]], most: int) -> None:
    band = envelope([Series("", list(enumerate(values))) for values in lines], most)
    known = [value for values in lines for value in values]
    assert len(band) <= most
    assert (
        [min(low for _, low, _ in band), max(high for *_, high in band)]
        == ([min(known), max(known)] if known else [])
        if band
        else not known
    )


def test_a_long_name_keeps_both_of_its_ends() -> None:
    names = [f"clinic-of-the-university-hospital-{at}" for at in range(12)]
    short = [fitted(name, 100) for name in names]
    assert len(set(short)) == len(names)
    assert all(name.startswith("clinic") and width_of(name) <= 100 for name in short)
    assert fitted("north", 100) == "north"


def test_a_gap_in_a_curve_stays_a_gap() -> None:
    picture = curves("A", [Series("", [(1, 0.1), (2, None), (3, 0.3), (4, 0.4)])], ROUND, Axis("a"))
    lines = [each.get("d", "") for each in picture.iter("path") if each.get("class", "").startswith("line")]
    assert [line.count("M") for line in lines] == [2]


def test_shares_of_many_names_are_seven_and_the_rest() -> None:
    amounts = [(float(at), {f"s{name}": float(name) for name in range(20)}) for at in range(2)]
    picture = stacked("Shares", amounts, ROUND, [f"s{name}" for name in range(20)])
    names = {text for text in texts(picture) if text.startswith("s") or "others" in text} - {"share"}
    assert names == {*(f"s{name}" for name in range(13, 20)), "13 others"}
    assert "13 others 41.1% to 41.1%" in description(picture)  # (0 + … + 12) / 190


def test_a_matrix_has_its_values_in_its_cells() -> None:
    picture = heat_map("Confusion", [[50, 0], [3, 40]], ["cat", "dog"], ["cat", "dog"])
    assert texts(picture)[:3] == ["50", "3", "40"]
    assert [each.findtext("title") for each in picture.iter("path") if each.find("title") is not None] == [
        "cat, cat: 50",
        "dog, cat: 3",
        "dog, dog: 40",
    ]


def test_the_smallest_count_of_a_matrix_is_not_drawn_as_nothing() -> None:
    picture = heat_map("Confusion", [[100_000, 1], [0, 3]], ["cat", "dog"], ["cat", "dog"])
    assert texts(picture)[:3] == ["100,000", "1", "3"]


def test_a_strip_marks_losses_and_joins_many_rounds() -> None:
    few = strip("Rounds", [(1, {"a": Cell(1.0)}), (2, {"a": Cell(lost="away")})], ["a"], ROUND)
    assert [each.get("class") for each in few.iter("path")].count("lost") == 1
    late = [(at, {"a": Cell(lost="late", late=True, words="late")}) for at in range(1, 201)]
    joined = strip("Rounds", late, ["a"], ROUND)
    classes = [each.get("class") for each in joined.iter("path")]
    assert ("tardy" in classes, "gone" in classes, "lost" in classes) == (True, False, False)
    assert "a, round 1 to 2: took part in 0, 2 late" in html(joined)
    rounds = [(at, {f"s{site}": Cell(1.0) for site in range(100)}) for at in range(3000)]
    many = strip("Rounds", rounds, [f"s{site}" for site in range(100)], ROUND)
    assert "Each column stands for 19 rounds" in description(many)
    assert len(html(many)) < 600_000


def test_a_histogram_counts_every_update() -> None:
    picture = histogram("Staleness", {0: 5, 1: 3, 120: 1}, Axis("staleness"))
    titles = [each.findtext("title") or "" for each in picture.iter("path") if each.find("title") is not None]
    assert sum(int(re.findall(r": (\d+) updates", title)[0]) for title in titles) == 9
    assert "9 updates: staleness 0 to 120" in description(picture)


@pytest.mark.parametrize(
    "picture",
    [
        curves("x", [], ROUND, Axis("y")),
        curves("x", [Series("a", [(1, None)])], ROUND, Axis("y")),
        stacked("x", [(1, {})], ROUND, ["a"]),
        heat_map("x", [], [], []),
        strip("x", [], [], ROUND),
        histogram("x", {}, ROUND),
    ],
)
def test_a_picture_of_nothing_says_so(picture: Element) -> None:
    assert len(texts(picture)) == 1
    assert sparkline("x", [None]).text == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.94731, "0.9473"),
        (12345.6, "12,346"),
        (-0.5, "−0.5"),
        (3.2e-7, "3.2e−7"),
        (math.nan, "–"),
        (0, "0"),
        (2e9, "2e9"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert brief(value) == text
