"""The bound on the likelihood: exact for an exact posterior, the same masks for every method, arithmetic by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from masked_models import VOCAB, Chain, moved, moved_model, network_config

from diffusionblocks import BlockwiseModel, InputError, convert
from diffusionblocks.data.symbols import CharacterTokenizer
from diffusionblocks.data.text import TokenSet
from diffusionblocks.evaluation.likelihood import LikelihoodOptions, evaluate_likelihood, strata_of, window_nats
from diffusionblocks.families.masked_lm import MASK, PAD, MaskedLmEnsemble, cross_entropy
from diffusionblocks.noise import Masking
from diffusionblocks.partition import noise_edges, noise_intervals
from diffusionblocks.randomness import keyed_generator

CUTS = {
    "one": (Masking(), 1, "equal-mass"),
    "two": (Masking("cosine"), 2, "equal-mass"),
    "three": (Masking(), 3, "equal-mass"),
    "uneven": (Masking("cosine"), 3, "uniform-linear"),
}


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(count * seed + k) for k in range(count)]


def bound(network, y: torch.Tensor, cut: str, draws: int, seed: int = 0) -> torch.Tensor:
    """Of windows y, by stratum (N, strata), with one network as every block."""
    law, num_blocks, how = CUTS[cut]
    intervals = noise_intervals(noise_edges(law, num_blocks, how))
    x = torch.full_like(y, MASK)
    return window_nats([network] * num_blocks, law, strata_of(law, intervals, draws), x, y, generators(len(y), seed))


def text_of(count: int, seq_len: int = 16, seed: int = 0, characters: int = 0, num_bytes: int = 0) -> TokenSet:
    tokens = torch.randint(0, VOCAB, (count,), generator=keyed_generator(seed, "text of a test")).numpy()
    return TokenSet(
        tokens, seq_len, CharacterTokenizer("characters", "abcdefghijk"), characters or count, num_bytes or count
    )


# With the exact posterior.


def test_over_all_masks_the_bound_of_every_text_is_its_likelihood():
    """The mean over the subsets of each size, summed over sizes: the average over orders of the chain rule."""
    chain = Chain(4)
    y = chain.texts
    total = torch.zeros(len(y), dtype=torch.float64)
    for size in range(1, 5):
        subsets = list(itertools.combinations(range(4), size))
        for subset in subsets:
            masked = torch.zeros_like(y, dtype=torch.bool)
            masked[:, subset] = True
            loss = cross_entropy(chain.posterior, torch.full_like(y, MASK), y, torch.ones(len(y)), masked)
            total += loss.double() / len(subsets)
    torch.testing.assert_close(total, -chain.log_probability(y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("draws", [1, 4, 6])
def test_a_windows_estimate_has_its_likelihood_as_expectation(cut, draws):
    chain = Chain(4)
    y = chain.texts[37:38].expand(3000, -1)
    found = bound(chain.posterior, y, cut, draws).sum(dim=1)
    error = float(found.std()) / math.sqrt(len(y))
    assert float(found.mean()) == pytest.approx(-float(chain.log_probability(y[:1])), abs=4 * error)
    assert error < 0.03


@pytest.mark.parametrize("cut", CUTS)
def test_over_many_texts_it_is_the_entropy_and_a_worse_network_has_more(cut):
    """Entropy in closed form; texts differ in their likelihood more than masks do, and that part is taken out."""
    chain = Chain(7)
    weight = chain.log_probability(chain.texts).exp()
    assert chain.entropy == pytest.approx(-float(weight @ chain.log_probability(chain.texts)), rel=1e-9)
    y = chain.draw(8000, seed=3)
    luck = float(-chain.log_probability(y).mean()) - chain.entropy
    exact = bound(chain.posterior, y, cut, 6).sum(dim=1)
    assert float(exact.mean()) - luck == pytest.approx(chain.entropy, rel=0.01)
    tempered = bound(lambda *given: 0.5 * chain.posterior(*given), y, cut, 6).sum(dim=1)
    assert float(tempered.mean()) - luck > 1.05 * chain.entropy
    uniform = bound(lambda x, z, sigma: torch.zeros(*z.shape, 3), y[:100], cut, 6).sum(dim=1)
    torch.testing.assert_close(uniform, torch.full((100,), 7 * math.log(3)).double(), rtol=1e-5, atol=0)


def test_each_block_is_asked_about_its_own_interval_alone():
    law = Masking("cosine")
    intervals = noise_intervals(noise_edges(law, 3, "uniform-linear"))
    asked: list[list[float]] = [[], [], []]

    def network(block: int):
        def answer(x, z, sigma):
            asked[block].extend(law.cdf(sigma).tolist())
            return torch.zeros(*z.shape, 3)

        return answer

    y = Chain(4).texts
    strata = strata_of(law, intervals, 8)
    assert sum(stratum.hi - stratum.lo for stratum in strata) == pytest.approx(1.0, abs=1e-12)
    window_nats([network(k) for k in range(3)], law, strata, torch.full_like(y, MASK), y, generators(len(y)))
    for interval, masses in zip(intervals, asked, strict=True):
        lo, hi = law.cdf(torch.tensor([interval.lo, interval.hi], dtype=torch.float64)).tolist()
        assert lo - 1e-9 <= min(masses) < max(masses) <= hi + 1e-9
        # All of it: what is left out at the ends is rare.
        assert max(masses) - min(masses) > 0.95 * (hi - lo)


# The same for every method.


def test_methods_of_any_number_of_blocks_see_the_same_masks():
    seen = {}
    for num_blocks in (1, 2, 3, 6):
        calls: list[tuple[torch.Tensor, torch.Tensor]] = []

        def network(x, z, sigma, calls=calls):
            calls.append((z, sigma))
            return torch.zeros(*z.shape, 3)

        law, y = Masking("cosine"), Chain(7).texts[:50]
        strata = strata_of(law, noise_intervals(noise_edges(law, num_blocks)), 12)
        assert len(strata) == 12
        assert [stratum.block for stratum in strata] == sorted((s.block for s in strata), reverse=True)
        window_nats([network] * num_blocks, law, strata, torch.full_like(y, MASK), y, generators(50))
        seen[num_blocks] = torch.stack([z for z, _ in calls]), torch.stack([sigma for _, sigma in calls])
    for z, sigma in seen.values():
        assert torch.equal(z, seen[1][0])
        torch.testing.assert_close(sigma, seen[1][1], rtol=0, atol=1e-12)


def test_every_block_has_a_stratum_however_few_are_asked_for():
    law = Masking("cosine")
    strata = strata_of(law, noise_intervals(noise_edges(law, 5, "uniform-linear")), 1)
    assert [stratum.block for stratum in strata] == [4, 3, 2, 1, 0]
    assert (strata[0].lo, strata[-1].hi) == (0.0, 1.0)
    assert all(a.hi == b.lo for a, b in itertools.pairwise(strata))


def test_blocks_of_unequal_mass_have_strata_of_about_equal_mass():
    """Cut at t = 1/3 and 2/3 under the cosine, the blocks have masses of 0.134, 0.366 and 0.5."""
    law = Masking("cosine")
    blocks = [s.block for s in strata_of(law, noise_intervals(noise_edges(law, 3, "uniform-linear")), 12)]
    assert [blocks.count(block) for block in range(3)] == [2, 4, 6]


@torch.no_grad()
def test_a_separate_estimator_agrees_for_the_assembled_model():
    """The chain rule in random order: the k-th token from the end by the block that has a mass in ((k-1)/n, k/n]."""
    model = moved_model(3, schedule="cosine")
    law, n, count = Masking("cosine"), 16, 600
    y = torch.randint(0, VOCAB, (1, n), generator=keyed_generator(7)).expand(count, -1)
    x, generator = torch.full_like(y, MASK), torch.Generator().manual_seed(11)
    order = torch.rand(count, n, generator=generator).argsort(dim=1)
    z, chained = y.clone(), torch.zeros(count, dtype=torch.float64)
    for k in range(1, n + 1):
        # The k-th place of the order is masked too, and scored by what is left to see.
        place = order[:, k - 1 : k]
        z = z.scatter(1, place, MASK)
        mass = (k - 1 + torch.rand(count, generator=generator, dtype=torch.float64)) / n
        which = 2 - (3 * mass).long().clamp(max=2)
        logits = torch.stack([block(x, z, law.icdf(mass)) for block in model.block_list])[which, torch.arange(count)]
        log_p = logits.double().log_softmax(dim=-1)
        chained -= log_p.gather(1, place[..., None].expand(-1, -1, VOCAB))[:, 0].gather(1, y.gather(1, place))[:, 0]
    strata = strata_of(law, [block.interval for block in model.block_list], 6)
    found = window_nats(model.block_list, law, strata, x, y, generators(count)).sum(dim=1)
    error = math.sqrt(float(found.var() + chained.var()) / count)
    assert float(found.mean()) == pytest.approx(float(chained.mean()), abs=4 * error)
    assert error < 0.01 * float(chained.mean())


# The result as numbers.


@pytest.fixture(scope="module")
def model() -> BlockwiseModel:
    return moved_model()


def test_a_uniform_network_has_log2_v_bits_a_token_over_characters_and_bytes():
    model = convert(network_config(), 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    result = evaluate_likelihood(model, text_of(100, characters=90, num_bytes=130), LikelihoodOptions(draws=6))
    bits = math.log2(VOCAB)
    assert result["bits_per_token"] == pytest.approx(bits, rel=1e-6)
    assert result["bits_per_character"] == pytest.approx(bits * 100 / 90, rel=1e-6)
    assert result["bits_per_byte"] == pytest.approx(bits * 100 / 130, rel=1e-6)
    assert result["perplexity_per_token"] == pytest.approx(VOCAB, rel=1e-5)
    assert result["se"] == pytest.approx(0.0, abs=1e-5)
    assert [result[name] for name in ("tokens", "characters", "bytes", "windows", "draws")] == [100, 90, 130, 7, 6]
    for block in result["blocks"]:
        assert block["bits_per_masked_token"] == pytest.approx(bits, rel=1e-6)
        assert block["bits_per_character"] == pytest.approx(bits * 100 / 90 / 3, rel=1e-6)


def test_the_blocks_shares_and_the_levels_sum_to_the_whole(model):
    result = evaluate_likelihood(model, text_of(150, characters=120), LikelihoodOptions(draws=9))
    assert [block["block"] for block in result["blocks"]] == [0, 1, 2]
    assert [block["masked"] for block in result["blocks"]] == [
        pytest.approx([2 / 3, 1]),
        pytest.approx([1 / 3, 2 / 3]),
        pytest.approx([0, 1 / 3]),
    ]
    total = sum(block["bits_per_character"] for block in result["blocks"])
    assert total == pytest.approx(result["bits_per_character"], rel=1e-9)
    levels = sum(level["bits_per_masked_token"] / 9 for level in result["levels"])
    assert levels == pytest.approx(result["bits_per_token"], rel=1e-9)
    for block in result["blocks"]:
        own = [level["bits_per_masked_token"] for level in result["levels"] if level["block"] == block["block"]]
        assert block["bits_per_masked_token"] == pytest.approx(sum(own) / 3, rel=1e-9)
    masses = [level["masked"] for level in result["levels"]]
    assert masses == pytest.approx([(k + 0.5) / 9 for k in range(9)])


def test_it_is_the_sum_over_windows_and_the_error_is_that_of_a_ratio(model):
    """Each window on its own; the jackknife over windows, of which the last has fewer tokens."""
    data, options = text_of(16 * 40 + 5, characters=600), LikelihoodOptions(draws=6, seed=4)
    result = evaluate_likelihood(model, data, options)
    strata = strata_of(Masking(), [block.interval for block in model.block_list], 6)
    bits, sizes = [], []
    for row in range(len(data)):
        tokens, valid = data.rows(torch.tensor([row]))
        key = keyed_generator(4, "likelihood", row)
        nats = window_nats(model.block_list, Masking(), strata, torch.where(valid, MASK, PAD), tokens, [key])
        bits.append(float(nats.sum()) / math.log(2))
        sizes.append(int(valid.sum()))
    bits, sizes, n = np.array(bits), np.array(sizes), len(bits)
    assert sizes[-1] == 5
    assert result["bits_per_character"] == pytest.approx(bits.sum() / 600, rel=1e-6)
    left_out = (bits.sum() - bits) / (sizes.sum() - sizes) * sizes.sum() / 600
    jackknife = math.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())
    assert result["se"] == pytest.approx(jackknife, rel=0.03)


def test_the_batch_size_does_not_matter_and_the_seed_does(model):
    data = text_of(16 * 10 + 3)
    one, many, other = (
        evaluate_likelihood(model, data, LikelihoodOptions(draws=3, batch_size=size, seed=seed))
        for size, seed in ((1, 0), (64, 0), (64, 1))
    )
    assert one["bits_per_character"] == pytest.approx(many["bits_per_character"], rel=1e-6)
    assert one["se"] == pytest.approx(many["se"], rel=1e-5)
    assert other["bits_per_character"] != pytest.approx(many["bits_per_character"], rel=1e-4)


def test_one_window_has_no_error(model):
    assert math.isnan(evaluate_likelihood(model, text_of(16), LikelihoodOptions(draws=3))["se"])


def test_windows_longer_than_in_training_are_refused(model):
    with pytest.raises(InputError, match=r"^seq_len=17: expected at most 16, as in training"):
        evaluate_likelihood(model, text_of(40, seq_len=17), LikelihoodOptions())


# The ensemble.


@torch.no_grad()
def test_an_ensemble_is_the_normalised_mean_of_log_probabilities():
    members = [moved(convert(network_config(), 1, seed=seed)).blocks[0] for seed in (0, 1, 2)]
    y, sigma = text_of(32).rows(torch.arange(2))[0], torch.tensor([0.3, 0.8])
    x, z = torch.full_like(y, MASK), torch.where(torch.rand(2, 16, generator=keyed_generator(0)) < 0.5, MASK, y)
    found = MaskedLmEnsemble(members)(x, z, sigma).double()
    product = torch.stack([member(x, z, sigma).double().softmax(dim=-1) for member in members]).prod(dim=0) ** (1 / 3)
    torch.testing.assert_close(found.exp(), product / product.sum(dim=-1, keepdim=True), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found, members[0](x, z, sigma).double().log_softmax(dim=-1), atol=1e-2)


def test_an_ensemble_is_scored_as_one_block_over_the_whole_range():
    model = moved(convert(network_config(), 1))
    data, options = text_of(70), LikelihoodOptions(draws=4)
    alone = evaluate_likelihood(model, data, options)
    twice = evaluate_likelihood(MaskedLmEnsemble([model.blocks[0], model.blocks[0]]), data, options)
    assert twice["bits_per_token"] == pytest.approx(alone["bits_per_token"], rel=1e-6)
    other = moved(convert(network_config(), 1, seed=1)).blocks[0]
    both = evaluate_likelihood(MaskedLmEnsemble([model.blocks[0], other]), data, options)
    assert both["bits_per_token"] != pytest.approx(alone["bits_per_token"], rel=1e-3)
    assert [block["masked"] for block in both["blocks"]] == [[0.0, 1.0]]
