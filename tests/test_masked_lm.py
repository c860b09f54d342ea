"""Blocks of a masked language model: which tokens are masked, what padding is, the loss, and the cut of a network."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_models import VOCAB, moved_model, network_config
from transformers import ModernBertForMaskedLM

from diffusionblocks import InputError, convert
from diffusionblocks.block import NoiseDraw
from diffusionblocks.families.masked_lm import MASK, PAD, masked_at
from diffusionblocks.noise import Masking
from diffusionblocks.randomness import keyed_generator, seeded

FIELDS = ("sigma", "noise", "dropped")


def tokens(count: int, n: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (count, n), generator=keyed_generator(seed, "tokens"))


def network(layers: int | str) -> ModernBertForMaskedLM:
    """Every weight is away from where it starts, norms too, so that none can be left out."""
    with seeded("cpu", 0, "network"):
        found = ModernBertForMaskedLM(network_config(layers)).eval()
        with torch.no_grad():
            for parameter in found.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return found


# Which tokens are masked.


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    data=st.data(),
    schedule=st.sampled_from(["linear", "cosine"]),
    n=st.integers(1, 40),
    padding=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_exactly_the_masks_share_of_the_tokens_is_masked_and_nothing_else(data, schedule, n, padding, seed):
    law = Masking(schedule)
    mass = data.draw(st.one_of(st.floats(0.0, 1.0), st.integers(0, n).map(lambda k: k / n)))
    noise = torch.rand(1, n + padding, generator=torch.Generator().manual_seed(seed))
    x = torch.full((1, n + padding), MASK)
    x[:, n:] = PAD
    masked = masked_at(law, x, law.icdf(torch.tensor([mass], dtype=torch.float64)), noise)[0]
    # With the same tolerance of a rounding error.
    count = max(1, math.ceil(mass * n - 1e-9))
    assert int(masked.sum()) == count
    assert not masked[n:].any()
    # Those of least noise, so that the masks of two levels are nested.
    assert sorted(noise[0, :n].tolist())[:count] == sorted(noise[0][masked].tolist())


def test_a_share_of_exactly_k_of_n_masks_k_under_both_schedules():
    for law in (Masking("linear"), Masking("cosine")):
        for n in range(1, 65):
            x, mass = torch.full((n, n), MASK), torch.arange(1, n + 1, dtype=torch.float64) / n
            masked = masked_at(law, x, law.icdf(mass), torch.rand(n, n, generator=keyed_generator(n)))
            assert masked.sum(dim=1).tolist() == list(range(1, n + 1))


def test_given_tokens_count_but_are_never_masked():
    x = torch.full((200, 12), MASK)
    x[:, 3:7], x[:, 10:] = 5, PAD
    mass = torch.linspace(0, 1, 200, dtype=torch.float64)
    masked = masked_at(Masking(), x, mass, torch.rand(200, 12, generator=keyed_generator(0)))
    assert not masked[:, 3:7].any()
    assert not masked[:, 10:].any()
    expected = (mass * 10 - 1e-9).ceil().clamp(1, 6).long()  # 10 tokens, of which 6 can be masked
    assert torch.equal(masked.sum(dim=1), expected)


def test_every_position_is_masked_equally_often():
    x = torch.full((4000, 8), MASK)
    masked = masked_at(
        Masking(), x, torch.full((4000,), 0.37).double(), torch.rand(4000, 8, generator=keyed_generator(1))
    )
    assert float((masked.double().mean(dim=0) - 3 / 8).abs().max()) < 4 * math.sqrt(3 / 8 * 5 / 8 / 4000)


# Padding and attention.


@pytest.mark.parametrize("layers", ["fff", "sss", "sfs"])
@pytest.mark.parametrize("weight", ["tokens", "nelbo"])
def test_a_text_has_the_loss_that_it_has_alone_whatever_is_beside_it(layers, weight):
    block = moved_model(1, layers, weight=weight).blocks[0]
    y, x = tokens(3), torch.full((3, 16), MASK)
    x[0, 5:], x[2, 9:] = PAD, PAD
    draw = block.draw(3, keyed_generator(0, "draw"))
    together = block.loss(x, y, draw)
    for row, length in enumerate([5, 16, 9]):
        one = slice(row, row + 1)
        alone = block.loss(x[one, :length], y[one, :length], NoiseDraw(*(getattr(draw, f)[one] for f in FIELDS)))
        torch.testing.assert_close(together[one], alone, rtol=1e-5, atol=1e-6)
    # What stands under the padding is not read.
    assert torch.equal(block.loss(x, torch.where(x == PAD, 77, y), draw), together)


@pytest.mark.parametrize("layers", ["fff", "sss", "sfs"])
def test_attention_is_masked_as_transformers_does_it(layers):
    """Without masks the network makes its own, full or local; and so it does of a mask of the padding."""
    block = moved_model(1, layers).blocks[0]
    y = tokens(2)
    x, ids = torch.full((2, 16), MASK), torch.where(y == 3, VOCAB, y)
    with torch.no_grad(), block.neutral():
        found = block.run_backbone(x, torch.where(y == 3, MASK, y), torch.ones(2))
        expected = block.backbone(input_ids=ids).logits[..., :VOCAB]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        x[0, 6:] = PAD
        found = block.run_backbone(x, torch.where(y == 3, MASK, y), torch.ones(2))
        expected = block.backbone(input_ids=ids, attention_mask=(x != PAD).long()).logits[..., :VOCAB]
    torch.testing.assert_close(found[0, :6], expected[0, :6], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)


def test_local_attention_sees_its_window_and_no_further():
    """3 layers that see 2 tokens on both sides see 6, and not 7."""
    block, y = moved_model(1, "sss").blocks[0], tokens(1)
    changed = y.clone()
    changed[0, 14] = (y[0, 14] + 1) % VOCAB
    x, sigma = torch.full((1, 16), MASK), torch.tensor([0.5])
    with torch.no_grad():
        moved = (block(x, y, sigma) - block(x, changed, sigma)).abs().amax(dim=-1)[0]
    assert moved[:8].max() == 0
    assert moved[8:].min() > 1e-6


def test_a_text_without_tokens_has_loss_0_and_leaves_the_others_gradients_alone():
    block = moved_model(1, "sfs").blocks[0].train()
    y, x = tokens(3), torch.full((3, 16), MASK)
    x[1] = PAD
    draw = block.draw(3, keyed_generator(0, "draw"))
    losses = block.loss(x, y, draw)
    assert losses[1] == 0
    assert losses.requires_grad
    losses.sum().backward()
    found = {name: p.grad.clone() for name, p in block.named_parameters()}
    block.zero_grad()
    kept = [0, 2]
    block.loss(x[kept], y[kept], NoiseDraw(*(getattr(draw, f)[kept] for f in FIELDS))).sum().backward()
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    block.zero_grad()
    block.loss(x[1:2], y[1:2], NoiseDraw(*(getattr(draw, f)[1:2] for f in FIELDS))).sum().backward()
    assert all(p.grad.abs().max() == 0 for p in block.parameters())


# The network.


def test_the_mask_has_an_embedding_and_no_logit():
    block = copy.deepcopy(moved_model(1).blocks[0])
    y, x, sigma = tokens(1), torch.full((1, 16), MASK), torch.tensor([0.5])
    z = torch.where(torch.arange(16) % 3 == 0, MASK, y)
    with torch.no_grad():
        some, none = block(x, z, sigma), block(x, y, sigma)
        block.backbone.get_input_embeddings().weight[VOCAB].add_(torch.linspace(-1, 1, 16))
        assert some.shape == (1, 16, VOCAB)
        assert block.denoised(some).sum(dim=-1).sub(1).abs().max() < 1e-6
        assert not torch.allclose(block(x, z, sigma), some, atol=1e-3)
        # The same table reads the logits, of which the mask's own is cut off.
        assert torch.equal(block(x, y, sigma), none)


@pytest.mark.parametrize("layers", [4, "fssf"])
def test_one_block_with_neutral_conditioning_is_the_network(layers):
    whole = network(layers)
    block = convert(whole, 1).blocks[0]
    ids = tokens(3)
    with torch.no_grad(), block.neutral():
        assert torch.equal(block.backbone(input_ids=ids).logits, whole(input_ids=ids).logits)
        expected = whole(input_ids=ids.masked_fill(ids == 3, VOCAB)).logits[..., :VOCAB]
        found = block.run_backbone(torch.full_like(ids, MASK), ids.masked_fill(ids == 3, MASK), torch.ones(3))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", [None, (1, 3, 2)])
def test_each_block_has_its_slice_of_the_layers_kinds(split):
    kinds, model = "fssfsf", convert(network_config("fssfsf"), 3, layer_split=split)
    first = 0
    for block, count in zip(model.block_list, split or (2, 2, 2), strict=True):
        own = ["full_attention" if kind == "f" else "sliding_attention" for kind in kinds[first : first + count]]
        assert block.backbone.config.layer_types == own
        assert [layer.attention_type for layer in block.layers] == own
        first += count


def test_the_weights_of_a_network_are_not_cut_where_a_layer_would_lose_its_norm():
    """A first layer of the class has no norm before attention; a block whose first layer had one would drop it."""
    with pytest.raises(InputError, match=r"^model\.layers\.2='?attn_norm\.weight.*num_blocks=1, or train from scratch"):
        convert(network("ffffff"), 3)
    assert convert(network("ffffff"), 1).blocks[0].layers[1].attn_norm.weight is not None


def test_a_network_that_has_a_padding_token_is_refused():
    config = network_config()
    config.pad_token_id = 0
    with pytest.raises(InputError, match=r"^pad_token_id=0: expected none: padding is told by x; set it to None$"):
        convert(config, 3)


# The loss.


@pytest.mark.parametrize("weight", ["tokens", "nelbo"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_loss_is_the_mean_over_masked_tokens_by_hand(weight, schedule):
    """One text at a time, one token at a time; over the interval of the middle block the mean masked share is 1/2."""
    block = moved_model(3, weight=weight, schedule=schedule, gamma=0.1).blocks[1]
    y, x = tokens(6), torch.full((6, 16), MASK)
    x[1, 9:], x[2, :4] = PAD, y[2, :4]
    draw = block.draw(6, keyed_generator(2, "draw"))
    found = block.loss(x, y, draw).detach()
    for row in range(6):
        real, free = x[row] != PAD, x[row] == MASK
        mass = float(block.law.cdf(draw.sigma[row]))
        count = math.ceil(mass * int(real.sum()))
        order = sorted(range(16), key=lambda k: (not free[k], float(draw.noise[row, k])))
        hidden = [k for k in order[:count] if free[k]]
        z = y[row].clone()
        z[hidden] = MASK
        with torch.no_grad():
            logits = block(x[row : row + 1], z[None], draw.sigma[row : row + 1])[0].double()
        loss = sum(-float(logits[k].log_softmax(dim=0)[y[row, k]]) for k in hidden) / len(hidden)
        if weight == "tokens":
            loss *= len(hidden) / (int(real.sum()) * 0.5)
        assert float(found[row]) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_weights_by_tokens_are_1_on_average_over_a_blocks_interval(index):
    """So both weights give losses of one scale, and the learning rate means the same."""
    block = moved_model(3, weight="tokens", gamma=0.1).blocks[index]
    plain = copy.deepcopy(block)
    plain.config = plain.config.model_copy(update={"weight": "nelbo"})
    y, x = tokens(1).expand(64, -1), torch.full((64, 16), MASK)
    draw = block.draw(64, keyed_generator(0, "draw"))
    with torch.no_grad():
        weights = block.loss(x, y, draw) / plain.loss(x, y, draw)
    # Counts are rounded up, which adds half a token to 16 u on average.
    lo, hi = (float(block.law.cdf(torch.tensor(e))) for e in (block.trained_on.lo, block.trained_on.hi))
    assert float(weights.mean()) == pytest.approx(1 + 0.5 / (16 * 0.5 * (lo + hi)), rel=0.03)


def test_levels_of_a_batch_are_spread_over_the_blocks_interval():
    for block in moved_model(3, schedule="cosine").block_list:
        lo, hi = (float(block.law.cdf(torch.tensor(e))) for e in (block.trained_on.lo, block.trained_on.hi))
        share = (block.law.cdf(block.draw(10, keyed_generator(0, "draw")).sigma) - lo) / (hi - lo)
        assert (share * 10).floor().tolist() == list(range(10))
