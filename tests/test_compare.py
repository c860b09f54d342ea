"""`dblocks compare`: a row is what a run of its own gives, nothing is trained twice, and the budgets are as said."""

import itertools
import json
import shutil

import pytest
import torch

from diffusionblocks import InputError
from diffusionblocks.cli import main
from diffusionblocks.compare import compare
from diffusionblocks.comparison import Comparison
from diffusionblocks.data.images import to_float
from diffusionblocks.evaluation.costs import StepTime
from diffusionblocks.recipes import resolve
from diffusionblocks.training.data import load_split
from diffusionblocks.training.run import load_trained

TINY = {
    **{"hidden_size": "16", "num_layers": "3", "num_heads": "2", "num_blocks": "3", "patch_size": "4"},
    **{"updates": "12", "batch_size": "16", "rotate_every": "3", "checkpoint_every": "3", "dropout": "0.1"},
}
FLAGS = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(scope="module", autouse=True)
def quick_timing():
    """Times are no matter of a test: every method takes a second for each of its units."""

    def times(configs, device):
        units = {name: 3 if "blocks" in name or "ensemble" in name else 1 for name in configs}
        return {name: StepTime(((1.0, 1.0, 1.0),) * n) for name, n in units.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffusionblocks.compare.step_times", times)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison") / "out"


@pytest.fixture(scope="module")
def result(folder):
    return compare(Comparison("vit-digits", TINY, seeds=2, split="validation"), folder, progress=False)


def rows_of(result, method, **wanted):
    found = [row for row in result["rows"] if row["method"] == method]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


def test_the_file_has_the_rows_and_where_they_come_from(result, folder):
    assert json.loads((folder / "compare.json").read_text()) == result
    assert result["recipe"] == "vit-digits"
    assert {"commit", "versions", "hardware", "command"} <= result.keys()
    keys = ["method", "preset", "num_blocks", "seed", "budget", "updates"]
    found = {tuple(row[key] for key in keys) for row in result["rows"]}
    assert len(found) == len(result["rows"])
    per_seed = [
        ("end-to-end", "default", 3, "layer-evaluations", 12),
        ("shallow", "default", 3, "layer-evaluations", 12),
        ("shallow", "default", 3, "layer-evaluations", 36),
        ("shallow-ensemble", "default", 3, "layer-evaluations", 12),
        ("shallow-ensemble", "default", 3, "samples", 4),
        ("blocks", "default", 3, "layer-evaluations", 12),
        ("blocks", "default", 3, "samples", 4),
        ("blocks", "paper", 3, "layer-evaluations", 12),
        ("blocks", "paper", 3, "samples", 4),
        ("blocks+trunk", "default", 3, "layer-evaluations", 12),
        ("blocks+trunk", "default", 3, "samples", 4),
    ]
    expected = {(*key[:3], seed, *key[3:]) for key in per_seed for seed in (0, 1)}
    assert found == expected | {("checkpointing", "default", 3, 0, "layer-evaluations", 5)}
    kinds = {"weights", "gradients", "optimizer", "activations", "other"}
    for row in result["rows"]:
        assert row["memory_bytes"].keys() == row["layer_memory_bytes"].keys() == kinds
        if row["method"] != "checkpointing":
            assert 0 <= row["metrics"]["accuracy"] <= 1
            assert row["metrics"]["cross_entropy"] > 0


def test_checkpointing_has_the_losses_of_end_to_end_and_less_memory(result):
    (row,), whole = rows_of(result, "checkpointing"), rows_of(result, "end-to-end")[0]
    assert row["metrics"] == {"largest_loss_difference": 0.0}
    losses = result["costs"]["checkpointing"]["losses"]
    assert len(set(losses)) == 5
    assert row["memory_bytes"]["activations"] < whole["memory_bytes"]["activations"]
    assert row["memory_bytes"]["weights"] == whole["memory_bytes"]["weights"]


def test_costs_are_those_of_the_largest_unit_and_the_sum_of_times(result):
    whole, shallow, ensemble = (rows_of(result, m)[0] for m in ("end-to-end", "shallow", "shallow-ensemble"))
    blocks = rows_of(result, "blocks")[0]
    assert whole["layer_memory_bytes"]["weights"] == 3 * shallow["layer_memory_bytes"]["weights"]
    assert ensemble["memory_bytes"] == shallow["memory_bytes"]
    assert 1 < blocks["layer_memory_bytes"]["weights"] / shallow["layer_memory_bytes"]["weights"] < 1.1
    assert (blocks["step_seconds"], whole["step_seconds"]) == (3.0, 1.0)
    assert blocks["samples_per_second"] == whole["samples_per_second"] == 16
    for kind in ("memory_bytes", "layer_memory_bytes", "step_seconds"):
        assert rows_of(result, "blocks+trunk")[0][kind] == blocks[kind]


def test_a_row_is_what_the_commands_give(result, tmp_path):
    """The shallow row is taken from the ensemble; a run of its own has the same scores, and so has the longer one."""
    for updates, row in zip(("12", "36"), rows_of(result, "shallow", seed=1), strict=True):
        flags = [*FLAGS[: FLAGS.index("--updates")], "--updates", updates, *FLAGS[FLAGS.index("--updates") + 2 :]]
        run = str(tmp_path / updates)
        assert main(["train", "vit-digits", "--method", "shallow", "--seed", "1", "--run", run, *flags]) == 0
        assert main(["eval", run, "--split", "validation"]) == 0
        scores = json.loads((tmp_path / updates / "eval-validation.json").read_text())
        assert row["updates"] == int(updates)
        assert row["metrics"] == {name: scores[name] for name in ("accuracy", "cross_entropy")}


def test_the_ensemble_averages_log_probabilities(result, folder):
    config = resolve("vit-digits", flags={**TINY, "method": "shallow-ensemble"})
    run_dir = folder / "runs/shallow-ensemble-layer-evaluations-seed0"
    ensemble, _ = load_trained(run_dir, config)
    images = load_split(config, "validation")
    with torch.no_grad():
        logits = [member(to_float(images.images)).double() for member in ensemble.members]
    assert not any(torch.allclose(a, b) for a, b in itertools.combinations(logits, 2))
    mean = sum(x.log_softmax(-1) for x in logits) / 3
    accuracy = float((mean.argmax(-1) == images.labels).double().mean())
    assert accuracy == rows_of(result, "shallow-ensemble", budget="layer-evaluations", seed=0)[0]["metrics"]["accuracy"]


def test_blocks_show_block_0_and_the_chains_gain(result, folder):
    row = rows_of(result, "blocks", preset="default", budget="samples", seed=1)[0]
    scores = json.loads((folder / "runs/blocks-default-samples-seed1/eval-validation.json").read_text())
    assert row["metrics"]["block0_accuracy"] == scores["blocks"][0]["alone"]["accuracy"]
    after = [block["chain_after"]["accuracy"] for block in scores["blocks"]]
    assert row["metrics"]["chain_gain"] == after[-1] - after[0]


def test_the_same_call_trains_nothing_and_a_lost_run_alone_is_made_again(result, folder, monkeypatch):
    trained = []
    real = compare.__globals__["make_trainers"]

    def noted(config, run_dir, **options):
        trained.append(run_dir.name)
        return real(config, run_dir, **options)

    monkeypatch.setitem(compare.__globals__, "make_trainers", noted)
    comparison = Comparison("vit-digits", TINY, seeds=2, split="validation")
    assert compare(comparison, folder, progress=False)["rows"] == result["rows"]
    assert trained == []
    shutil.rmtree(folder / "runs/blocks-default-samples-seed1")
    assert compare(comparison, folder, progress=False)["rows"] == result["rows"]
    assert trained == ["blocks-default-samples-seed1"]


def test_other_settings_in_the_same_folder_are_refused(result, folder):
    with pytest.raises(InputError, match=r"lr=0\.5"):
        compare(Comparison("vit-digits", {**TINY, "lr": "0.5"}, seeds=2, split="validation"), folder, progress=False)


def test_the_command_prints_the_table_and_writes_the_page(result, folder, capsys):
    command = ["compare", "vit-digits", "--out", str(folder), "--seeds", "2", "--split", "validation", *FLAGS]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "blocks+trunk, B = 3" in shown
    assert "depth" in shown.lower()
    assert f"report: {folder / 'report.html'}" in shown
    gains = [row["metrics"]["chain_gain"] for row in rows_of(result, "blocks", preset="paper", budget=BUDGET)]
    first = shown.splitlines()[0]
    assert ("gains nothing over block 0" in first) or sum(gains) > 0


BUDGET = "layer-evaluations"


def test_what_a_comparison_varies_is_not_taken_from_a_file(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**TINY, "method": "shallow", "trunk": 0.5, "seed": 7, "lr": 0.01}))
    entries = Comparison("vit-digits", config_file=path, seeds=1).entries()
    assert {(e.method, e.config.method, e.config.trunk) for e in entries if "blocks" in e.method} == {
        ("blocks", "blocks", 0.0),
        ("blocks+trunk", "blocks", 0.75),
    }
    assert {e.config.seed for e in entries} == {0}
    assert {e.config.lr for e in entries} == {0.01}


def test_folds_are_rows_of_their_own():
    entries = Comparison("vit-digits", TINY, seeds=2, folds=5, methods=("end-to-end",)).entries()
    assert {(e.config.seed, e.config.fold) for e in entries} == set(itertools.product(range(2), range(5)))
    assert len({e.run for e in entries}) == 10


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--methods", "blocks,shalow"], "methods='shalow'"),
        (["--budgets", "epochs"], "budgets='epochs'"),
        (["--seeds", "0"], "seeds='0'"),
        (["--folds", "6"], "folds=6"),
        (["--trunk", "1"], "trunk='1'"),
        (["--preset", "paper"], "--preset"),
    ],
)
def test_a_bad_comparison_is_one_line(tmp_path, capsys, flags, word):
    assert main(["compare", "vit-digits", "--out", str(tmp_path / "x"), *flags]) == 2
    shown = capsys.readouterr().err
    assert word in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "x").exists()
