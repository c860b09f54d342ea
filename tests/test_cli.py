"""The command line: the whole job on real images in small, and one clear line for bad input, with nothing lost."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from diffusionblocks.cli import main

SMALL = ["--hidden-size", "16", "--num-layers", "4", "--num-heads", "2", "--num-blocks", "2", "--patch-size", "4"]
SHORT = [*SMALL, "--updates", "12", "--rotate-every", "4", "--checkpoint-every", "4", "--dropout", "0.1"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "vit-digits", "--run", str(folder), *SHORT]) == 0
    return folder


def test_train_leaves_logs_memory_checkpoints_and_a_model(run_dir):
    for block in ("block-0", "block-1"):
        rows = [json.loads(line) for line in (run_dir / block / "metrics.jsonl").read_text().splitlines()]
        assert [row["update"] for row in rows] == [4, 8, 12]
        assert all(row["images_per_second"] > 0 and np.isfinite(row["loss"]) for row in rows)
        assert sorted(p.name for p in (run_dir / block).glob("checkpoint-*"))[-1] == "checkpoint-00000012"
        assert json.loads((run_dir / block / "memory.json").read_text())["total"]["activations"] > 0
        assert list((run_dir / "tensorboard" / block).glob("events*"))
    assert (run_dir / "model/diffusionblocks.json").exists()


def test_eval_scores_the_whole_split_and_keeps_the_result(run_dir, capsys):
    assert main(["eval", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    result = json.loads((run_dir / "eval-test.json").read_text())
    assert result["images"] == 360
    assert f"accuracy {100 * result['accuracy']:.2f}%" in shown
    assert "oracle" in shown
    assert main(["eval", str(run_dir), "--split", "validation", "--start", "noise", "--chains", "2"]) == 0
    assert main(["eval", str(run_dir), "--num-sampling-steps", "5", "--decoding", "average"]) == 0


def test_predict_takes_a_run_or_a_model(run_dir, tmp_path, capsys):
    digit = load_digits().images[0]
    Image.fromarray((digit * 255 / 16).round().astype(np.uint8)).resize((32, 32)).save(tmp_path / "0.png")
    for folder in (run_dir, run_dir / "model"):
        assert main(["predict", str(folder), str(tmp_path / "0.png"), "--top", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.count("%") == 2


def test_blocks_trained_by_commands_of_their_own_make_the_same_model(run_dir, tmp_path):
    """Each block alone, one of them in another process, against the run that trained them in turn: bit for bit."""
    folder = tmp_path / "apart"
    command = ["train", "vit-digits", "--run", str(folder), *SHORT, "--block"]
    environment_free = [sys.executable, "-m", "diffusionblocks", *command, "1"]
    done = subprocess.run(environment_free, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no model is written yet" in done.stdout
    assert main([*command, "0"]) == 0
    for path in (run_dir / "model").rglob("*.safetensors"):
        twin = folder / "model" / path.relative_to(run_dir / "model")
        first, second = load_file(path), load_file(twin)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("method", "layers"), [("end-to-end", 4), ("shallow", 2)])
def test_controls_run_through_the_same_commands(tmp_path, capsys, method, layers):
    folder = str(tmp_path / method)
    assert main(["train", "vit-digits", "--method", method, "--run", folder, *SHORT]) == 0
    assert main(["eval", folder]) == 0
    assert json.loads((tmp_path / method / "model/config.json").read_text())["num_hidden_layers"] == layers
    assert main(["train", "vit-digits", "--method", method, "--run", folder, *SHORT, "--block", "0"]) == 2


def test_a_run_goes_on_with_other_workers_and_turns(run_dir, tmp_path):
    """What has no part in the result may change: the weights are those of the run that had one setting throughout."""
    folder = tmp_path / "run"
    assert main(["train", "vit-digits", "--run", str(folder), *SHORT]) == 0
    for block in ("block-0", "block-1"):
        shutil.rmtree(folder / block / "checkpoint-00000012")
    changed = ["--rotate-every", "3", "--checkpoint-every", "5", "--num-workers", "1"]
    assert main(["train", "vit-digits", "--run", str(folder), *SHORT, *changed]) == 0
    assert json.loads((folder / "config.json").read_text())["rotate_every"] == 3
    for block in ("block-0", "block-1"):
        one, other = (load_file(run / f"model/{block}/model.safetensors") for run in (run_dir, folder))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_config_in_the_folder_is_refused_and_nothing_is_lost(run_dir, capsys):
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    assert main(["train", "vit-digits", "--run", str(run_dir), *SHORT, "--lr", "0.5"]) == 2
    assert_one_line(capsys, "lr=0.5", "0.002")
    assert before == {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}


BAD_SETTINGS = [
    ("--num-blocks 0", "num_blocks"),
    ("--num-blocks 2.5", "num_blocks"),
    ("--num-blocks 7", "num_blocks=7"),
    ("--num-blocks x", "num_blocks"),
    ("--num-block 3", "--num-blocks"),
    ("--layer-split 2,2", "layer_split"),
    ("--layer-split 2,2,x", "layer_split"),
    ("--patch-size 3", "patch_size=3"),
    ("--image-size 16", "image_size=16"),
    ("--num-classes 7", "num_classes=7"),
    ("--num-heads 5", "num_heads=5"),
    ("--lr -1", "lr"),
    ("--lr nan", "lr"),
    ("--updates 0", "updates"),
    ("--updates 3 --epochs 2", "updates"),
    ("--micro-batches 1000", "micro_batches"),
    ("--p-std 0", "p_std"),
    ("--sigma-max 0.001", "sigma_max"),
    ("--p-mean -99", "p_mean"),
    ("--num-sampling-steps 2", "num_sampling_steps=2"),
    ("--conditioning-features 7", "conditioning_features"),
    ("--readout preconditioned", "readout"),
    ("--preset papers", "preset"),
    ("--method blocky", "method"),
    ("--block 3", "block=3"),
    ("--block x", "block"),
    ("--device gpu", "device"),
    ("--config /nowhere.json", "/nowhere.json"),
    ("--data-dir /nowhere", "data_dir"),
    ("--fold 5", "fold"),
    ("--dataset mnist", "dataset"),
]


@pytest.mark.parametrize(("flags", "words"), BAD_SETTINGS)
def test_a_bad_setting_is_one_line_and_writes_nothing(tmp_path, capsys, flags, words):
    assert main(["train", "vit-digits", "--run", str(tmp_path / "run"), *flags.split()]) == 2
    assert_one_line(capsys, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "arguments"),
        (["trian"], "trian"),
        (["train"], "recipe"),
        (["train", "vit-digit"], "vit-digits"),
        (["train", "vit-fashion"], "data_dir"),
        (["train", "vit-fashion", "--data-dir", "/nowhere"], "/nowhere"),
        (["eval"], "RUN"),
        (["eval", "/nowhere"], "/nowhere"),
        (["eval", "/nowhere", "--chains", "0"], "chains"),
        (["predict", "/nowhere", "x.png"], "/nowhere"),
    ],
)
def test_a_bad_command_is_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert_one_line(capsys, words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--chains", "2"], "chains"),
        (["--num-sampling-steps", "1"], "num_sampling_steps=1"),
        (["--num-sampling-steps", "2.5"], "num_sampling_steps"),
    ],
)
def test_a_bad_way_to_evaluate_is_one_line(run_dir, capsys, arguments, words):
    assert main(["eval", str(run_dir), *arguments]) == 2
    assert_one_line(capsys, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"num_blocks": 2.5}', "num_blocks=2.5"),
        ('{"num_block": 2}', "num_blocks"),
        ("[1]", "JSON object"),
        ("{", "JSON"),
    ],
)
def test_a_bad_config_file_is_one_line(tmp_path, capsys, text, words):
    (tmp_path / "c.json").write_text(text)
    assert main(["train", "vit-digits", "--run", str(tmp_path / "run"), "--config", str(tmp_path / "c.json")]) == 2
    assert_one_line(capsys, words)


def test_flags_go_before_the_file_and_the_file_before_the_recipe(tmp_path):
    from diffusionblocks.recipes import resolve

    (tmp_path / "c.json").write_text('{"lr": 0.5, "batch_size": 7, "epochs": 3}')
    config = resolve("vit-digits", tmp_path / "c.json", {"batch_size": "9"})
    assert (config.lr, config.batch_size, config.epochs, config.updates, config.patch_size) == (0.5, 9, 3, None, 2)
    assert resolve("vit-digits", None, {"preset": "paper"}).p_mean == -1.2
    assert resolve("vit-digits", None, {"preset": "paper", "p_mean": "0.1"}).p_mean == 0.1


def test_a_run_without_any_whole_checkpoint_cannot_be_evaluated(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "vit-digits", "--run", str(folder), *SHORT, "--block", "0"]) == 0
    capsys.readouterr()
    assert main(["eval", str(folder)]) == 2
    assert_one_line(capsys, "block-1")
    for path in folder.rglob("model.safetensors"):
        path.write_bytes(b"broken")
    assert main(["eval", str(folder)]) == 2
    assert_one_line(capsys, "checksum")


def test_a_loss_that_is_not_finite_ends_with_status_1(tmp_path, capsys):
    assert main(["train", "vit-digits", "--run", str(tmp_path / "run"), *SMALL, "--updates", "30", "--lr", "1e18"]) == 1
    assert_one_line(capsys, "block 0", "sigma from")


def test_recipes_lists_every_recipe_and_all_resolve(capsys):
    from diffusionblocks.recipes import RECIPES, resolve

    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out
    for name in RECIPES:
        assert name in shown
        assert resolve(name).recipe == name


def test_help_comes_without_importing_torch():
    code = "import sys, diffusionblocks.cli as c; c._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def assert_one_line(capsys, *words):
    line = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line, "nothing was said"
    assert line[0].startswith("dblocks: ")
    for word in words:
        assert word in line[0]
