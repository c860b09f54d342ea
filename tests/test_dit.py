"""The DiT family: the loss and the guidance as formulas say, labels dropped once, blocks one at a time bit for bit."""

import copy
import gc
import weakref

import pytest
import torch
from diffusers import DiTTransformer2DModel
from diffusers.models.embeddings import LabelEmbedding
from torch.utils.flop_counter import FlopCounterMode

from diffusionblocks import BlockwiseModel, InputError, TensorBatches, Trainer, TrainingConfig, convert
from diffusionblocks.block import NoiseDraw, plan_of
from diffusionblocks.evaluation.opening import open_blocks
from diffusionblocks.families.dit import DitBlock, generate
from diffusionblocks.memory import forward_memory, loading_memory
from diffusionblocks.randomness import keyed_generator, seeded

NETWORK = {
    **{"_class_name": "DiTTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 2},
    **{"num_layers": 5, "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 4, "dropout": 0.1},
}
DATA = {"data_mean": (-0.2, 0.1), "data_std": (0.7, 0.4)}


def fresh(num_blocks=3, **settings) -> BlockwiseModel:
    return convert(NETWORK, num_blocks, **{**DATA, "num_sampling_steps": 6, **settings})


@pytest.fixture(scope="module")
def model() -> BlockwiseModel:
    """Blocks whose gates and readouts are no longer zero."""
    model = fresh()
    with torch.no_grad(), seeded("cpu", 1, "moved"):
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dit") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def data():
    generator = keyed_generator(0, "images of dit")
    return torch.arange(12) % 4, torch.randn(12, 2, 8, 8, generator=generator)


def test_a_fresh_block_returns_c_skip_z():
    block = fresh().blocks[1].eval()
    z, sigma = torch.randn(3, 2, 8, 8), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    skip = (0.25 / (sigma**2 + 0.25)).float().view(-1, 1, 1, 1)
    torch.testing.assert_close(block(torch.arange(3), z, sigma), skip * z, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weight", ["edm", "none"])
def test_the_loss_is_karras_formula(model, data, weight):
    """Algorithm by hand in float64: centre, scale, add noise, precondition, weight, mean over pixels."""
    labels, images = data
    block = copy.deepcopy(model.blocks[1])
    block.config = block.config.model_copy(update={"weight": weight})
    draw = block.draw(len(labels), keyed_generator(0, "draw"))
    sigma, s = draw.sigma.view(-1, 1, 1, 1), 0.5
    mean, std = (torch.tensor(DATA[name], dtype=torch.float64).view(-1, 1, 1) for name in ("data_mean", "data_std"))
    y = (images.double() - mean) / std * s
    z = y + sigma * draw.noise.double()
    shown = torch.where(draw.dropped, 4, labels)
    timestep = (1000 * draw.sigma.log() / 4).float()
    network = block.backbone((z / (sigma**2 + s**2).sqrt()).float(), timestep, shown).sample.double()
    denoised = s**2 / (sigma**2 + s**2) * z + sigma * s / (sigma**2 + s**2).sqrt() * network
    loss = ((denoised - y) ** 2).mean(dim=(1, 2, 3))
    if weight == "edm":
        loss = loss * (draw.sigma**2 + s**2) / (draw.sigma * s) ** 2
    torch.testing.assert_close(block.loss(labels, images, draw).double(), loss, rtol=2e-4, atol=1e-5)


def test_labels_are_dropped_once_a_sample_and_by_nobody_else(data):
    labels, images = data
    block = convert({**NETWORK, "dropout": 0.0}, 1, **DATA).blocks[0]
    embedders = [module for module in block.modules() if isinstance(module, LabelEmbedding)]
    assert len(embedders) == 5
    assert all(module.dropout_prob == 0 and module.embedding_table.num_embeddings == 5 for module in embedders)
    with torch.no_grad(), seeded("cpu", 0, "moved"):
        for parameter in block.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    draw = block.draw(12, keyed_generator(3, "draw"))
    none, every = (NoiseDraw(draw.sigma, draw.noise, torch.full((12,), on)) for on in (False, True))
    half = NoiseDraw(draw.sigma, draw.noise, torch.arange(12) < 6)
    block.train()
    # In training mode: nothing random is left in the network, so each sample has one of the two losses.
    losses = torch.where(half.dropped, block.loss(labels, images, every), block.loss(labels, images, none))
    assert torch.equal(block.loss(labels, images, half), losses)
    assert not torch.allclose(block.loss(labels, images, every), block.loss(labels, images, none))


def test_no_hook_is_added(model):
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(name.startswith("backbone.") for name, _ in model.blocks[0].named_parameters())


def test_the_share_of_dropped_labels_is_the_setting():
    block = fresh(label_dropout=0.3).blocks[0]
    assert block.draw(20_000, keyed_generator(0, "draw")).dropped.double().mean() == pytest.approx(0.3, abs=0.01)


def test_neighbouring_levels_are_told_apart(model):
    """Raw c_noise hardly moves the sinusoids; 1000 times it does, over the whole range."""
    emb = model.blocks[0].backbone.transformer_blocks[0].norm1.emb
    sigma = torch.logspace(-2.6, 1.9, 64, dtype=torch.float64)
    raw = emb.time_proj((sigma.log() / 4).float())
    scaled = emb.time_proj((1000 * sigma.log() / 4).float())
    steps = (scaled[1:] - scaled[:-1]).norm(dim=1)
    assert steps.min() > 1
    assert (raw[1:] - raw[:-1]).norm(dim=1).max() < 0.5


def test_data_are_scaled_to_sigma_data(data):
    _, images = data
    block = fresh(data_mean=tuple(images.mean((0, 2, 3)).tolist()), data_std=tuple(images.std((0, 2, 3)).tolist()))
    units = block.blocks[0].to_units(images)
    torch.testing.assert_close(units.mean((0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(units.std((0, 2, 3)), torch.full((2,), 0.5))
    torch.testing.assert_close(block.blocks[0].from_units(units), images, rtol=0, atol=1e-6)


def test_guidance_is_its_formula_and_1_and_0_are_exact(model):
    block, x = model.blocks[1], torch.tensor([2, 0])
    z, sigma = torch.randn(2, 2, 8, 8), torch.tensor([0.3, 0.4], dtype=torch.float64)
    with torch.no_grad():
        conditional, free = block(x, z, sigma), block(torch.tensor([4, 4]), z, sigma)
        assert torch.equal(block.guided(x, 1.0)(z, sigma), conditional)
        assert torch.equal(block.guided(x, 0.0)(z, sigma), free)
        torch.testing.assert_close(block.guided(x, 2.5)(z, sigma), free + 2.5 * (conditional - free))
        assert not torch.allclose(conditional, free)


def test_guidance_by_block(model):
    x = torch.tensor([0, 1, 2])
    assert torch.equal(model.decode(x, guidance=(1, 1, 1)), model.decode(x))
    mixed = model.decode(x, guidance=(1, 2, 1))
    assert not torch.allclose(mixed, model.decode(x))
    assert not torch.allclose(mixed, model.decode(x, guidance=2.0))
    with pytest.raises(InputError, match=r"guidance=\[1.0, 2.0\]: expected one number, or 3"):
        model.decode(x, guidance=(1, 2))


def test_guidance_without_label_dropout_is_refused():
    model = fresh(label_dropout=0.0)
    assert model.decode(torch.tensor([0])).shape == (1, 2, 8, 8)
    with pytest.raises(InputError, match="guidance=2"):
        model.decode(torch.tensor([0]), guidance=2.0)
    with pytest.raises(InputError, match=r"guidance=2\.0: expected 1 where label_dropout=0"):
        fresh(label_dropout=0.0, guidance=2.0)


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpmpp-2m"])
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_one_block_in_memory_gives_the_same_images_bit_for_bit(model, saved, sampler, guidance):
    x, plan = torch.arange(7) % 4, plan_of(model.config, 8)
    request = {"sampler": sampler, "guidance": guidance, "batch_size": 3}
    config, loaders = open_blocks(saved, "dit", "one")
    asked: list[int] = []
    alive: list[weakref.ref] = []

    def counted(index, load):
        def give():
            gc.collect()
            assert all(reference() is None for reference in alive), "the block before is still in memory"
            asked.append(index)
            block = load()
            alive.append(weakref.ref(block))
            return block

        return give

    one = generate([counted(k, load) for k, load in enumerate(loaders)], x, plan, **request)
    assert config == model.config
    assert asked == [0, 1, 2]
    assert torch.equal(one, model.decode(x, num_sampling_steps=8, **request))


def test_memory_with_one_block_is_that_of_the_largest(model, saved):
    """Weights that live at once while images are sampled, and all bytes at the peak, against one block's own."""
    x, plan = torch.zeros(2, dtype=torch.long), plan_of(model.config, 6)
    _, all_loaders = open_blocks(saved, "dit", "all")
    blocks = [load() for load in all_loaders]
    sizes = [sum(p.nbytes for p in block.parameters()) for block in blocks]
    loaders = open_blocks(saved, "dit", "one")[1]

    def peak(root, run):
        return forward_memory(root, run)["peak_total"]

    whole = torch.nn.ModuleList(blocks)
    resident = peak(whole, lambda: generate(all_loaders, x, plan))
    with torch.no_grad():
        alone = [peak(block, lambda block=block: block(x, torch.zeros(2, 2, 8, 8), torch.ones(2))) for block in blocks]

    def one_by_one(watch):
        def shown(load):
            def give():
                watch(block := load())
                return block

            return give

        return generate([shown(load) for load in loaders], x, plan)

    one = loading_memory(torch.nn.Linear(1, 1), one_by_one)
    assert max(sizes) < one["weights"] < 1.01 * max(sizes)
    assert one["peak_total"] <= 1.05 * max(alone)
    assert resident >= one["peak_total"] + sum(sizes) - 1.05 * max(sizes)


def test_an_image_does_not_depend_on_those_beside_it(model):
    alone, beside = model.decode(torch.tensor([3])), model.decode(torch.tensor([3, 1]))
    torch.testing.assert_close(alone[0], beside[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(model.decode(torch.tensor([3, 1]), batch_size=1)[0], alone[0])
    assert not torch.allclose(model.decode(torch.tensor([3]), seed=1), alone)


def test_one_block_of_all_layers_is_the_network_and_a_cut_keeps_every_layer():
    with seeded("cpu", 0, "network"):
        network = DiTTransformer2DModel.from_config(NETWORK).eval()
    z, t, x = torch.randn(2, 2, 8, 8), torch.tensor([100.0, -300.0]), torch.tensor([1, 3])
    whole = convert(network, 1, **DATA).blocks[0]
    with torch.no_grad():
        assert torch.equal(whole.backbone(z, t, x).sample, network(z, t, x).sample)
    names = [name for name, _ in network.transformer_blocks[0].named_parameters()]
    cut = [layer for block in convert(network, 3, **DATA).blocks for layer in block.layers]
    assert len(cut) == 5
    for layer, original in zip(cut, network.transformer_blocks, strict=True):
        assert all(torch.equal(layer.get_parameter(n), original.get_parameter(n)) for n in names)


def test_a_saved_model_is_the_same_and_each_block_a_network_of_its_own_library(model, saved):
    again, x = BlockwiseModel.from_pretrained(saved), torch.tensor([0, 3])
    assert again.config == model.config
    assert torch.equal(again(x).sample, model(x).sample)
    assert {p.name for p in (saved / "block-1").iterdir()} == {"config.json", "diffusion_pytorch_model.safetensors"}
    assert not (saved / "targets.safetensors").exists()
    network = DiTTransformer2DModel.from_pretrained(saved / "block-1").eval()
    z = torch.randn(1, 2, 8, 8)
    args = z, torch.tensor([5.0]), torch.tensor([1])
    with torch.no_grad():
        assert torch.equal(network(*args).sample, model.blocks[1].backbone(*args).sample)


def trained(units, data, **settings):
    common = {"updates": 6, "batch_size": 4, "lr": 1e-2, "ema_decay": 0.9, "rotate_every": 2}
    config = TrainingConfig(**{**common, **settings})
    Trainer(units, TensorBatches(*data), config, progress=False, measure_memory=False).train()
    return units


def test_training_a_block_changes_it_alone_and_is_the_same_in_company(data):
    together, alone = trained(fresh(), data), fresh()
    before = copy.deepcopy(alone.state_dict())
    trained([alone.blocks[1]], data)
    for name, tensor in alone.state_dict().items():
        own = name.startswith("blocks.1.")
        assert torch.equal(tensor, together.state_dict()[name] if own else before[name])
    assert any(not torch.equal(t, before[name]) for name, t in alone.state_dict().items())


@pytest.mark.parametrize("method", ["checkpointing", "micro_batches"])
def test_checkpointing_and_accumulation_give_the_same_weights(data, method):
    network = {**NETWORK, "dropout": 0.0}
    plain, other = (convert(network, 2, **DATA) for _ in range(2))
    trained(plain, data)
    trained(other, data, **({"checkpointing": True} if method == "checkpointing" else {"micro_batches": 2}))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-3, atol=2e-5)


def test_a_step_costs_the_layers_of_its_block_alone():
    """Patches 4 x 4 of 8 x 8: with embeddings and readout, which every block has, a little above 1/B."""

    def flops(num_blocks):
        block = convert({**NETWORK, "num_layers": 6}, num_blocks, **DATA).blocks[0]
        with FlopCounterMode(display=False) as counter:
            block(torch.tensor([0]), torch.zeros(1, 2, 8, 8), torch.ones(1))
        return counter.get_total_flops()

    assert 1 / 3 < flops(3) / flops(1) < 1.1 / 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_mean": None}, "data_mean=None: expected 2 numbers"),
        ({"data_std": (1.0,)}, "data_std=(1.0,): expected 2 numbers"),
        ({"data_std": (1.0, 0.0)}, "data_std=[1.0, 0.0]: expected standard deviations above 0"),
        ({"z_dropout": 0.1}, "z_dropout=0.1: expected a known setting"),
        ({"conditioning": "adaln"}, "conditioning='adaln'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(InputError) as error:
        fresh(**settings)
    assert message in str(error.value)


def test_a_network_that_predicts_variances_is_refused():
    with pytest.raises(InputError, match="out_channels=4: expected 2"):
        convert({**NETWORK, "out_channels": 4}, 2, **DATA)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"x": torch.tensor([4])}, r"classes=\[4\]: expected classes in 0..3"),
        ({"x": torch.tensor([-1])}, "classes"),
        ({"sampler": "ddim"}, "sampler='ddim': expected one of euler, heun, dpmpp-2m"),
        ({"num_sampling_steps": 2}, "num_sampling_steps=2: expected at least one step for each of the 3 blocks"),
        ({"steps": 3}, r"option=\['steps'\]"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(model, request_, message):
    with pytest.raises(InputError, match=message):
        model.decode(**{"x": torch.tensor([0]), **request_})


def test_a_block_needs_its_level(model):
    with pytest.raises(TypeError):
        model.blocks[0](torch.tensor([0]), torch.zeros(1, 2, 8, 8))
    assert isinstance(model.blocks[0], DitBlock)
