"""The planner against two real updates, to the byte, and that it allocates nothing."""

import json
import resource
import sys

import pytest
import torch

from diffusionblocks import TensorBatches, Trainer, planner
from diffusionblocks.cli import main
from diffusionblocks.errors import InputError
from diffusionblocks.planner import plan, predict
from diffusionblocks.recipes import resolve
from diffusionblocks.run_config import AnyRun
from diffusionblocks.training.networks import build_units

# Of this network the maximum of the activations, with autocast's kept casts and checkpointing, bends with depth.
BENT = {"method": "end-to-end", "precision": "bf16", "checkpointing": True, "hidden_size": 32, "patch_size": 2}
BENT |= {"batch_size": 16}
SMALL = {"hidden_size": 16, "num_heads": 2, "patch_size": 4, "batch_size": 6, "num_layers": 6, "ema_decay": 0.0}


def config_of(recipe: str = "vit-digits", **settings) -> AnyRun:
    return resolve(recipe, flags={**SMALL, **settings})


def measured(config: AnyRun):
    """Two real updates of the largest unit through the trainer."""
    unit = max(build_units(config), key=lambda unit: len(unit.layers))
    count = config.batch_size
    images, labels = torch.randn(count, 1, 8, 8), torch.arange(count) % 10
    data = TensorBatches(labels, images) if config.family == "dit" else TensorBatches(images, labels)
    training = config.training().model_copy(update={"updates": 2, "epochs": None})
    (report,) = Trainer([unit], data, training, progress=False).train().values()
    return report


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "end-to-end"},
        {"method": "end-to-end", "num_layers": 12, "precision": "bf16"},
        {**BENT, "num_layers": 9, "ema_decay": 0.9},
        {"method": "shallow", "num_blocks": 2, "ema_decay": 0.9},
        {"num_blocks": 1, "ema_decay": 0.9},
        # Its peak is in the backward pass of a layer that is neither the first nor one of the last two.
        {"num_blocks": 1, "checkpointing": True, "hidden_size": 64, "patch_size": 2, "batch_size": 32},
        {"num_blocks": 1, "conditioning": "scale-shift", "micro_batches": 2},
        {"num_blocks": 1, "conditioning": "adaln", "num_layers": 12},
        {"num_blocks": 1, "preset": "paper", "dropout": 0.1, "precision": "bf16"},
        {"num_blocks": 1, "preset": "paper", "dropout": 0.1, "checkpointing": True, "ema_decay": 0.9},
        {"num_blocks": 2, "layer_split": (1, 5), "precision": "bf16", "checkpointing": True},
        {"num_blocks": 4, "batch_size": 7, "micro_batches": 2},
        {"recipe": "dit-digits", "method": "end-to-end"},
        {"recipe": "dit-digits", "num_blocks": 1, "num_layers": 9, "ema_decay": 0.9, "precision": "bf16"},
        {"recipe": "dit-digits", "num_blocks": 2, "layer_split": (1, 5), "checkpointing": True, "dropout": 0.1},
        {"recipe": "dit-digits", "num_blocks": 1, "batch_size": 7, "micro_batches": 2},
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_predicted_memory_is_the_measured_memory_to_the_byte(settings, monkeypatch):
    config, depths, trace = config_of(**settings), [], planner._trace
    monkeypatch.setattr(planner, "_trace", lambda config, layers: depths.append(layers) or trace(config, layers))
    assert predict(config) == measured(config)
    assert max(depths) <= 4


def test_a_straight_line_through_the_maxima_would_miss():
    """Why operations are extrapolated one by one."""
    three, four, deep = (predict(config_of(**BENT, num_layers=n)).total["activations"] for n in (3, 4, 9))
    assert deep > three + (four - three) * 6


def test_checkpointing_is_the_network_end_to_end_with_activation_checkpointing():
    control = config_of().model_copy(update={"method": "checkpointing"})
    assert predict(control) == predict(config_of(method="end-to-end", checkpointing=True))
    assert predict(control).total["activations"] < predict(config_of(method="end-to-end")).total["activations"]


def test_the_largest_unit_counts():
    assert config_of(num_layers=5, num_blocks=3).depth() == 2
    assert config_of(num_blocks=3, layer_split=(1, 4, 1), method="shallow").depth() == 4
    assert config_of(method="end-to-end").depth() == 6
    assert predict(config_of(num_layers=5, num_blocks=3)) == predict(config_of(num_layers=6, num_blocks=3))


def test_a_plan_has_every_method_and_number_of_blocks():
    rows = plan(config_of(num_blocks=4))
    found = {(row.method, row.num_blocks): row for row in rows}
    assert [key for key in found if key[0] == "blocks"] == [("blocks", b) for b in (1, 2, 3, 4, 6)]
    assert found["end-to-end", 1].ratio["peak_total"] == 1.0
    assert found["shallow", 3].report == found["shallow-ensemble", 3].report
    assert found["shallow", 3].report.layers == found["blocks", 3].report.plain_layers | {
        "activations": found["shallow", 3].report.layers["activations"]
    }
    peaks = [found["blocks", b].ratio["peak_total"] for b in (2, 3, 6)]
    assert peaks == sorted(peaks, reverse=True)
    assert 1 / 3 < found["blocks", 3].layer_ratio["weights"] < 1.1 / 3
    assert [row.num_blocks for row in plan(config_of(), [2])] == [1, 1, 2, 2, 2]


def test_another_number_of_blocks_than_the_split_is_for_is_cut_evenly():
    config = config_of(num_blocks=2, layer_split=(1, 5))
    layers = {row.num_blocks: row.num_layers for row in plan(config) if row.method == "blocks"}
    assert layers == {1: 6, 2: 5, 3: 2, 6: 1}


def test_a_network_larger_than_any_memory_is_planned():
    """24 layers of width 16384, batch 4096: terabytes, of which the process takes none."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = config_of(hidden_size=16384, num_layers=24, batch_size=4096, num_blocks=3, conditioning="adaln")
    report = predict(config)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    layer = 12 * 16384**2 + 13 * 16384
    assert report.plain_layers["weights"] == 8 * 4 * layer
    assert report.total["peak_total"] > 1e11
    assert grown < 2e8


def test_planning_leaves_randomness_and_precision_as_they_were():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    predict(config_of(batch_size=5))
    assert torch.equal(torch.rand(4), expected)
    assert type(torch.zeros(2)) is torch.Tensor


def test_the_command_prints_a_table_and_writes_the_bytes(tmp_path, capsys):
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    path = tmp_path / "plan.json"
    assert main(["plan", "vit-digits", *small, "--num-blocks", "3", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    for word in ("end-to-end", "checkpointing", "shallow-ensemble", "blocks", "peak", "MB", "CPU kernels", "batch 6"):
        assert word in shown
    assert "what --precision auto gives on this machine" in shown
    assert "layers alone x B / end to end, B = 3" in shown
    stored = json.loads(path.read_text())
    block = stored["rows"][-1]
    assert (block["method"], block["num_blocks"], block["num_layers"]) == ("blocks", 3, 2)
    assert block["report"] == predict(config_of(num_blocks=3)).to_dict()


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ("--num-blocks 7", "num_blocks=7"),
        ("--num-blocks 0", "num_blocks"),
        ("--num-heads 5", "num_heads"),
        ("--hidden 5", "did you mean --hidden-size"),
        ("--config /nowhere.json", "file="),
    ],
)
def test_bad_input_is_one_line(arguments, setting, capsys):
    assert main(["plan", "vit-digits", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert setting in line


def test_numbers_of_blocks_are_checked_before_anything_is_traced():
    with pytest.raises(InputError, match="num_blocks=7"):
        plan(config_of(), [2, 7])
