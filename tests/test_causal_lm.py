"""Blocks of an autoregressive language model: what a place sees, the loss, the cut of a network, and refusals."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from causal_models import KINDS, VOCAB, moved_model, network, network_config, normal, pairs, plain_network, texts
from masked_models import moved
from torch import nn

from diffusionblocks import BlockwiseModel, InputError, convert
from diffusionblocks.block import NoiseDraw
from diffusionblocks.conditioning import NoiseLevel
from diffusionblocks.families.causal_lm import CausalLmEnsemble
from diffusionblocks.marks import BEGIN, before
from diffusionblocks.randomness import keyed_generator

WAYS = {
    "concat by token": {"context": "concat", "noise_per": "token", "conditioning": "scale-shift"},
    "concat by sequence": {"context": "concat", "noise_per": "sequence", "conditioning": "lean"},
    "fused": {"context": "fused", "conditioning": "scale-shift"},
    "fused, weighted": {"context": "fused", "conditioning": "adaln", "weight": "edm"},
    "concat, weighted": {"context": "concat", "noise_per": "token", "conditioning": "adaln", "weight": "edm"},
}
KIND = pytest.mark.parametrize("kind", KINDS)
WAY = pytest.mark.parametrize("way", WAYS)


def block_of(kind: str, way: str, layers: int | str = 4, **settings):
    """The first block of two, all its weights moved, those of the conditioning and the entry too."""
    block = moved_model(network_config(kind, layers), 2, **{**WAYS[way], "z_dropout": 0.3, **settings}).block_list[0]
    assert block.conditioning.weight.abs().min() > 0
    assert block.entry.weight.abs().min() > 0
    return block


def levels(block, count: int, n: int = 8) -> torch.Tensor:
    shape = (count, n) if block.config.noise_per == "token" else (count,)
    return torch.rand(shape, generator=keyed_generator(3, "levels"), dtype=torch.float64) * 3 + 0.1


def places_that_move(block, change) -> torch.Tensor:
    """Which places' logits (n,) are others after `change(x, z)`."""
    x, _ = pairs(texts(1))
    z, sigma = normal(1, 8, 32), levels(block, 1)
    with torch.no_grad():
        first = block(x, z, sigma)
        x, z = x.clone(), z.clone()
        change(x, z)
        far = (block(x, z, sigma) - first).abs().amax(dim=-1)[0]
    assert ((far == 0) | (far > 1e-5)).all()  # nothing in between
    return far > 0


# What a place sees.


@KIND
@WAY
def test_a_token_is_seen_by_the_places_after_it_alone(kind, way):
    block = block_of(kind, way)
    for token in range(7):

        def change(x, z, token=token):
            x[0, token + 1] = (x[0, token + 1] + 1) % VOCAB

        assert places_that_move(block, change).tolist() == [place > token for place in range(8)]


@KIND
@WAY
def test_a_noisy_target_is_seen_by_its_own_place_and_in_fused_by_those_after_it(kind, way):
    block = block_of(kind, way)
    for token in range(8):

        def change(x, z, token=token):
            z[0, token] += 1.0

        expected = [place >= token if block.is_fused else place == token for place in range(8)]
        assert places_that_move(block, change).tolist() == expected


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("way", ["concat by token", "fused"])
def test_sliding_layers_see_their_window_and_no_further(kind, way):
    """2 layers that see 3 places before their own; in concat a place stands where its y would."""
    block = block_of(kind, way, "ssff")

    def change(x, z):
        x[0, 1] = (x[0, 1] + 1) % VOCAB

    last = 6 if not block.is_fused else 7
    assert places_that_move(block, change).tolist() == [1 <= place <= last for place in range(8)]


@KIND
@pytest.mark.parametrize("way", ["concat by token", "concat by sequence"])
def test_clean_places_are_exactly_neutral(kind, way):
    """Keys, values and states are those of the network without noise, bit by bit at any level."""
    block, (x, _) = block_of(kind, way), pairs(texts(2))
    z, sigma = normal(2, 8, 32), levels(block, 2)
    low, high = (inside(block, lambda s=s: block(x, z, s)) for s in (sigma, 7 * sigma))
    with block.neutral():
        plain = inside(block, lambda: block.backbone.base_model(inputs_embeds=block.embed(x), use_cache=False))
    assert len(low) == len(plain) >= 4
    for name, part in low.items():
        assert torch.equal(part[:, :8], high[name][:, :8]), name
        torch.testing.assert_close(part[:, :8], plain[name], rtol=1e-5, atol=1e-5, msg=name)
        assert (part[:, 8:] - high[name][:, 8:]).abs().amax(dim=-1).min() > 1e-4, name


def inside(block, run) -> dict[str, torch.Tensor]:
    """What the projections to keys and values and the layers of a block give in one run, by name."""
    found = {}

    def keep(name):
        def hook(module, args, out):
            found[name] = (out[0] if isinstance(out, tuple) else out).detach()

        return hook

    wanted = [
        (name, m) for name, m in block.layers.named_modules() if name.endswith(("k_proj", "v_proj", "query_key_value"))
    ]
    wanted += list(block.layers.named_children())
    handles = [module.register_forward_hook(keep(name)) for name, module in wanted]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return found


@KIND
def test_a_place_apart_is_the_last_of_a_sequence_in_which_those_before_it_carry_other_noise(kind):
    block, (x, _) = block_of(kind, "fused"), pairs(texts(2))
    z, context, sigma = normal(2, 8, 32), normal(2, 8, 32, seed=1), levels(block, 2)
    with torch.no_grad():
        found = block.apart(x, z, context, sigma)
        for place in range(8):
            mixed = torch.cat([context[:, :place], z[:, place : place + 1]], dim=1)
            expected = block(x[:, : place + 1], mixed, sigma)[:, -1]
            torch.testing.assert_close(found[:, place], expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found[:, 3], block(x, z, sigma)[:, 3], atol=1e-3)


def test_the_beginning_has_an_embedding_of_its_own_and_no_logit():
    block, (x, _) = block_of("llama", "fused"), pairs(texts(2))
    z, sigma = normal(2, 8, 32), levels(block, 2)
    with torch.no_grad():
        found = block(x, z, sigma)
        assert found.shape == (2, 8, VOCAB)
        assert torch.equal(block.embed(x)[:, 0], block.backbone.get_input_embeddings().weight[[VOCAB, VOCAB]])
        block.backbone.get_output_embeddings().weight[VOCAB] += 1.0
        assert torch.equal(block(x, z, sigma), found)
        block.backbone.get_input_embeddings().weight[VOCAB] += torch.linspace(-1, 1, 32)
        assert (block(x, z, sigma) - found).abs().amax(dim=-1).min() > 1e-4
        assert block.denoised(found).shape == (2, 8, 32)


# The cut.


@KIND
@pytest.mark.parametrize("tied", [False, True])
def test_one_block_with_neutral_conditioning_is_the_network(kind, tied):
    config = network_config(kind, tie_word_embeddings=tied)
    whole, (x, _) = network(config), pairs(texts(3))
    ids = torch.where(x == BEGIN, VOCAB, x)
    for way in ("fused", "concat by token"):
        block = convert(whole, 1, **WAYS[way]).block_list[0]
        with torch.no_grad(), block.neutral():
            assert torch.equal(block.backbone(input_ids=ids).logits, whole(input_ids=ids).logits)


@KIND
def test_a_fresh_fused_block_is_the_network_whatever_the_noise(kind):
    whole, (x, _) = network(network_config(kind)), pairs(texts(3))
    block = convert(whole, 1, context="fused").block_list[0]
    with torch.no_grad():
        expected = whole(input_ids=torch.where(x == BEGIN, VOCAB, x)).logits[..., :VOCAB]
        assert torch.equal(block(x, normal(3, 8, 32), torch.tensor([0.1, 1.0, 70.0])), expected)
        assert torch.equal(block.head(block.free(x)), expected)
        # Not by chance: a weight of the entry is enough.
        block.entry.weight[0, 0] = 1.0
        assert not torch.allclose(block(x, normal(3, 8, 32), torch.tensor([0.1, 1.0, 70.0])), expected, atol=1e-4)


@KIND
def test_every_layer_is_in_exactly_one_block(kind):
    whole = network(network_config(kind, 10))
    blocks = convert(whole, 4).block_list
    assert [len(block.layers) for block in blocks] == [3, 3, 2, 2]
    layers = itertools.chain.from_iterable(block.layers for block in blocks)
    for layer, own in zip(whole.base_model.layers, layers, strict=True):
        own_state = own.state_dict()
        for name, tensor in layer.state_dict().items():
            assert torch.equal(tensor, own_state[name])
            assert tensor is not own_state[name]


@KIND
def test_tied_embeddings_stay_tied(kind, tmp_path):
    config = network_config(kind, tie_word_embeddings=True)
    for number, source in enumerate((config, network(config))):
        model = moved(convert(source, 2))
        model.save_pretrained(tmp_path / str(number))
        loaded = BlockwiseModel.from_pretrained(tmp_path / str(number))
        for block in [*model.block_list, *loaded.block_list]:
            assert block.backbone.get_output_embeddings().weight is block.backbone.get_input_embeddings().weight
        (x, _), z = pairs(texts(2)), normal(2, 8, 32)
        with torch.no_grad():
            for one, other in zip(model.block_list, loaded.block_list, strict=True):
                assert torch.equal(one(x, z, levels(one, 2)), other(x, z, levels(one, 2)))


def test_untied_embeddings_are_not_tied():
    block = moved_model().block_list[0]
    assert block.backbone.get_output_embeddings().weight is not block.backbone.get_input_embeddings().weight


def test_sliding_layers_go_with_their_kind():
    model = convert(network_config("qwen3", "fssf"), 2)
    kinds = [block.backbone.config.layer_types for block in model.block_list]
    assert kinds == [["full_attention", "sliding_attention"], ["sliding_attention", "full_attention"]]


# The loss.


def padded(lengths: list[int], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return before(texts(len(lengths), n), torch.arange(n) < torch.tensor(lengths)[:, None])


def row_of(draw: NoiseDraw, row: int) -> NoiseDraw:
    return draw[slice(row, row + 1)]


@KIND
@WAY
def test_a_text_has_the_loss_that_it_has_alone_whatever_is_beside_it(kind, way):
    model = moved_model(network_config(kind, 4, 20), 2, **WAYS[way])
    block = model.block_list[0]
    x, y = padded([5, 20, 9], 20)
    draw = block.draw(3, keyed_generator(0, "draw"))
    together = block.loss(x, y, draw)
    for row, length in enumerate([5, 20, 9]):
        alone = block.loss(x[row : row + 1, :length], y[row : row + 1, :length], row_of(draw, row))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-5)


@WAY
def test_a_text_without_tokens_has_loss_0_and_leaves_the_others_gradients_alone(way):
    block = block_of("llama", way).train()
    x, y = padded([8, 0, 3], 8)
    draw = block.draw(3, keyed_generator(0, "draw"))
    losses = block.loss(x, y, draw)
    assert losses[1] == 0
    assert losses.requires_grad
    losses.sum().backward()
    found = {name: p.grad.clone() for name, p in block.named_parameters()}
    block.zero_grad()
    kept = [0, 2]
    block.loss(x[kept], y[kept], NoiseDraw(draw.sigma[kept], draw.noise[kept], draw.dropped[kept])).sum().backward()
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)
    block.zero_grad()
    only = block.loss(x[1:2], y[1:2], row_of(draw, 1))
    assert only.tolist() == [0.0]
    only.sum().backward()
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in block.parameters())


CASES = [(kind, way, 4) for kind in KINDS for way in WAYS]
CASES += [(kind, way, "sfsf") for kind in ("qwen2", "qwen3") for way in ("concat by token", "fused")]


@pytest.mark.parametrize(("kind", "way", "layers"), CASES)
def test_the_loss_is_that_of_one_token_at_a_time_by_hand(kind, way, layers):
    """Each place in a forward of its own, of what is before it, under the network's own causal attention."""
    block = block_of(kind, way, layers)
    x, y = padded([8, 5, 1], 8)
    draw = block.draw(3, keyed_generator(1, "draw"))
    if not block.is_fused and block.config.noise_per == "token":
        assert 0 < draw.dropped[0, :8].sum() < 8
    else:
        draw = NoiseDraw(draw.sigma, draw.noise, torch.tensor([False, True, False]))
    found = block.loss(x, y, draw).detach()
    for row, length in enumerate([8, 5, 1]):
        total = 0.0
        for place in range(length):
            logits, sigma = one_place(block, x[row], y[row], row_of(draw, row), place)
            loss = -float(logits[y[row, place]] - logits.logsumexp(dim=0))
            if block.config.weight == "edm":
                s = block.sigma_data
                loss *= (sigma**2 + s**2) / (sigma * s) ** 2
            total += loss
        assert float(found[row]) == pytest.approx(total / length, rel=1e-4)


@torch.no_grad()
def one_place(block, x, y, draw, place: int) -> tuple[torch.Tensor, float]:
    """Logits (V,) float64 of y at a place, and its level; attention_mask is left to the network."""

    def noisy(k: int) -> tuple[torch.Tensor, float]:
        each = draw.sigma.ndim == 2
        sigma, dropped = (part[0, k] if each else part[0] for part in (draw.sigma, draw.dropped))
        if dropped:
            return torch.zeros(1, 32), 100.0 * 80.0
        return block.targets[y[k]][None] + float(sigma) * draw.noise[0, k], float(sigma)

    def entered(k: int) -> torch.Tensor:
        z, sigma = noisy(k)
        weight, bias = block.entry.weight, block.entry.bias
        out = (z / math.sqrt(sigma**2 + block.sigma_data**2)) @ weight.T
        return out if bias is None else out + bias

    rows = block.backbone.get_input_embeddings().weight[[VOCAB if k < 0 else k for k in x[: place + 1].tolist()]]
    sigma = noisy(place)[1]
    level = block.conditioning(torch.tensor([sigma], dtype=torch.float64))
    if block.is_fused:
        embeds = torch.stack([rows[k] + entered(k)[0] for k in range(place + 1)])
    else:
        embeds = torch.cat([rows, entered(place)])
        level = tuple(
            tuple(None if p is None else torch.cat([torch.zeros(1, place + 1, 32), p[:, None]], dim=1) for p in parts)
            for parts in level
        )
    with block.slot.set(NoiseLevel(level)):
        states = block.backbone.base_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
    return (states[0, -1] @ block.backbone.get_output_embeddings().weight.T)[:VOCAB].double(), sigma


@pytest.mark.parametrize("way", ["concat by token", "fused"])
def test_checkpointing_changes_no_gradient(way):
    """Two losses before one backward, at different levels."""
    block = block_of("llama", way).train()
    x, y = padded([8, 5, 1], 8)
    draws = [block.draw(3, keyed_generator(k, "draw")) for k in (0, 1)]

    def gradients() -> dict[str, torch.Tensor]:
        block.zero_grad()
        sum(block.loss(x, y, draw).sum() for draw in draws).backward()
        return {name: p.grad.clone() for name, p in block.named_parameters()}

    expected = gradients()
    calls = []
    handle = block.layers[0].input_layernorm.register_forward_hook(lambda *of: calls.append(1))
    block.enable_checkpointing()
    found = gradients()
    handle.remove()
    assert len(calls) == 4  # twice for each loss: it does recompute
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_a_plain_network_is_trained_on_the_same_pairs():
    plain, (x, y) = plain_network(), padded([8, 5, 0], 8)
    found = plain.loss(x, y).detach()
    with torch.no_grad():
        log_probs = plain(x).double().log_softmax(dim=-1)
    for row, length in enumerate([8, 5]):
        expected = -sum(float(log_probs[row, k, y[row, k]]) for k in range(length)) / length
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)
    assert found[2] == 0
    assert plain.draw(3, keyed_generator(0)) is None


def test_an_ensemble_is_the_normalised_mean_of_log_probabilities():
    members = [plain_network(index=k) for k in range(3)]
    x, _ = pairs(texts(2))
    with torch.no_grad():
        found = CausalLmEnsemble(members)(x).double()
        product = torch.stack([m(x).double().softmax(dim=-1) for m in members]).prod(dim=0) ** (1 / 3)
    torch.testing.assert_close(found.exp(), product / product.sum(dim=-1, keepdim=True), rtol=1e-4, atol=1e-6)


# Draws.


def test_levels_are_for_each_token_or_for_each_sequence():
    for way, shape in (("concat by token", (5, 16)), ("concat by sequence", (5,)), ("fused", (5,))):
        block = block_of("llama", way)
        draw = block.draw(5, keyed_generator(0))
        assert draw.sigma.shape == draw.dropped.shape == shape
        assert draw.noise.shape == (5, 16, 32)
        assert draw.sigma.dtype == torch.float64
        assert block.trained_on.lo <= draw.sigma.min() <= draw.sigma.max() <= block.trained_on.hi
    assert draw.sigma.unique().numel() == 5


@pytest.mark.parametrize("way", ["concat by token", "fused"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_targets_is_dropped_to_0_at_a_level_of_its_own(way, share):
    block = block_of("llama", way, z_dropout=share)
    draw = block.draw(2000 if way == "fused" else 200, keyed_generator(2))
    count = draw.dropped.numel()
    assert float(draw.dropped.double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / count))
    y = texts(len(draw.sigma), 16)
    z, sigma = block.noisy(y, draw)
    dropped = draw.dropped if draw.dropped.ndim == 2 else draw.dropped[:, None].expand(-1, 16)
    level = sigma if sigma.ndim == 2 else sigma[:, None].expand(-1, 16)
    assert block.free_level == 100.0 * 80.0 > block.law.noisiest
    assert (z[dropped] == 0).all()
    assert (level[dropped] == block.free_level).all()
    assert (level[~dropped] <= 80.0).all()
    assert (z[~dropped] != 0).any(dim=-1).all()
    expected = block.targets[y] + level[..., None].float() * draw.noise
    torch.testing.assert_close(z[~dropped], expected[~dropped])


# Refusals.


def test_a_network_without_a_token_for_the_beginning_is_refused():
    for begin in (None, VOCAB + 1):
        with pytest.raises(InputError, match=rf"^bos_token_id={begin}: expected a row in 0\.\.20 for the beginning"):
            convert(network_config(bos_token_id=begin), 2)


def test_a_beginning_that_is_a_token_too_keeps_its_logit():
    model = convert(network_config(bos_token_id=3), 2)
    assert model.block_list[0].vocabulary.size == VOCAB + 1
    assert len(model.targets) == VOCAB + 1


def test_levels_for_each_token_are_refused_in_fused():
    with pytest.raises(InputError, match=r"^noise_per='?token.*context=fused.*set context=concat"):
        convert(network_config(), 2, context="fused", noise_per="token")


def test_the_networks_own_conditioning_is_refused():
    with pytest.raises(InputError, match=r"^conditioning="):
        convert(network_config(), 2, conditioning="own")


def test_a_table_of_too_few_targets_is_refused(tmp_path):
    network(network_config(vocab_size=11, bos_token_id=10)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"^targets='?11 rows in .*at least 20, one for each token"):
        convert(network_config(), 2, targets=str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"^targets=.*random, or a folder with a model"):
        convert(network_config(), 2, targets=str(tmp_path))


def test_a_saved_block_of_a_foreign_class_is_refused_by_its_file(tmp_path):
    moved_model().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "block-1" / "config.json"
    for kind in ("gpt2", None, 7):
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": kind}))
        with pytest.raises(InputError, match=r"block-1.config\.json model_type=.*one of llama, qwen2, qwen3, gpt_neox"):
            BlockwiseModel.from_pretrained(tmp_path / "model")


def test_labels_are_refused():
    with pytest.raises(InputError, match=r"^labels="):
        moved_model()(texts(1, 3), labels=texts(1, 3), max_new_tokens=2)


# Targets.


def test_random_targets_are_centred_and_of_unit_norm():
    model = convert(network_config(), 2)
    assert model.targets.shape == (VOCAB, 32)
    check_table(model.targets)
    assert model.config.sigma_data == pytest.approx(math.sqrt(1 / 32), rel=1e-5)
    other = convert(network_config(), 2, targets_seed=1)
    assert not torch.allclose(model.targets, other.targets, atol=0.1)


@KIND
@pytest.mark.parametrize("tied", [False, True])
def test_targets_of_a_folder_are_its_embeddings_centred(kind, tied, tmp_path):
    saved = network(network_config(kind, 2, tie_word_embeddings=tied))
    saved.save_pretrained(tmp_path / "saved")
    model = convert(network_config(), 2, targets=str(tmp_path / "saved"))
    check_table(model.targets)
    rows = saved.get_input_embeddings().weight.detach()[:VOCAB].double().numpy()
    table = rows
    for _ in range(500):  # the two conditions in turn
        table = table - table.mean(axis=0)
        table = table / np.sqrt((table**2).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(model.targets.numpy(), table, atol=1e-5)
    centred = rows - rows.mean(axis=0)
    cosines = (model.targets.numpy() * centred).sum(axis=1) / np.linalg.norm(centred, axis=1)
    assert cosines.min() > 0.95
    # Saved with the model: the folder is not needed any more.
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "saved").rename(tmp_path / "gone")
    assert torch.equal(BlockwiseModel.from_pretrained(tmp_path / "model").targets, model.targets)


def check_table(table: torch.Tensor) -> None:
    assert table.dtype == torch.float32
    assert table.mean(dim=0).abs().max() < 1e-6
    assert (table.norm(dim=1) - 1).abs().max() < 1e-6


def test_a_wider_table_than_the_network_is_taken(tmp_path):
    network(network_config(layers=1, hidden_size=64)).save_pretrained(tmp_path)
    block = moved_model(targets=str(tmp_path), context="concat").block_list[0]
    assert block.targets.shape == (VOCAB, 64)
    x, y = padded([8, 3], 8)
    assert torch.isfinite(block.loss(x, y, block.draw(2, keyed_generator(0)))).all()


def test_without_modulation_norms_are_left_as_they_are():
    block, (x, _) = block_of("llama", "fused"), pairs(texts(2))
    z, sigma = normal(2, 8, 32), levels(block, 2)
    with torch.no_grad():
        with block.unmodulated():
            found = block(x, z, sigma)
        assert not torch.allclose(found, block(x, z, sigma), atol=1e-3)
        nn.init.zeros_(block.conditioning.weight)
        torch.testing.assert_close(found, block(x, z, sigma))
