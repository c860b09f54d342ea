"""Masked language models in training: folders, methods, schedules, resumed runs, and memory to the byte."""

import copy
import json

import pytest
import torch
from masked_models import VOCAB, moved_model, network_config
from text_files import words, write
from transformers import ModernBertForMaskedLM

from diffusionblocks import BlockwiseModel, InputError, TensorBatches, Trainer, TrainingConfig, convert, planner
from diffusionblocks.families.masked_lm import MASK, PAD, MaskedLmEnsemble
from diffusionblocks.memory import MemoryReport
from diffusionblocks.model import load_block, read_model
from diffusionblocks.planner import plan, predict
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.recipes import resolve
from diffusionblocks.run_config import MaskedLmRun
from diffusionblocks.training.data import DataFacts, load_split
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.run import export_model, load_trained, make_trainers
from diffusionblocks.training.step import make_optimizer, train_step

TINY = {
    **{"hidden_size": 16, "num_layers": 4, "num_heads": 2, "intermediate_size": 24, "num_blocks": 3, "seq_len": 16},
    **{"updates": 6, "batch_size": 8, "rotate_every": 2, "checkpoint_every": 2, "ema_decay": 0.9, "dropout": 0.1},
}


def config_of(**settings) -> MaskedLmRun:
    found = resolve("mdm-pydoc", None, {**TINY, **settings})
    assert isinstance(found, MaskedLmRun)
    return found


def weights(unit) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in unit.state_dict().items()}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def texts(count: int = 24, vocab: int = VOCAB, n: int = 16) -> TensorBatches:
    y = torch.randint(0, vocab, (count, n), generator=keyed_generator(0, "texts"))
    x = torch.full_like(y, MASK)
    x[:3, 9:] = PAD
    return TensorBatches(x, y)


# Folders.


def test_a_saved_model_gives_the_same_texts_and_its_embedding_stays_tied(tmp_path):
    model = moved_model(3, "fsf", schedule="cosine", gamma=0.1)
    model.save_pretrained(tmp_path / "model")
    loaded = BlockwiseModel.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert same(weights(loaded), weights(model))
    x = torch.full((3, 16), MASK)
    assert torch.equal(loaded.decode(x), model.decode(x))
    config, targets = read_model(tmp_path / "model")
    for block in [*loaded.block_list, load_block(tmp_path / "model", config, 1, targets), *model.block_list]:
        assert block.backbone.decoder.weight is block.backbone.get_input_embeddings().weight
        assert block.backbone.config.layer_types == model.block_list[block.index].backbone.config.layer_types
    plain = ModernBertForMaskedLM.from_pretrained(tmp_path / "model/block-1").eval()
    with torch.no_grad(), model.blocks[1].neutral():
        ids = texts().y
        assert torch.equal(plain(input_ids=ids).logits, model.blocks[1].backbone(input_ids=ids).logits)


# What is trained.


def test_training_a_block_changes_that_block_only_and_lowers_its_loss():
    model, data = convert(network_config(), 3), texts()
    before = [weights(block) for block in model.block_list]
    training = TrainingConfig(updates=40, batch_size=8, lr=5e-3, weight_decay=0.1)
    draw = model.blocks[1].draw(24, keyed_generator(0, "draw"))
    losses = [float(model.blocks[1].loss(data.x, data.y, draw).mean().detach())]
    Trainer([model.block_list[1]], data, training, progress=False).train()
    losses.append(float(model.blocks[1].loss(data.x, data.y, draw).mean().detach()))
    assert losses[1] < 0.9 * losses[0]
    assert same(before[0], weights(model.blocks[0]))
    assert same(before[2], weights(model.blocks[2]))
    assert not any(torch.equal(before[1][n], p) for n, p in model.blocks[1].named_parameters())
    assert model.blocks[1].backbone.decoder.weight is model.blocks[1].backbone.get_input_embeddings().weight


def test_no_block_shares_a_parameter_with_another():
    model = convert(network_config(), 3)
    pointers = [p.data_ptr() for block in model.block_list for p in block.parameters()]
    assert len(pointers) == len(set(pointers))


@pytest.mark.parametrize(
    ("method", "names", "depths"),
    [
        ("blocks", ["block-0", "block-1", "block-2"], [2, 1, 1]),
        ("end-to-end", ["block-0"], [4]),
        ("checkpointing", ["block-0"], [4]),
        ("shallow", ["block-0"], [2]),
        ("trunk", ["block-0"], [2]),
        ("shallow-ensemble", ["member-0", "member-1", "member-2"], [2, 2, 2]),
    ],
)
def test_every_method_builds_its_networks(method, names, depths):
    """A control is a denoiser over all levels, of the class of a block: nothing but its depth differs."""
    units = build_units(config_of(method=method, trunk=0.5 if method == "trunk" else 0.0))
    assert [unit.name for unit in units] == names
    assert [len(unit.layers) for unit in units] == depths
    assert [unit.index for unit in units] == list(range(len(units)))
    whole = [(unit.trained_on.lo, unit.trained_on.hi) == (0.0, 1.0) for unit in units]
    assert whole == [method != "blocks"] * len(units)


def test_the_members_of_an_ensemble_differ_and_the_first_is_the_shallow_network():
    members = build_units(config_of(method="shallow-ensemble"))
    (shallow,) = build_units(config_of(method="shallow"))
    assert same(weights(members[0]), weights(shallow))
    tables = [member.backbone.get_input_embeddings().weight for member in members]
    assert not torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[1], tables[2])
    # Their noise differs too.
    draws = [member.draw(4, keyed_generator(0, "noise", member.index, 0)) for member in members]
    assert not torch.equal(draws[0].noise, draws[1].noise)
    assert torch.equal(draws[0].noise, shallow.draw(4, keyed_generator(0, "noise", 0, 0)).noise)


def losses_of(num_updates: int = 4, **settings) -> list[float]:
    config = config_of(batch_size=8, **settings)
    training, data = config.training(), texts(8, 256)
    found = []
    for block in build_units(config):
        optimizer = make_optimizer(block.train(), training)
        for k in range(num_updates):
            loss, _ = train_step(block, optimizer, data.x, data.y, update=k, lr=1e-2, config=training)
            found.append(float(loss))
    return found


def test_blocks_cut_at_equal_alpha_train_the_same_under_any_schedule():
    """The bound does not depend on the schedule, and neither does what a block is told of its level."""
    linear, cosine = losses_of(schedule="linear"), losses_of(schedule="cosine")
    assert cosine == pytest.approx(linear, rel=1e-6)
    by_time = losses_of(schedule="cosine", cut="uniform-linear")
    assert by_time != pytest.approx(linear, rel=1e-3)
    assert losses_of(schedule="linear", cut="uniform-linear") == pytest.approx(linear, rel=1e-6)


@pytest.mark.parametrize("weight", ["tokens", "nelbo"])
def test_checkpointing_gives_the_same_gradients(weight):
    block = moved_model(1, "fsf", weight=weight).blocks[0].train()
    again, data = copy.deepcopy(block), texts()
    again.enable_checkpointing()
    draw = block.draw(24, keyed_generator(0, "draw"))
    for unit in (block, again):
        unit.loss(data.x, data.y, draw).mean().backward()
    other = dict(again.named_parameters())
    for name, parameter in block.named_parameters():
        assert parameter.grad.abs().max() > 0, name
        assert torch.equal(parameter.grad, other[name].grad), name


# Runs.


def test_a_run_that_was_stopped_goes_on_to_the_same_weights_to_the_last_bit(tmp_path):
    config = config_of()
    for folder, stops in (("whole", [6]), ("parts", [3, 6])):
        for stop in stops:
            (trainer,) = make_trainers(config, tmp_path / folder, progress=False)
            trainer.num_updates = stop
            trainer.train()
    whole, updates = load_trained(tmp_path / "whole", config)
    parts, _ = load_trained(tmp_path / "parts", config)
    assert updates == {"block-0": 6, "block-1": 6, "block-2": 6}
    assert same(weights(whole), weights(parts))
    start = BlockwiseModel(build_units(config, DataFacts.read(tmp_path / "whole")), whole.config)
    assert not same(weights(whole), weights(start))
    model = BlockwiseModel.from_pretrained(export_model(tmp_path / "parts", config, 6))
    assert same(weights(model), weights(whole))
    facts = json.loads((tmp_path / "whole/data.json").read_text())
    data = load_split(config, "train")
    assert (facts["vocab_size"], facts["num_samples"], facts["digest"]) == (256, len(data), data.digest)


def test_an_ensemble_is_trained_and_read_as_one(tmp_path):
    config = config_of(method="shallow-ensemble", updates=2)
    (trainer,) = make_trainers(config, tmp_path / "run", progress=False)
    trainer.train()
    found, updates = load_trained(tmp_path / "run", config)
    assert isinstance(found, MaskedLmEnsemble)
    assert updates == {"member-0": 2, "member-1": 2, "member-2": 2}
    folder = export_model(tmp_path / "run", config, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["member-0", "member-1", "member-2"]


def test_a_run_keeps_its_text_and_its_tokenizer(tmp_path):
    """The same text goes on, wherever it lies; another one is refused, and nothing of the run is changed."""
    # Of the same characters, so that the tokenizer takes both.
    one, moved_to = (write(tmp_path / place / "text.txt", words(3000)) for place in ("here", "there"))
    other = write(tmp_path / "other/text.txt", words(3000, seed=1))
    given = {"tokenizer": "characters", "vocab_size": None, "updates": 2}
    run_dir = tmp_path / "run"
    (trainer,) = make_trainers(config_of(data=one, **given), run_dir, progress=False)
    trainer.train()
    assert (run_dir / "tokenizer").is_dir()
    kept = (run_dir / "data.json").read_text()
    (again,) = make_trainers(config_of(data=moved_to, **given), run_dir, progress=False)
    assert [state.updates for state in again.states] == [2, 2, 2]
    with pytest.raises(InputError, match=r"the data that the run began with, as in .*data\.json; use those") as caught:
        next(iter(make_trainers(config_of(data=other, **given), run_dir, progress=False)))
    assert caught.value.setting == "data"
    assert (run_dir / "data.json").read_text() == kept
    # The tokenizer is the run's own: a character that it does not have is refused.
    foreign = write(tmp_path / "foreign/text.txt", words(3000).upper())
    with pytest.raises(InputError):
        next(iter(make_trainers(config_of(data=foreign, **given), run_dir, progress=False)))


# Memory.

SMALL = {"num_layers": 6, "dropout": 0.0, "batch_size": 4, "ema_decay": 0.0}


def measured(config: MaskedLmRun):
    """Two real updates of the largest unit through the trainer."""
    unit = max(build_units(config), key=lambda unit: len(unit.layers))
    count = config.batch_size
    data = TensorBatches(torch.full((count, 16), MASK), torch.arange(count * 16).view(count, 16))
    training = config.training().model_copy(update={"updates": 2, "epochs": None})
    (report,) = Trainer([unit], data, training, progress=False).train().values()
    return report


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 2, "layer_split": (1, 5), "preset": "paper", "dropout": 0.1},
        {"method": "end-to-end", "ema_decay": 0.9, "micro_batches": 2},
        {"method": "checkpointing", "global_every": 3, "local_window": 4},
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_predicted_memory_is_the_measured_memory_to_the_byte(settings, monkeypatch):
    config, depths, trace = config_of(**{**SMALL, **settings}), [], planner._trace
    monkeypatch.setattr(planner, "_trace", lambda config, layers: depths.append(layers) or trace(config, layers))
    assert predict(config) == measured(config)
    assert max(depths) <= 4


def test_in_bf16_the_heads_norm_keeps_4_bytes_a_token_more_than_predicted():
    """Its input is bf16 and its weights fp32: mean and deviation are fp32, but bf16 on PyTorch's fake tensors."""
    config = config_of(**SMALL, method="end-to-end", precision="bf16")
    predicted, found = predict(config), measured(config)
    assert predicted.layers == found.layers
    missing = {kind: found.total[kind] - predicted.total[kind] for kind in found.total}
    tokens = config.batch_size * config.seq_len
    assert missing == {**dict.fromkeys(missing, 0), "activations": 4 * tokens, "peak_total": 4 * tokens}


def test_a_plan_has_every_method(monkeypatch):
    """With the ensemble, of which classifiers have one and generators of images have none; bytes are made up."""
    sizes = {"weights": 1, "peak_total": 2}
    monkeypatch.setattr(planner, "predict", lambda config: MemoryReport(*[sizes] * 3))
    rows = [(row.method, row.num_blocks, row.num_layers) for row in plan(config_of(**SMALL), [1, 3])]
    assert rows[:4] == [("end-to-end", 1, 6), ("checkpointing", 1, 6), ("shallow", 3, 2), ("shallow-ensemble", 3, 2)]
    assert rows[4:] == [("blocks", 1, 6), ("blocks", 3, 2)]


def test_a_shallow_network_has_the_memory_of_a_block():
    """Both are denoisers with conditioning; only their levels differ."""
    assert predict(config_of(**SMALL, method="shallow")) == predict(config_of(**SMALL))
