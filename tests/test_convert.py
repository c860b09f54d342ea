"""Conversion: a cut rebuilds the network exactly, places every layer once, and refuses what it cannot rebuild."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, ViTConfig, ViTForImageClassification, ViTModel

from diffusionblocks import BlockwiseModel, InputError, convert, sample
from diffusionblocks.backbones import TRANSFORMERS
from diffusionblocks.randomness import keyed_generator


def test_one_block_with_neutral_conditioning_is_the_network(tiny_network, images):
    block = convert(tiny_network, 1).block_list[0]
    with torch.no_grad(), block.neutral():
        assert torch.equal(block.backbone(images).logits, tiny_network(images).logits)


def test_chained_layers_of_the_blocks_are_the_networks_layers(tiny_network, images):
    """The long way round: the blocks' layer stacks, run one after another by hand, equal the network's own stack."""
    model = convert(tiny_network, 3)
    with torch.no_grad():
        hidden = expected = tiny_network.vit.embeddings(images)
        for layer in tiny_network.vit.layers:
            expected = layer(expected)
        for block in model.block_list:
            with block.neutral():
                for layer in block.layers:
                    hidden = layer(hidden)
    assert torch.equal(hidden, expected)


@pytest.mark.parametrize(("num_blocks", "sizes"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (5, [1] * 5)])
def test_uneven_layer_counts_place_every_layer_once(tiny_network, num_blocks, sizes):
    model = convert(tiny_network, num_blocks)
    assert [len(block.layers) for block in model.block_list] == sizes
    placed = [layer.mlp.fc1.weight for block in model.block_list for layer in block.layers]
    for layer, weight in zip(tiny_network.vit.layers, placed, strict=True):
        assert torch.equal(layer.mlp.fc1.weight, weight)


def test_explicit_split(tiny_network):
    model = convert(tiny_network, 2, layer_split=(1, 4))
    assert [len(block.layers) for block in model.block_list] == [1, 4]


def test_blocks_share_no_parameter_with_each_other_or_the_network(tiny_network):
    model = convert(tiny_network, 3)
    pointers = [p.data_ptr() for p in [*model.parameters(), *tiny_network.parameters()]]
    assert len(pointers) == len(set(pointers))


def test_conversion_leaves_the_network_and_the_global_generator_alone(tiny_network, images):
    before, state = copy.deepcopy(tiny_network.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        output = tiny_network(images).logits
        convert(tiny_network, 3)
        assert torch.equal(tiny_network(images).logits, output)
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in tiny_network.modules())


def test_from_a_config_each_block_has_its_own_seed(tiny_config):
    first, again, other = (convert(tiny_config, 3, seed=seed) for seed in (0, 0, 1))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    weights = [b.layers[0].mlp.fc1.weight for b in [*first.block_list, *other.block_list]]
    assert len({w.sum().item() for w in weights}) == 6


def test_per_layer_lists_of_a_config_are_cut_with_the_layers():
    config = ViTConfig(num_hidden_layers=4)
    config.layer_types = ["a", "b", "c", "d"]
    config.other_list = [1, 2, 3, 4]
    shallow = TRANSFORMERS.shallow(config, range(1, 3))
    assert (shallow.num_hidden_layers, shallow.layer_types, shallow.other_list) == (2, ["b", "c"], [1, 2, 3, 4])
    assert config.layer_types == ["a", "b", "c", "d"]


def test_mode_dtype_and_extra_outputs_survive(tiny_network):
    network = copy.deepcopy(tiny_network).double().train()
    block = convert(network, 3).block_list[1]
    assert block.training
    assert block.backbone.dtype == torch.float64


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        (nn.Linear(2, 2), "Linear"),
        (BertConfig(), "BertConfig"),
        (ViTModel(ViTConfig(num_hidden_layers=1, hidden_size=12, num_attention_heads=1)), "ViTModel"),
        ("google/vit", "str"),
    ],
)
def test_other_networks_are_refused_by_class(backbone, words):
    with pytest.raises(InputError, match=words):
        convert(backbone, 1)


def _replace_layer(network):
    network.vit.layers[2] = nn.Identity()


def _widen_mlp(network):
    network.vit.layers[2].mlp.fc1 = nn.Linear(16, 48)
    network.vit.layers[2].mlp.fc2 = nn.Linear(48, 16)


def _change_activation(network):
    network.vit.layers[2].mlp.activation_fn = nn.ReLU()


@pytest.mark.parametrize("edit", [_replace_layer, _widen_mlp, _change_activation])
def test_an_edited_layer_is_refused_by_name(tiny_network, edit):
    edit(tiny_network)
    with pytest.raises(InputError, match=r"vit\.layers\.2"):
        convert(tiny_network, 3)


def test_a_missing_layer_is_refused(tiny_network):
    del tiny_network.vit.layers[4]
    with pytest.raises(InputError, match="5 layers"):
        convert(tiny_network, 3)


def test_a_changed_head_is_refused_by_the_name_of_the_weight(tiny_network):
    tiny_network.classifier = nn.Linear(16, 7)
    with pytest.raises(InputError, match=r"classifier\.weight"):
        convert(tiny_network, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": 2.5}, "num_blocks"),
        ({"num_blocks": 6}, "num_blocks=6"),
        ({"p_std": -1.0}, "p_std"),
        ({"layer_split": (1, 1, 1)}, "layer_split"),
        ({"preset": "papers"}, "preset"),
        ({"pmean": 1}, "p_mean"),
        ({"num_sampling_steps": 2}, "num_sampling_steps=2"),
    ],
)
def test_bad_settings_are_one_line_that_names_the_setting(tiny_network, settings, words):
    with pytest.raises(InputError, match=words) as caught:
        convert(tiny_network, **settings)
    assert "\n" not in str(caught.value)


def test_a_block_called_without_a_level_raises_and_says_how(tiny_network, images):
    block = convert(tiny_network, 3).block_list[0]
    with pytest.raises(RuntimeError, match=r"block\(x, z, sigma\)"):
        block.backbone(images)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_plain_forward_runs_the_stored_plan(tiny_network, images, labels, preset):
    """Against a loop over the plan's rows written out by hand."""
    model = convert(tiny_network, 3, preset=preset, num_sampling_steps=5, decoding="chain")
    _perturb(model)
    with torch.no_grad():
        output = model(images, labels=labels)
        z = torch.zeros(37, model.targets.shape[1])
        if preset == "paper":
            z = 80.0 * torch.randn(*z.shape, generator=keyed_generator(0, "start"))
        logits = None
        for step in model.plan.steps:
            logits = model.block_list[step.block](images, z, torch.full((37,), step.sigma))
            denoised = logits.softmax(-1) @ model.targets
            z = denoised + step.sigma_next / step.sigma * (z - denoised)
    torch.testing.assert_close(output.logits, logits.log_softmax(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(logits, labels))
    assert isinstance(model, BlockwiseModel)


def test_denoisers_of_a_model_run_under_any_sampler(tiny_network, images):
    """`sample` over the model's denoisers ends at what the last block denoised, which the plain forward decodes."""
    model = convert(tiny_network, 3, decoding="chain")
    _perturb(model)
    with torch.no_grad():
        z = sample(model.denoisers(images), torch.zeros(37, 3), model.plan)
        torch.testing.assert_close(z, model(images).logits.exp() @ model.targets, atol=1e-5, rtol=1e-5)


def test_row_of_a_batch_does_not_depend_on_the_batch(tiny_network, images):
    model = convert(tiny_network, 3)
    _perturb(model)
    with torch.no_grad():
        torch.testing.assert_close(model(images[:1]).logits, model(images[:2]).logits[:1], atol=1e-6, rtol=1e-5)


def test_every_part_of_the_input_matters(tiny_network, images):
    """After the conditioning has left its neutral start, the readout depends on x, z and sigma."""
    block = convert(tiny_network, 3).block_list[1]
    _perturb(block)
    z, sigma = torch.randn(37, 3, generator=keyed_generator(1)), torch.full((37,), 1.0)
    with torch.no_grad():
        base = block(images, z, sigma)
        for changed in (block(images + 0.5, z, sigma), block(images, z + 0.5, sigma), block(images, z, 1.3 * sigma)):
            assert (changed - base).abs().max() > 1e-4


def test_a_copied_block_is_independent_of_its_original(tiny_network, images):
    block = convert(tiny_network, 3).block_list[0]
    _perturb(block)
    clone = copy.deepcopy(block)
    arguments = images, torch.randn(37, 3, generator=keyed_generator(1)), torch.full((37,), 2.0)
    with torch.no_grad():
        before = block(*arguments)
        assert torch.equal(clone(*arguments), before)
        clone.conditioning.weight.add_(1.0)
        assert torch.equal(block(*arguments), before)
        assert not torch.equal(clone(*arguments), before)


def test_decoding_by_the_average_of_free_log_probabilities(tiny_network, images):
    model = convert(tiny_network, 3)
    _perturb(model)
    first = [step.sigma for step in model.plan.steps]
    with torch.no_grad():
        free = [
            block(images, torch.zeros(37, 3), torch.full((37,), sigma)).log_softmax(-1)
            for block, sigma in zip(model.block_list, first, strict=True)
        ]
        expected = (sum(free) / 3).softmax(-1)
        torch.testing.assert_close(model.decode(images, decoding="average").exp(), expected)


def test_several_chains_average_probabilities(tiny_network, images):
    model = convert(tiny_network, 3)
    _perturb(model)
    with torch.no_grad():
        single = [model.decode(images, start="noise", generator=g) for g in [keyed_generator(5)] * 4]
        both = model.decode(images, start="noise", chains=4, generator=keyed_generator(5))
    expected = torch.stack(single).exp().mean(0)
    torch.testing.assert_close(both.exp(), expected)
    with pytest.raises(InputError, match="chains"):
        model.decode(images, chains=2)


def _perturb(module: nn.Module) -> None:
    """Move every weight a little from its initialisation, the zeros of the conditioning too."""
    generator = keyed_generator(0, "perturb")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def test_refusal_of_a_network_class_says_which_are_supported(tiny_config):
    with pytest.raises(InputError, match=ViTForImageClassification.__name__):
        convert(BertConfig())
