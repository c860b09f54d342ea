"""Trunk, then branches: the same as done by hand, in one process or many, and the same budget in all."""

import copy

import pytest
import torch
from safetensors.torch import load_file

from diffusionblocks import InputError
from diffusionblocks.cli import main
from diffusionblocks.data.batches import ImageBatches
from diffusionblocks.data.order import batch_rows
from diffusionblocks.recipes import resolve
from diffusionblocks.training.data import DataFacts, load_split
from diffusionblocks.training.ema import Ema
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.run import load_config, load_trained, make_trainers
from diffusionblocks.training.schedule import learning_rate
from diffusionblocks.training.state import load_unit, newest
from diffusionblocks.training.step import make_optimizer, train_step

TINY = {
    **{"hidden_size": 16, "num_layers": 4, "num_heads": 2, "num_blocks": 3, "patch_size": 4, "dropout": 0.1},
    **{"updates": 8, "batch_size": 16, "rotate_every": 3, "checkpoint_every": 2, "ema_decay": 0.9, "trunk": 0.5},
}


def flags(**settings):
    given = {**TINY, **settings}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trunk") / "run"
    assert main(["train", "vit-digits", "--run", str(folder), *flags()]) == 0
    return folder


def newest_weights(run_dir, block):
    folder = sorted((run_dir / f"block-{block}").glob("checkpoint-*"))[-1]
    files = ("model", "conditioning", "ema", "optimizer")
    return folder.name, {
        f"{file}.{k}": t for file in files for k, t in load_file(folder / f"{file}.safetensors").items()
    }


@pytest.mark.parametrize("budget", ["layer-evaluations", "samples"])
@pytest.mark.parametrize("trunk", [0.25, 0.5, 0.75])
def test_trunk_and_blocks_have_the_updates_of_blocks_alone(budget, trunk):
    settings = {**TINY, "updates": 40, "budget": budget}
    alone = resolve("vit-digits", flags={**settings, "trunk": 0}).unit_budget(1000)
    blocks = resolve("vit-digits", flags={**settings, "trunk": trunk})
    stem = blocks.model_copy(update={"method": "trunk"}).unit_budget(1000)
    branch = blocks.unit_budget(1000)
    assert stem.first == 0
    assert stem.last == branch.first
    assert stem.total == branch.last == branch.total
    assert stem.last + 3 * (branch.last - branch.first) == 3 * alone.last
    assert stem.last == pytest.approx(trunk * 3 * alone.last, abs=3)


@pytest.mark.parametrize("trunk", [0.25, 0.5, 0.75])
def test_the_rate_can_follow_the_budget_that_is_used_up(trunk):
    """Then the trunk has the rates of the shallow network of B N updates, and each update of a block those of B."""
    settings = {**TINY, "updates": 40, "trunk_schedule": "budget"}
    config = resolve("vit-digits", flags={**settings, "trunk": trunk})
    stem, branch = config.model_copy(update={"method": "trunk"}).unit_budget(1000), config.unit_budget(1000)
    assert stem.total == branch.total == 120
    assert [stem.position(k) for k in range(stem.last)] == list(range(int(120 * trunk)))
    assert [branch.position(k) for k in range(branch.first, branch.last + 1)] == list(range(int(120 * trunk), 121, 3))
    assert (branch.first, branch.last - branch.first) == (stem.last, 40 - int(40 * trunk))


def test_a_trunk_goes_with_levels_drawn_from_a_longer_plan(tmp_path):
    drawn = flags(plan_draws=0.5, num_sampling_steps=4)
    assert main(["train", "vit-digits", "--run", str(tmp_path / "run"), *drawn]) == 0
    assert (tmp_path / "run/model/block-2").is_dir()


def test_it_is_what_the_same_steps_give_by_hand(run_dir):
    """12 updates of one block over the whole range, then 4 of each block from its weights, moments and averages."""
    config = resolve("vit-digits", flags=TINY)
    images, training = load_split(config, "train"), config.training()
    batches = ImageBatches(images)

    def train(unit, optimizer, ema, updates):
        for k in updates:
            rows = batch_rows(len(images), config.batch_size, k, config.seed, unit.index)
            x, y = batches.batch(rows, config.seed, unit.index)
            train_step(unit, optimizer, x, y, update=k, lr=learning_rate(k, 16, training), config=training)
            ema.update(k)

    (trunk,) = build_units(config.model_copy(update={"method": "trunk"}), DataFacts(images.classes))
    assert trunk.interval.lo == config.sigma_min
    assert trunk.interval.hi == config.sigma_max
    optimizer, ema = make_optimizer(trunk.train(), training), Ema(trunk, 0.9)
    train(trunk, optimizer, ema, range(12))
    for block in build_units(config, DataFacts(images.classes)):
        own, average = make_optimizer(block.train(), training), Ema(block, 0.9)
        stem = dict(trunk.named_parameters())
        for name, parameter in block.named_parameters():
            source, n = stem[name], len(parameter) if parameter.ndim else 0
            parameter.data.copy_(source.data[:n])
            average.average[name].copy_(ema.average[name][:n])
            moments = {k: v if v.ndim == 0 else v[:n] for k, v in optimizer.state[source].items()}
            own.state[parameter] = copy.deepcopy(moments)
        train(block, own, average, range(12, 16))
        path, _ = newest(run_dir / block.name)
        assert path.name == "checkpoint-00000016"
        raw, averaged = (build_units(config, DataFacts(images.classes), block.index)[0] for _ in range(2))
        load_unit(path, raw, averaged=False)
        load_unit(path, averaged, averaged=True)
        for name, parameter in block.named_parameters():
            assert torch.equal(raw.get_parameter(name), parameter), name
            assert torch.equal(averaged.get_parameter(name), average.average[name]), name


def test_blocks_that_start_from_a_trunk_elsewhere_are_the_same(run_dir, tmp_path):
    assert main(["train", "vit-digits", "--method", "trunk", "--run", str(tmp_path / "trunk"), *flags()]) == 0
    for block in ("2", "0", "1"):
        apart = ["--from", str(tmp_path / "trunk"), "--block", block, "--run", str(tmp_path / "apart")]
        assert main(["train", "vit-digits", *apart, *flags()]) == 0
    for block in range(3):
        (name, one), (other_name, other) = newest_weights(run_dir, block), newest_weights(tmp_path / "apart", block)
        assert name == other_name
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert (tmp_path / "apart/model/diffusionblocks.json").exists()
    assert main(["eval", str(tmp_path / "trunk"), "--split", "validation"]) == 0


@pytest.mark.parametrize("at", ["trunk", "branch"])
def test_stopped_in_the_trunk_or_in_a_branch_it_goes_on_to_the_same_weights(run_dir, tmp_path, at):
    config, stop_at = resolve("vit-digits", flags=TINY), {"trunk": 5, "branch": 13}[at]
    folder = tmp_path / "run"
    for trainer in make_trainers(config, folder, progress=False):
        last, trainer.num_updates = trainer.num_updates, min(trainer.num_updates, stop_at)
        trainer.train()
        if trainer.num_updates < last:
            break
    assert main(["train", "vit-digits", "--run", str(folder), *flags()]) == 0
    for block in range(3):
        (_, one), (_, other) = newest_weights(run_dir, block), newest_weights(folder, block)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_trunk_is_a_model_of_one_block_with_the_layers_of_the_largest(run_dir):
    config = load_config(run_dir / "trunk")
    model, updates = load_trained(run_dir / "trunk", config)
    assert updates == {"block-0": 12}
    assert model.config.num_blocks == 1
    assert [len(block.layers) for block in model.block_list] == [2]
    assert [len(unit.layers) for unit in build_units(config.model_copy(update={"method": "blocks"}))] == [2, 1, 1]


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"lr": 1e-3}, "lr="), ({"seed": 1}, "seed="), ({"p_mean": 0.5}, "p_mean="), ({"trunk": 0}, "from="),
     ({"trunk": 0.25}, "trunk=")],
)  # fmt: skip
def test_a_trunk_of_other_settings_is_refused_in_one_line(run_dir, tmp_path, capsys, settings, word):
    command = ["train", "vit-digits", "--from", str(run_dir / "trunk"), "--run", str(tmp_path / "x")]
    assert main([*command, *flags(**settings)]) == 2
    shown = capsys.readouterr().err
    assert word in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_trunk_that_is_not_finished_is_refused(tmp_path, capsys):
    config = resolve("vit-digits", flags={**TINY, "method": "trunk"})
    for trainer in make_trainers(config, tmp_path / "trunk", progress=False):
        trainer.num_updates = 5
        trainer.train()
    command = ["train", "vit-digits", "--from", str(tmp_path / "trunk"), "--run", str(tmp_path / "x")]
    assert main([*command, *flags()]) == 2
    assert "12 updates, not 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings", [{"method": "shallow"}, {"method": "trunk", "trunk": 0}, {"trunk": 1}, {"trunk": 0.01}]
)
def test_a_trunk_that_makes_no_sense_is_refused(settings):
    with pytest.raises(InputError, match="trunk="):
        resolve("vit-digits", flags={**TINY, **settings}).unit_budget(1000)
