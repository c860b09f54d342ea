"""The pictures of the documentation show what theory says, in the theme's colours."""

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import drawing
import numpy as np
import pictures
import pytest
import results
from scipy import stats


def law_mass(p_mean: float, p_std: float) -> Any:
    a, b = ((np.log(sigma) - p_mean) / p_std for sigma in (0.002, 80.0))
    return stats.truncnorm(a, b, loc=p_mean, scale=p_std)


def test_the_law_is_drawn_as_scipy_has_it():
    for axes, (p_mean, p_std) in zip(pictures.law_with_cuts().axes, ((0.3, 1.0), (-1.2, 1.2)), strict=True):
        law = law_mass(p_mean, p_std)
        sigma, density = axes.lines[0].get_data()
        np.testing.assert_allclose(density[1:-1], law.pdf(np.log(sigma))[1:-1], atol=2e-4)
        edges = [line.get_xdata()[0] for line in axes.lines[1:]]
        np.testing.assert_allclose(edges, np.exp(law.ppf([2 / 3, 1 / 3])), rtol=1e-6)
        shaded = [collection.get_paths()[0].vertices for collection in axes.collections]
        areas = [np.trapezoid(*_upper_side(corners)) for corners in shaded]
        np.testing.assert_allclose(areas, 1 / 3, atol=0.01)


def _upper_side(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Density over log sigma of a filled area: its outline away from the axis."""
    inside = corners[corners[:, 1] > 0]
    order = np.argsort(inside[:, 0])
    return inside[order, 1], np.log(inside[order, 0])


def test_the_plan_is_drawn_where_karras_puts_it():
    axes = pictures.plan_steps().axes[0]
    drawn = sorted((float(line.get_xdata()[0]) for line in axes.lines if list(line.get_ydata()) == [2]), reverse=True)
    edges = [80.0, *np.exp(law_mass(0.3, 1.0).ppf([2 / 3, 1 / 3])), 0.002]
    wanted = [
        (hi ** (1 / 7) + k / 4 * (lo ** (1 / 7) - hi ** (1 / 7))) ** 7
        for hi, lo in itertools.pairwise(edges)
        for k in range(4)
    ]
    np.testing.assert_allclose(drawn, wanted, rtol=1e-6)


def test_the_paths_of_the_sampler_end_at_the_targets():
    axes = pictures.sampler_trajectory().axes[0]
    (targets,) = [np.stack(line.get_data(), 1) for line in axes.lines if line.get_marker() == "*"]
    paths = [line for line in axes.lines if line.get_marker() == "None" and len(line.get_xdata())]
    segments = [np.stack(line.get_data(), 1) for line in paths]
    steps = np.stack(segments).reshape(60, 12, 2, 2)  # step, path, its two ends, coordinates
    np.testing.assert_array_equal(steps[:-1, :, 1], steps[1:, :, 0])
    assert np.linalg.norm(steps[-1, :, 1, None] - targets, axis=-1).min(axis=-1).max() < 1e-6
    assert np.linalg.norm(steps[0, :, 0], axis=-1).min() > 1
    cosines = targets @ targets.T
    np.testing.assert_allclose(cosines[~np.eye(3, dtype=bool)], -0.5, atol=1e-6)


def test_z_names_the_class_where_the_picture_says():
    """Against the exact probability for equally likely classes: E over one coordinate of the K - 1 others' product."""
    axes = pictures.label_leak().axes[0]
    grid = np.linspace(-9, 9, 2001)
    for line, num_classes in zip(axes.lines[:3], (10, 100, 1000), strict=True):
        # Scores of a simplex differ by independent normals: the gap is K/(K-1), the spread sigma sqrt(K/(K-1)).
        for sigma, share in list(zip(*line.get_data(), strict=True))[::10]:
            gap = np.sqrt(num_classes / (num_classes - 1)) / sigma
            exact = np.trapezoid(stats.norm.pdf(grid) * stats.norm.cdf(grid + gap) ** (num_classes - 1), grid)
            assert abs(share - exact) < 4 * np.sqrt(exact * (1 - exact) / 2000) + 1e-3


def test_the_bars_of_memory_are_the_measured_ratios():
    ratios = json.loads((results.RESULTS / "vit-digits/layer_memory.json").read_text())["ratio_times_B"]
    drawn = [bar.get_width() for bar in pictures.memory_bars().axes[0].patches]
    kinds = results.KINDS
    assert drawn == [*(ratios["total"][k] for k in (*kinds, "peak_total")), *(ratios["layers"][k] for k in kinds)]


@pytest.mark.parametrize("name", [name for name in pictures.PICTURES if name != "training"])
def test_pictures_are_svg_in_the_colours_of_the_theme(name):
    draw = pictures.PICTURES[name].draw
    text = drawing.svg(draw)
    tree = ElementTree.fromstring(text)
    assert tree.get("viewBox")
    assert tree.get("width") is None
    assert "currentColor" in text
    assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= {"#ffffff"}
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(target in ids for target in re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    drawing.svg.cache_clear()
    assert drawing.svg(draw) == text
