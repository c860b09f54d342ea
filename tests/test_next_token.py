"""Bits of autoregressive models: exact for exact posteriors, bounds otherwise, and arithmetic by hand."""

import itertools
import math

import pytest
import torch
from causal_models import VOCAB, moved_model, network_config, normal, pairs, plain_network, texts

from diffusionblocks import InputError
from diffusionblocks.block import plan_of
from diffusionblocks.data.symbols import CharacterTokenizer
from diffusionblocks.data.text import TokenSet
from diffusionblocks.evaluation import next_token
from diffusionblocks.evaluation.next_token import chain_nats, evaluate_next_token, free_nats, noisy_start_nats
from diffusionblocks.families.causal_decoding import Decoding, bridged, drawn
from diffusionblocks.families.causal_lm import CausalLmEnsemble
from diffusionblocks.marks import PAD, before
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import PlanStep, SamplingPlan
from diffusionblocks.targets import simplex_table

PROBS = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04], dtype=torch.float64)
ENTROPY = float(-(PROBS * PROBS.log()).sum())
# Of unit norm to the last bits of float64; the table itself is float32.
TABLE = torch.nn.functional.normalize(simplex_table(5).double(), dim=1)
COUNT = 20_000


def plan_with(steps: int, first: float = 3.0) -> SamplingPlan:
    levels = [first * 0.6**k for k in range(steps)] + [0.0]
    return SamplingPlan(tuple(PlanStep(a, b, 0) for a, b in itertools.pairwise(levels)))


def exact(plan: SamplingPlan, power: float = 1.0):
    """log p(y | z), p(y) exp(z e_y / sigma^2) since targets have one norm; raised to a power it is another answer."""

    def answer(number: int, z: torch.Tensor | None) -> torch.Tensor:
        if z is None:
            return (power * PROBS.log()).log_softmax(dim=-1).expand(1, COUNT, -1)
        return (power * (PROBS.log() + z @ TABLE.T / plan.steps[number].sigma ** 2)).log_softmax(dim=-1)

    return answer


def tokens() -> torch.Tensor:
    return torch.multinomial(PROBS, COUNT, replacement=True, generator=keyed_generator(0, "tokens"))[None]


def noise(steps: int) -> torch.Tensor:
    return torch.randn(steps + 1, 1, COUNT, 4, dtype=torch.float64, generator=keyed_generator(1, "path"))


def error(values: torch.Tensor) -> float:
    return float(values.std()) / math.sqrt(values.numel())


# The bound of a chain.


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_with_exact_posteriors_a_chain_from_zero_costs_the_likelihood_on_every_path(steps):
    plan, y = plan_with(steps), tokens()
    found, _ = chain_nats(exact(plan), plan, TABLE, y, noise(steps), "zero")
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, -PROBS.log()[y], rtol=1e-9, atol=1e-9)
    assert float(found.mean()) == pytest.approx(ENTROPY, abs=4 * error(found))


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("first", [1.0, 3.0, 80.0])
def test_from_noise_it_costs_the_entropy_and_what_the_start_is_off(steps, first):
    """A chain starts from N(0, sigma^2) where the noisy targets are a mixture: their divergence, estimated apart."""
    plan, y, eps = plan_with(steps, first), tokens(), noise(steps)
    found, _ = chain_nats(exact(plan), plan, TABLE, y, eps, "noise")
    # Any number of steps: what the first answer costs on the path's own z, and what that z does.
    z = TABLE[y] + first * eps[0]
    at_z = -exact(plan)(0, z).gather(-1, y[..., None])[..., 0] + 1 / (2 * first**2)
    torch.testing.assert_close(found, at_z, rtol=1e-9, atol=1e-9)
    other = TABLE[y] + first * torch.randn(1, COUNT, 4, dtype=torch.float64, generator=keyed_generator(2))
    squares = -(other[..., None, :] - TABLE).square().sum(dim=-1) / (2 * first**2)
    off = (PROBS.log() + squares).logsumexp(dim=-1) + other.square().sum(dim=-1) / (2 * first**2)
    both = math.hypot(error(found), error(off))
    assert float(found.mean()) == pytest.approx(ENTROPY + float(off.mean()), abs=4 * both)
    if first == 80.0:
        assert float(found.mean()) == pytest.approx(ENTROPY, abs=4 * error(found))
        assert error(found) < 0.01


@pytest.mark.parametrize("start", ["zero", "noise"])
@pytest.mark.parametrize("power", [0.5, 1.5])
def test_worse_answers_cost_more_than_what_the_chain_emits_and_than_exact_ones(start, power):
    """What it emits by running it; the bound is on the likelihood of that."""
    plan, y, eps = plan_with(3), tokens(), noise(3)
    worse, _ = chain_nats(exact(plan, power), plan, TABLE, y, eps, start)
    best, _ = chain_nats(exact(plan), plan, TABLE, y, eps, start)
    assert float((worse - best).mean()) > 4 * error(worse - best) > 0
    emitted = emit(plan, power, start)
    # The emitted shares' own cross-entropy, whose error is about that of a count.
    cross = -(PROBS * emitted.log()).sum()
    bound = torch.stack([worse[y == token].mean() for token in range(5)]) @ PROBS
    assert float(bound) > float(cross) - 0.01
    assert float(cross) > ENTROPY + 0.005


def test_exact_answers_emit_the_true_shares():
    """So the bound is of the chain that `bridged` takes."""
    plan = plan_with(3)
    shares = emit(plan, 1.0, "zero")
    assert (shares - PROBS).abs().max() < 4 * math.sqrt(0.25 / COUNT)


def emit(plan: SamplingPlan, power: float, start: str) -> torch.Tensor:
    generator = keyed_generator(3, "emit")
    z = None
    if start == "noise":
        z = plan.steps[0].sigma * torch.randn(COUNT, 4, dtype=torch.float64, generator=generator)
    log_probs = torch.zeros(0)
    for number, step in enumerate(plan.steps):
        log_probs = exact(plan, power)(number, None if z is None else z[None])[0]
        chance = torch.rand(COUNT, dtype=torch.float64, generator=generator)
        eps = torch.randn(COUNT, 4, dtype=torch.float64, generator=generator)
        if step.sigma_next > 0:
            z = bridged(log_probs, z, step, TABLE, Decoding(bridge="sampled"), chance, eps)
    return drawn(log_probs, chance).bincount(minlength=5).double() / COUNT


# Without noise.


@torch.no_grad()
def test_a_plain_network_has_the_loss_of_transformers():
    plain = plain_network(network_config(bos_token_id=0))  # not the last row, so that all rows are tokens
    assert plain.vocabulary.size == VOCAB + 1
    y = texts(3).clamp(min=1)
    x, _ = pairs(y)
    found = free_nats([plain], x, y)
    ids = torch.cat([torch.zeros(3, 1, dtype=torch.long), y], dim=1)
    for row in range(3):
        loss = plain.backbone(input_ids=ids[row : row + 1], labels=ids[row : row + 1]).loss
        for answer in (0, 1):  # alone it is its own average
            assert float(found[answer, row].mean()) == pytest.approx(float(loss), rel=1e-5)
    assert float(plain.loss(x, y).mean()) == pytest.approx(float(found[0].mean()), rel=1e-5)


@torch.no_grad()
def test_the_average_costs_at_most_the_mean_of_its_members():
    members = [plain_network(index=k) for k in range(3)]
    x, y = pairs(texts(4))
    for networks in (members, moved_model(num_blocks=2).block_list):
        found = free_nats(networks, x, y)
        assert found.shape == (len(networks) + 1, 4, 8)
        assert (found[-1] < found[:-1].mean(dim=0)).all()
        for network, nats in zip(networks, found, strict=False):
            log_probs = network.head(network.free(x)).double().log_softmax(dim=-1)
            expected = -log_probs.gather(-1, y[..., None])[..., 0]
            torch.testing.assert_close(nats, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 5, 31])
def test_chunks_change_nothing(monkeypatch, chunk):
    blocks, (x, y) = moved_model().block_list, pairs(texts(4))
    expected = free_nats(blocks, x, y)
    rows = []
    head = type(blocks[0]).head
    monkeypatch.setattr(type(blocks[0]), "head", lambda self, states: rows.append(len(states)) or head(self, states))
    monkeypatch.setattr(next_token, "CHUNK_LOGITS", chunk * VOCAB)
    torch.testing.assert_close(free_nats(blocks, x, y), expected, rtol=1e-5, atol=1e-5)
    assert max(rows) == chunk


# From a noisy start.


@pytest.mark.parametrize("context", ["concat", "fused"])
@torch.no_grad()
def test_one_draw_of_a_noisy_start_is_the_block_at_its_noise(context):
    block, (x, y) = moved_model(context=context, conditioning="scale-shift").block_list[0], pairs(texts(3))
    asked, looked = normal(2, 1, 3, 8, 32)
    found = noisy_start_nats(block, 5.0, x, y, torch.stack([asked, looked]))
    sigma = torch.full((3,), 5.0, dtype=torch.float64)
    for place in range(8):
        # In fused those before it carry their own tokens, noisy.
        z = block.targets[y] + 5.0 * looked[0]
        z[:, place] = 5.0 * asked[0][:, place]
        logits = block(x[:, : place + 1], z[:, : place + 1], sigma)[:, -1].double()
        expected = logits.logsumexp(dim=-1) - logits.gather(-1, y[:, place : place + 1])[:, 0]
        torch.testing.assert_close(found[:, place], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_several_draws_are_the_mean_of_their_probabilities():
    block, (x, y) = moved_model().block_list[0], pairs(texts(3))
    given = normal(2, 4, 3, 8, 32)
    found = noisy_start_nats(block, 5.0, x, y, given)
    each = torch.stack([noisy_start_nats(block, 5.0, x, y, given[:, k : k + 1]) for k in range(4)])
    torch.testing.assert_close(found, -(-each).exp().mean(dim=0).log(), rtol=1e-9, atol=1e-9)
    assert (found < each.mean(dim=0)).all()


# The result as numbers.


def text_of(count: int, seq_len: int = 8, characters: int = 0, num_bytes: int = 0) -> TokenSet:
    ids = torch.randint(0, VOCAB, (count,), generator=keyed_generator(0, "text of a test")).numpy()
    tokenizer = CharacterTokenizer("characters", "abcdefghijklmnopqrst")
    return TokenSet(ids, seq_len, tokenizer, characters or count, num_bytes or count)


@torch.no_grad()
def test_bits_are_nats_over_characters_without_the_padding():
    """Of 27 tokens in windows of 8, the last has 3 and is padded."""
    model, data = moved_model(), text_of(27, characters=25, num_bytes=40)
    x, y = before(*data.rows(torch.arange(4)))
    assert (y == PAD).sum() == 5
    nats = free_nats(model.block_list, x, y.clamp(min=0)).flatten(1)[:, (y != PAD).flatten()].sum(dim=1)
    found = evaluate_next_token(model, data, model.plan)
    total = float(nats[-1]) / math.log(2)
    assert found["bits_per_character"] == pytest.approx(total / 25, rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(total / 40, rel=1e-6)
    assert found["bits_per_token"] == pytest.approx(total / 27, rel=1e-6)
    assert found["perplexity_per_token"] == pytest.approx(math.exp(float(nats[-1]) / 27), rel=1e-6)
    assert [found[name] for name in ("tokens", "characters", "bytes", "windows")] == [27, 25, 40, 4]
    for block, own in zip(found["blocks"], nats[:-1].tolist(), strict=True):
        assert block["bits_per_character"] == pytest.approx(own / math.log(2) / 25, rel=1e-6)
    assert (found["estimate"], found["answer"]) == ("exact", "average")
    assert [(a["answer"], a["estimate"]) for a in found["answers"]] == [
        ("average", "exact"),
        ("chain", "bound"),
        ("block 0 from noise", "bound"),
    ]


@pytest.mark.parametrize("context", ["concat", "fused"])
@pytest.mark.parametrize("start", ["zero", "noise"])
def test_the_batch_size_does_not_matter_and_the_seed_does(context, start):
    model, data = moved_model(context=context), text_of(43)
    plan = plan_of(model.config, 3)

    def score(**options) -> list[float]:
        found = evaluate_next_token(model, data, plan, decoding="chain", start=start, draws=2, **options)
        assert found["answer"] == "chain"
        assert found["bits_per_character"] == found["answers"][1]["bits_per_character"]
        return [each["bits_per_character"] for each in found["answers"]] + [
            block["noisy_bits_per_character"] for block in found["blocks"]
        ]

    one, many, other = score(batch_size=1), score(batch_size=64), score(batch_size=64, seed=1)
    assert one == pytest.approx(many, rel=1e-5)
    assert other[0] == many[0]
    for a, b in zip(other[1:], many[1:], strict=True):
        assert a != pytest.approx(b, rel=1e-5)


def test_controls_have_their_own_answer_alone():
    members, data = [plain_network(index=k) for k in range(2)], text_of(27)
    alone = evaluate_next_token(members[0], data, None)
    assert [(a["answer"], a["estimate"]) for a in alone["answers"]] == [("network", "exact")]
    twice = evaluate_next_token(CausalLmEnsemble([members[0], members[0]]), data, None)
    assert twice["bits_per_token"] == pytest.approx(alone["bits_per_token"], rel=1e-6)
    other = evaluate_next_token(members[1], data, None)["bits_per_token"]
    both = evaluate_next_token(CausalLmEnsemble(members), data, None)
    assert both["answer"] == "average"
    assert both["bits_per_token"] < (alone["bits_per_token"] + other) / 2
    assert both["blocks"] == []


def test_windows_longer_than_in_training_are_refused():
    with pytest.raises(InputError, match=r"^seq_len=17: expected at most 16, as in training"):
        evaluate_next_token(plain_network(), text_of(40, seq_len=17), None)
