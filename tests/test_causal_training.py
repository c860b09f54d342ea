"""Autoregressive blocks in training: each alone and the same, runs that go on, memory to the byte."""

import pytest
import torch
from causal_models import network_config, pairs, texts
from text_files import words, write

from diffusionblocks import BlockwiseModel, InputError, TensorBatches, Trainer, TrainingConfig, convert
from diffusionblocks.families.causal_networks import CausalLmEnsemble, PlainCausalLm
from diffusionblocks.planner import predict
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.recipes import RECIPES, resolve
from diffusionblocks.run_config import CausalLmRun
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.run import export_model, load_trained, make_trainers

TINY = {
    **{"hidden_size": 16, "num_layers": 4, "num_heads": 2, "intermediate_size": 24, "num_blocks": 3, "seq_len": 16},
    **{"updates": 6, "batch_size": 8, "rotate_every": 2, "checkpoint_every": 2, "ema_decay": 0.9, "dropout": 0.1},
}
CONCAT = {"context": "concat", "noise_per": "token"}


def config_of(**settings) -> CausalLmRun:
    found = resolve("ar-pydoc", None, {**TINY, **settings})
    assert isinstance(found, CausalLmRun)
    return found


def weights(unit) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in unit.state_dict().items()}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_training_a_block_changes_that_block_only_and_lowers_its_loss():
    model, data = convert(network_config(), 2), TensorBatches(*pairs(texts(24)))
    before = [weights(block) for block in model.block_list]
    training = TrainingConfig(updates=40, batch_size=8, lr=5e-3, weight_decay=0.1)
    # The level of a window of 8 in a network for 16 tokens: noise is drawn for all 16.
    draw = model.blocks[1].draw(24, keyed_generator(0, "draw"))
    losses = [float(model.blocks[1].loss(data.x, data.y, draw).mean().detach())]
    Trainer([model.block_list[1]], data, training, progress=False).train()
    losses.append(float(model.blocks[1].loss(data.x, data.y, draw).mean().detach()))
    assert losses[1] < 0.9 * losses[0]
    assert same(before[0], weights(model.blocks[0]))
    assert not any(torch.equal(before[1][n], p) for n, p in model.blocks[1].named_parameters())


@pytest.mark.parametrize("side", [{}, CONCAT], ids=["fused", "concat"])
def test_a_block_trained_alone_is_the_one_trained_in_turn_and_a_stopped_run_goes_on(tmp_path, side):
    config = config_of(**side)
    for folder, stops in (("whole", [6]), ("parts", [3, 6])):
        for stop in stops:
            (trainer,) = make_trainers(config, tmp_path / folder, progress=False)
            trainer.num_updates = stop
            trainer.train()
    for block in range(3):
        (trainer,) = make_trainers(config, tmp_path / "apart", only=block, progress=False)
        trainer.train()
    whole, updates = load_trained(tmp_path / "whole", config)
    assert updates == {"block-0": 6, "block-1": 6, "block-2": 6}
    for other in ("parts", "apart"):
        assert same(weights(whole), weights(load_trained(tmp_path / other, config)[0]))
    model = BlockwiseModel.from_pretrained(export_model(tmp_path / "parts", config, 6))
    assert same(weights(model), weights(whole))
    assert torch.equal(model.targets, whole.targets)
    assert model.config == whole.config


@pytest.mark.parametrize(
    ("method", "kind", "names", "depths"),
    [
        ("end-to-end", PlainCausalLm, ["network"], [4]),
        ("shallow", PlainCausalLm, ["network"], [2]),
        ("shallow-ensemble", PlainCausalLm, ["member-0", "member-1", "member-2"], [2, 2, 2]),
    ],
)
def test_every_control_is_trained_on_next_tokens_alone(method, kind, names, depths):
    units = build_units(config_of(method=method, vocab_size=256))
    assert [unit.name for unit in units] == names
    assert [len(unit.layers) for unit in units] == depths
    assert all(type(unit) is kind for unit in units)


def test_an_ensemble_is_trained_and_read_as_one(tmp_path):
    config = config_of(method="shallow-ensemble", updates=2)
    (trainer,) = make_trainers(config, tmp_path / "run", progress=False)
    trainer.train()
    found, updates = load_trained(tmp_path / "run", config)
    assert isinstance(found, CausalLmEnsemble)
    assert updates == {"member-0": 2, "member-1": 2, "member-2": 2}


def test_a_run_keeps_its_tokenizer_and_refuses_other_text(tmp_path):
    one, other = (write(tmp_path / f"{k}.txt", words(3000, seed=k)) for k in (0, 1))
    given = {"tokenizer": "characters", "vocab_size": None, "updates": 2}
    (trainer,) = make_trainers(config_of(data=one, **given), tmp_path / "run", progress=False)
    trainer.train()
    with pytest.raises(InputError, match="the data that the run began with"):
        next(iter(make_trainers(config_of(data=other, **given), tmp_path / "run", progress=False)))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 2, "layer_split": (1, 5)},
        {"num_blocks": 2, **CONCAT, "conditioning": "scale-shift"},
        {"method": "end-to-end", "ema_decay": 0.9, "micro_batches": 2, "tie_embeddings": True},
        {"method": "checkpointing"},
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_predicted_memory_is_the_measured_memory_to_the_byte(settings):
    small = {"num_layers": 6, "dropout": 0.0, "batch_size": 4, "ema_decay": 0.0, "vocab_size": 256}
    config = config_of(**{**small, **settings})
    unit = max(build_units(config), key=lambda unit: len(unit.layers))
    data = TensorBatches(*pairs(torch.arange(64).view(4, 16)))
    training = config.training().model_copy(update={"updates": 2, "epochs": None})
    (report,) = Trainer([unit], data, training, progress=False).train().values()
    assert predict(config) == report


def test_the_papers_recipes_have_its_hyperparameters():
    """Appendix D: 12 layers, d 768, 12 heads, 32k tokens, windows of 256 and 3072, B = 4, gamma 0.1, 10 epochs."""
    for name, seq_len in (("ar-lm1b", 256), ("ar-owt", 3072)):
        config = resolve(name)
        assert (config.num_layers, config.hidden_size, config.num_heads, config.num_blocks) == (12, 768, 12, 4)
        assert (config.seq_len, config.vocab_size, config.batch_size, config.epochs) == (seq_len, 32_000, 256, 10)
        assert (config.context, config.gamma, config.p_mean, config.p_std) == ("concat", 0.1, -1.2, 1.2)
        assert (config.lr, config.start, config.decoding, config.z_dropout) == (3e-4, "noise", "chain", 0.0)
    assert {name for name in RECIPES if name.startswith("ar-")} == {"ar-pydoc", "ar-shakespeare", "ar-lm1b", "ar-owt"}
