"""Filling in masked text: exact for an exact posterior, each text on its own, and at the masked shares of the plan."""

import gc
import math
import weakref

import pytest
import torch
from masked_models import VOCAB, Chain, moved_model
from scipy import stats

from diffusionblocks import InputError
from diffusionblocks.block import held, plan_of
from diffusionblocks.families.masked_lm import MASK, PAD, generate
from diffusionblocks.model import load_block, read_model
from diffusionblocks.noise import Masking
from diffusionblocks.partition import noise_edges
from diffusionblocks.sampling import SamplingPlan

SAMPLERS = pytest.mark.parametrize("sampler", ["counts", "ancestral"])


class Fake:
    """A block of which only the answer is given: logits for (x, z, sigma); writes down what it is called with."""

    def __init__(self, answer, symbols: int, seq_len: int, law: Masking | None = None):
        self.answer, self.mask_id, self.seq_len, self.law = answer, symbols, seq_len, law or Masking()
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def parameters(self):
        return iter([torch.zeros(1)])

    def __call__(self, x, z, sigma):
        self.calls.append((z.clone(), sigma.clone()))
        return self.answer(x, z, sigma)


def flat(symbols: int):
    return lambda x, z, sigma: torch.zeros(*z.shape, symbols)


def plan_with(num_blocks: int, steps: int, law: Masking | None = None) -> SamplingPlan:
    law = law or Masking()
    return SamplingPlan.build(law, noise_edges(law, num_blocks), steps, "mass")


def half_given(count: int = 5, n: int = 16) -> torch.Tensor:
    """Texts with a prompt, with a gap in the middle, with padding, with nothing given, with all given."""
    x = torch.full((count, n), MASK)
    x[0, :6] = torch.arange(6)
    x[1, :5], x[1, 9:] = 3, 6
    x[2, 10:], x[2, 2] = PAD, 4
    x[4] = 5
    return x


# The distribution of what is filled in.


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("given", [None, 1], ids=["free", "given"])
def test_with_the_exact_posterior_texts_have_their_true_joint_distribution(num_blocks, given):
    """One token a step, in random order, from a chain's posterior; free, or with the last token given."""
    chain, count = Chain(3), 6000
    block = Fake(chain.posterior, 3, 3)
    x = torch.full((count, 3), MASK)
    probability = chain.log_probability(chain.texts).exp()
    if given is not None:
        x[:, 2] = given
        probability = torch.where(chain.texts[:, 2] == given, probability, 0.0)
    texts = generate([lambda: block] * num_blocks, x, plan_with(num_blocks, 3), batch_size=count)
    counts = (texts * torch.tensor([9, 3, 1])).sum(dim=1).bincount(minlength=27)
    expected = count * probability / probability.sum()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept].numpy(), expected[kept].numpy()).pvalue > 0.01
    # The test has the power to tell: tokens that are drawn on their own have another distribution.
    single = torch.stack([(chain.texts == s).double() * chain.first[s] for s in range(3)]).sum(dim=0).prod(dim=1)
    single = torch.where(kept, single, 0.0) / single[kept].sum() * count
    assert stats.chisquare(counts[kept].numpy(), single[kept].numpy()).pvalue < 1e-9


@SAMPLERS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_at_the_temperature(sampler, temperature):
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    block = Fake(lambda x, z, sigma: logits.expand(*z.shape, 4), 4, 8)
    x = torch.full((1000, 8), MASK)
    texts = generate([lambda: block], x, plan_with(1, 3), sampler=sampler, temperature=temperature, batch_size=1000)
    expected = 8000 * (logits.double() / temperature).softmax(dim=0)
    assert stats.chisquare(texts.flatten().bincount(minlength=4).numpy(), expected.numpy()).pvalue > 0.01


def test_at_a_temperature_near_0_each_token_is_the_likeliest():
    block, x = moved_model(1).blocks[0], half_given()
    texts = generate([lambda: block], x, plan_with(1, 1), temperature=1e-9)
    with torch.no_grad():
        share = (x == MASK).sum(dim=1) / (x != PAD).sum(dim=1)
        best = block(torch.where(x == PAD, PAD, MASK), x, share.double()).argmax(dim=-1)
    assert torch.equal(texts, torch.where(x == MASK, best, x))


# What the network is asked.


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(("num_blocks", "steps", "n"), [(3, 8, 16), (3, 12, 12), (3, 3, 3), (6, 18, 18), (1, 7, 49)])
def test_counts_keep_the_masked_share_of_the_plan_in_every_step(schedule, num_blocks, steps, n):
    """As many tokens are masked at a level as in training, where the level is exactly k of n too."""
    law = Masking(schedule)
    plan = plan_with(num_blocks, steps, law)
    blocks = [Fake(flat(4), 4, n, law) for _ in range(num_blocks)]
    generate([lambda b=b: b for b in blocks], torch.full((5, n), MASK), plan, sampler="counts")
    calls = [call for block in blocks for call in block.calls]
    assert [len(block.calls) for block in blocks] == [plan.blocks().count(k) for k in range(num_blocks)]
    for step, (z, sigma) in zip(plan.steps, calls, strict=True):
        mass = float(law.cdf(torch.tensor(step.sigma, dtype=torch.float64)))
        assert (z == MASK).sum(dim=1).tolist() == [math.ceil(mass * n - 1e-9)] * 5
        torch.testing.assert_close(law.cdf(sigma), torch.full((5,), mass, dtype=torch.float64), rtol=0, atol=1e-9)


def test_ancestral_steps_keep_it_on_average():
    law, n, count = Masking("cosine"), 16, 1500
    plan = plan_with(3, 9, law)
    block = Fake(flat(4), 4, n, law)
    generate([lambda: block] * 3, torch.full((count, n), MASK), plan, sampler="ancestral", batch_size=count)
    spread = []
    for step, (z, _) in zip(plan.steps, block.calls, strict=True):
        mass, masked = float(law.cdf(torch.tensor(step.sigma))), (z == MASK).double()
        error = math.sqrt(mass * (1 - mass) / (count * n))
        assert float(masked.mean()) == pytest.approx(mass, abs=4 * error + 1e-7)
        spread.append(float(masked.sum(dim=1).var()) / max(1e-9, n * mass * (1 - mass)))
    # Binomial, since every token is revealed on its own.
    assert spread[1:] == pytest.approx([1] * 8, rel=4 * math.sqrt(2 / count))


@SAMPLERS
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_a_token_is_never_looked_at_before_it_is_revealed_and_never_changed_after(sampler, num_blocks):
    block = Fake(flat(7), 7, 16)
    x = half_given()
    texts = generate([lambda: block] * num_blocks, x, plan_with(num_blocks, 9), sampler=sampler)
    before = x
    for z, _ in [*block.calls, (texts, None)]:
        assert torch.equal(z[before != MASK], before[before != MASK])
        before = z
    assert all((z == MASK).any() for z, _ in block.calls)


@SAMPLERS
def test_more_steps_than_tokens_cost_no_calls(sampler):
    block = Fake(flat(4), 4, 5)
    texts = generate([lambda: block] * 3, torch.full((1, 5), MASK), plan_with(3, 60), sampler=sampler)
    assert len(block.calls) == 5 if sampler == "counts" else 1 <= len(block.calls) <= 5
    assert int(texts.min()) >= 0


@SAMPLERS
@pytest.mark.parametrize(("given", "idle"), [(0, []), (4, [0]), (7, [0]), (8, [0, 1]), (11, [0, 1]), (12, [0, 1, 2])])
def test_blocks_for_more_masks_than_a_text_has_are_not_run(sampler, given, idle):
    blocks = [Fake(flat(4), 4, 12) for _ in range(3)]
    x = torch.full((20, 12), MASK)
    x[:, :given] = 1
    generate([lambda b=b: b for b in blocks], x, plan_with(3, 12), sampler=sampler)
    assert [k for k, block in enumerate(blocks) if not block.calls] == idle
    for block in blocks:
        assert all(float(sigma.max()) <= (12 - given) / 12 + 1e-9 for _, sigma in block.calls)


# What comes out.


@SAMPLERS
@pytest.mark.parametrize("steps", [3, 8, 40])
def test_every_mask_is_filled_in_and_nothing_else_is_touched(sampler, steps):
    model, x = moved_model(), half_given()
    texts = model.decode(x, num_sampling_steps=steps, sampler=sampler)
    assert torch.equal(texts[x != MASK], x[x != MASK])
    assert 0 <= int(texts[x == MASK].min()) <= int(texts[x == MASK].max()) < VOCAB
    assert torch.equal(x, half_given())


@SAMPLERS
def test_a_text_does_not_depend_on_what_is_beside_it(sampler):
    model, x = moved_model(), half_given()
    texts = model.decode(x, sampler=sampler, seed=3)
    assert torch.equal(model.decode(x[:1], sampler=sampler, seed=3), texts[:1])
    for batch_size in (1, 2, 4):
        assert torch.equal(model.decode(x, sampler=sampler, seed=3, batch_size=batch_size), texts)
    assert not torch.equal(model.decode(x, sampler=sampler, seed=4), texts)
    assert len({tuple(row) for row in model.decode(torch.full((6, 16), MASK), sampler=sampler).tolist()}) == 6


@SAMPLERS
def test_padding_does_not_change_what_a_text_becomes(sampler):
    model = moved_model()
    short = torch.full((1, 10), MASK)
    padded = torch.full((2, 16), MASK)
    padded[0, 10:] = PAD
    texts = model.decode(padded, sampler=sampler)
    assert torch.equal(texts[:1, :10], model.decode(short, sampler=sampler))


@SAMPLERS
def test_blocks_one_at_a_time_give_the_same_texts(sampler, tmp_path):
    model, x = moved_model(), half_given()
    model.save_pretrained(tmp_path / "model")
    config, targets = read_model(tmp_path / "model")
    loaded, alive = [], []

    def loader(index: int):
        def load():
            gc.collect()
            assert not any(ref() is not None for ref in alive)
            block = load_block(tmp_path / "model", config, index, targets)
            loaded.append(index)
            alive.append(weakref.ref(block))
            return block

        return load

    texts = generate([loader(k) for k in range(3)], x, plan_of(config), sampler=sampler, batch_size=2)
    assert loaded == [0, 1, 2]
    assert torch.equal(texts, generate(held(model.block_list), x, model.plan, sampler=sampler))


def test_steps_are_reported_for_a_progress_bar():
    seen = []
    block = Fake(flat(4), 4, 16)
    generate([lambda: block] * 3, torch.full((5, 16), MASK), plan_with(3, 7), batch_size=2, advance=seen.append)
    assert sum(seen) == 5 * 7


def test_a_model_called_gives_sequences_with_its_own_settings():
    model, x = moved_model(sampler="ancestral", temperature=2.0), half_given()
    found = model(x)
    assert type(found).__name__ == "GenerateDecoderOnlyOutput"
    plan = model.plan
    assert torch.equal(found.sequences, generate(held(model.block_list), x, plan, sampler="ancestral", temperature=2.0))
    assert not torch.equal(found.sequences, model(x, sampler="counts").sequences)
    assert not torch.equal(found.sequences, model(x, temperature=0.5).sequences)


# Refusals.


def changed(value: int) -> torch.Tensor:
    x = torch.full((2, 16), MASK)
    x[1, 3] = value
    return x


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (half_given(), {"sampler": "greedy"}, "sampler='greedy': expected counts or ancestral"),
        (half_given(), {"temperature": 0.0}, "temperature=0.0: expected a finite number above 0"),
        (half_given(), {"temperature": -1.0}, "temperature=-1.0: expected"),
        (half_given(), {"temperature": math.nan}, "temperature=nan: expected"),
        (half_given(), {"temperature": math.inf}, "temperature=inf: expected"),
        (half_given(), {"guidance": 2.0}, "option=['guidance']: expected one of sampler, temperature, seed"),
        (half_given(), {"labels": half_given()}, "labels=(5, 16): expected none: a loss needs a noise level"),
        (half_given(), {"num_sampling_steps": 2}, "num_sampling_steps=2: expected at least one step for each"),
        (changed(VOCAB), {}, f"token ids=[-2, {VOCAB}]: expected ids in 0..{VOCAB - 1}, or MASK = -2 and PAD = -1"),
        (changed(-3), {}, "token ids=[-3, -2]: expected ids"),
        (torch.full((2, 17), MASK), {}, "seq_len=17: expected at most 16, as in training"),
        (torch.full((16,), MASK), {}, "x=(16,): expected token ids (N, n)"),
        (torch.zeros(2, 16), {}, "x=(2, 16): expected token ids (N, n)"),
        (torch.full((2, 0), MASK), {}, "x=(2, 0): expected token ids (N, n)"),
    ],
    ids=lambda value: None if isinstance(value, torch.Tensor) else str(value)[:30],
)
def test_what_cannot_be_done_is_refused_in_one_line(x, options, words):
    with pytest.raises(InputError) as caught:
        moved_model()(x, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
