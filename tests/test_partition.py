"""The cut places every layer once, gives every block its share of the law, and refuses what it cannot do."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal
from diffusionblocks.partition import Interval, noise_edges, noise_intervals, split_layers, training_interval

NOT_COUNTS = [0, -1, 2.5, 3.0, True, "3", None]


@st.composite
def laws(draw) -> LogNormal:
    sigma_min = 10 ** draw(st.floats(-4, 0))
    try:
        return LogNormal(
            p_mean=draw(st.floats(-6, 4)),
            p_std=draw(st.floats(0.3, 3)),
            sigma_min=sigma_min,
            sigma_max=sigma_min * 10 ** draw(st.floats(0.5, 5)),
        )
    except InputError:  # no mass in the range
        assume(False)
        raise


def masses_between(law: LogNormal, levels) -> np.ndarray:
    """scipy's mass of the truncated normal law between neighbouring levels, from its lighter tail."""
    lo, hi = ((math.log(end) - law.p_mean) / law.p_std for end in (law.sigma_min, law.sigma_max))
    reference = stats.truncnorm(lo, hi, loc=law.p_mean, scale=law.p_std)
    return np.abs(np.diff((reference.sf if lo > 0 else reference.cdf)(np.log(levels))))


@pytest.mark.parametrize(
    ("num_blocks", "published"),
    [(3, ["80", "0.505", "0.18", "0.002"]), (4, ["80", "0.677", "0.301", "0.134", "0.002"])],
)
def test_edges_are_the_published_ones(num_blocks, published):
    edges = noise_edges(LogNormal(), num_blocks)
    assert [round(edge, len(text.partition(".")[2])) for edge, text in zip(edges, published, strict=True)] == [
        float(text) for text in published
    ]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(law=laws(), num_blocks=st.integers(1, 40))
def test_each_core_interval_carries_an_equal_mass(law, num_blocks):
    edges = noise_edges(law, num_blocks)
    np.testing.assert_allclose(masses_between(law, edges), 1 / num_blocks, rtol=0, atol=1e-9)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(law=laws(), num_blocks=st.integers(1, 40), cut=st.sampled_from(["equal-mass", "uniform-linear", "uniform-log"]))
def test_edges_are_finite_and_strictly_decreasing_between_exact_ends(law, num_blocks, cut):
    edges = noise_edges(law, num_blocks, cut)
    assert len(edges) == num_blocks + 1
    assert (edges[0], edges[-1]) == (law.sigma_max, law.sigma_min)
    assert all(math.isfinite(a) and a > b for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(("cut", "grid"), [("uniform-linear", np.linspace), ("uniform-log", np.geomspace)])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 7])
def test_uniform_cuts_are_linear_in_sigma_or_in_log_sigma(cut, grid, num_blocks):
    edges = noise_edges(LogNormal(), num_blocks, cut)
    np.testing.assert_allclose(edges, grid(80.0, 0.002, num_blocks + 1), rtol=1e-12)


def test_the_intervals_join_at_the_edges_and_block_0_is_the_noisiest():
    assert noise_intervals((80.0, 0.5, 0.002)) == (Interval(lo=0.5, hi=80.0), Interval(lo=0.002, hi=0.5))


def test_an_unknown_cut_is_refused():
    with pytest.raises(InputError, match=r"^cut='halves': expected one of equal-mass, uniform-linear, uniform-log$"):
        noise_edges(LogNormal(), 3, "halves")  # pyright: ignore[reportArgumentType]


class Flat(LogNormal):
    """A broken law: every mass lies below the same level."""

    level = 1.0

    def icdf(self, mass):
        return torch.full_like(mass, self.level)


class NotANumber(Flat):
    level = math.nan


@pytest.mark.parametrize("law", [Flat(), NotANumber(), LogNormal(p_mean=0.0, p_std=1e-20)], ids=repr)
def test_edges_that_do_not_decrease_are_refused(law):
    with pytest.raises(InputError, match=r"^num_blocks=3: expected noise edges that strictly decrease.*take fewer"):
        noise_edges(law, 3)


@pytest.mark.parametrize("gamma", [0.05, 0.1])
def test_the_overlap_widens_the_core_by_its_own_width(gamma):
    """Appendix C: a = (hi / lo)^gamma on both sides."""
    core = Interval(lo=0.2, hi=0.8)
    widened = training_interval(LogNormal(), core, gamma)
    assert widened.lo == pytest.approx(0.2 * 0.25**gamma, rel=1e-12)
    assert widened.hi == pytest.approx(0.8 * 4.0**gamma, rel=1e-12)


def test_no_overlap_trains_on_the_core_interval():
    assert training_interval(LogNormal(), Interval(0.2, 0.8), 0.0) == Interval(0.2, 0.8)


def test_the_overlap_stays_inside_the_law():
    law = LogNormal()
    for core in noise_intervals(noise_edges(law, 3)):
        widened = training_interval(law, core, 5.0)
        assert (widened.lo, widened.hi) == (law.sigma_min, law.sigma_max)


@pytest.mark.parametrize("gamma", [-0.1, math.nan, math.inf])
def test_a_bad_overlap_is_refused(gamma):
    with pytest.raises(InputError, match=r"^gamma=.*: expected a finite number of at least 0"):
        training_interval(LogNormal(), Interval(0.2, 0.8), gamma)


def test_a_huge_overlap_is_the_whole_range():
    assert training_interval(LogNormal(), Interval(0.002, 80.0), 1000.0) == Interval(0.002, 80.0)


@pytest.mark.parametrize(
    ("num_layers", "num_blocks", "counts"),
    [
        (10, 4, [3, 3, 2, 2]),
        (7, 2, [4, 3]),
        (10, 3, [4, 3, 3]),
        (30, 4, [8, 8, 7, 7]),
        (12, 3, [4, 4, 4]),
        (5, 1, [5]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_the_first_blocks_take_the_remainder(num_layers, num_blocks, counts):
    assert [len(layers) for layers in split_layers(num_layers, num_blocks)] == counts


def test_an_explicit_split_is_kept():
    assert split_layers(12, 3, [2, 6, 4]) == (range(0, 2), range(2, 8), range(8, 12))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data(), num_layers=st.integers(1, 100))
def test_every_layer_belongs_to_exactly_one_block(data, num_layers):
    num_blocks = data.draw(st.integers(1, num_layers))
    blocks = split_layers(num_layers, num_blocks)
    assert len(blocks) == num_blocks
    assert list(itertools.chain(*blocks)) == list(range(num_layers))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@settings(derandomize=True, max_examples=50, deadline=None)
@given(split=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_every_layer_of_an_explicit_split_belongs_to_exactly_one_block(split):
    blocks = split_layers(sum(split), len(split), split)
    assert [len(layers) for layers in blocks] == split
    assert list(itertools.chain(*blocks)) == list(range(sum(split)))


@pytest.mark.parametrize("count", NOT_COUNTS, ids=repr)
@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("num_blocks", lambda count: noise_edges(LogNormal(), count)),
        ("num_blocks", lambda count: split_layers(4, count)),
        ("num_layers", lambda count: split_layers(count, 2)),
    ],
    ids=["edges", "blocks", "layers"],
)
def test_what_is_no_count_is_refused_in_one_line(setting, call, count):
    with pytest.raises(InputError) as error:
        call(count)
    assert str(error.value) == f"{setting}={count!r}: expected a whole number of at least 1"


def test_more_blocks_than_layers_are_refused_with_what_to_do():
    with pytest.raises(InputError) as error:
        split_layers(3, 4)
    assert str(error.value) == "num_blocks=4: expected at most the number of layers, 3; take fewer blocks"


@pytest.mark.parametrize("split", [[2, 2], [3, 3, 3], [5, 5, -1], [9, 0, 0], [], [1, 2, 3, 3]], ids=repr)
def test_a_split_that_does_not_place_every_layer_once_is_refused(split):
    with pytest.raises(InputError) as error:
        split_layers(9 if split != [3, 3, 3] else 10, 3, split)
    assert str(error.value).startswith(f"layer_split={split!r}: expected 3 counts of at least 1 that sum to ")
    assert str(error.value).endswith("; give one number of layers per block")


@pytest.mark.parametrize("split", [[2.5, 2.5], [2.0, 3.0], ["2", "3"], [True, 4]], ids=repr)
def test_a_split_of_what_is_no_count_is_refused(split):
    with pytest.raises(InputError, match="layer_split"):
        split_layers(5, 2, split)
