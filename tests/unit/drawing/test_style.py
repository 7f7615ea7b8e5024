"""The colours of pictures can be told apart by everybody, and read on both grounds."""

from itertools import combinations

import numpy as np
import pytest

from hansa.common.drawing.style import DARK, LIGHT, SERIES

# How a colour looks with each kind of colour blindness, as factors of linear RGB (Machado et al., 2009).
SIGHT = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
GROUNDS = {"light": LIGHT, "dark": DARK}


def linear(color: str) -> np.ndarray:
    """Return linear RGB."""
    rgb = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""
    darker, lighter = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIELAB, in which distances are those that people see."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", GROUNDS)
def test_lines_have_a_contrast_of_3_and_texts_one_of_4_5(theme: str) -> None:
    colors, ground = GROUNDS[theme], GROUNDS[theme]["ground"]
    assert min(contrast(color, ground) for color in SERIES[theme]) >= 3
    texts = [colors[name] for name in ("ink", "soft", "faint", "good", "warn", "bad")]
    assert min(contrast(color, ground) for color in texts) >= 4.5
    assert contrast(colors["heat"], colors["on-heat"]) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", GROUNDS)
def test_series_can_be_told_apart_with_every_kind_of_sight(theme: str, sight: str) -> None:
    seen = [lab(np.array(SIGHT[sight]) @ linear(color)) for color in SERIES[theme]]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 10
