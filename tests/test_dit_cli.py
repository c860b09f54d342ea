"""Generation as a user does it: train, stop, go on, sample, encode; and a plain line for what cannot be done."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from diffusionblocks import BlockwiseModel, TensorBatches, Trainer
from diffusionblocks.cli import main
from diffusionblocks.data.images import to_float, to_uint8
from diffusionblocks.evaluation.grid import read_picture
from diffusionblocks.recipes import RECIPES, resolve
from diffusionblocks.training.data import DataFacts, load_split
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.run import load_config

TINY = ["--hidden-size", "16", "--num-heads", "2", "--num-layers", "4", "--num-blocks", "2", "--patch-size", "4"]
TINY += ["--updates", "6", "--batch-size", "8", "--rotate-every", "2", "--checkpoint-every", "2", "--ema-decay", "0.9"]
TINY += ["--num-sampling-steps", "4", "--lr", "1e-2"]


def refused(capsys, command: list[str]) -> str:
    capsys.readouterr()
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    return shown


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "dit-digits", "--run", str(run), *TINY]) == 0
    return run


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_the_facts_of_the_data_are_measured_and_kept(digits):
    images = to_float(load_split(load_config(digits), "train").images).double()
    facts = json.loads((digits / "data.json").read_text())
    assert facts["mean"] == pytest.approx([float(images.mean())], abs=1e-12)
    assert facts["std"] == pytest.approx([float(images.std(correction=0))], abs=1e-12)
    assert facts["num_samples"] == len(images)
    model = BlockwiseModel.from_pretrained(digits / "model")
    assert (model.config.data_mean, model.config.data_std) == (tuple(facts["mean"]), tuple(facts["std"]))
    units = model.blocks[0].to_units(images.float())
    assert float(units.std()) == pytest.approx(0.5, abs=1e-4)


def test_a_block_alone_and_a_run_that_was_stopped_give_the_same_weights(digits, tmp_path):
    """Block 1 trained elsewhere; and the whole run by its library calls to 4 of 6 updates, then the command."""
    assert main(["train", "dit-digits", "--run", str(tmp_path / "one"), "--block", "1", *TINY]) == 0
    name = "block-1/checkpoint-00000006"
    for file in ("diffusion_pytorch_model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        whole, alone = load_file(digits / name / file), load_file(tmp_path / "one" / name / file)
        assert all(torch.equal(whole[key], alone[key]) for key in whole | alone)
    shutil.copytree(digits, tmp_path / "stopped")
    for block in ("block-0", "block-1"):
        shutil.rmtree(tmp_path / "stopped" / block / "checkpoint-00000006")
    shutil.rmtree(tmp_path / "stopped/model")
    assert main(["train", "dit-digits", "--run", str(tmp_path / "stopped"), *TINY]) == 0
    for file in ("diffusion_pytorch_model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        whole, resumed = load_file(digits / name / file), load_file(tmp_path / "stopped" / name / file)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole | resumed)


def test_sampling_writes_the_images_of_the_model(digits, tmp_path, capsys):
    command = ["sample", str(digits), "--classes", "3,0-1", "--num", "7", "--seed", "5", "--guidance", "2"]
    assert main([*command, "--grid", str(tmp_path / "all.png"), "--out", str(tmp_path / "each")]) == 0
    assert "7 images (dpmpp-2m, 4 steps, guidance 2.0, seed 5, resident: all)" in capsys.readouterr().out
    one = ["--grid", str(tmp_path / "one.png"), "--resident", "one", "--batch-size", "7"]
    assert main([*command, *one]) == 0
    assert np.array_equal(pixels(tmp_path / "all.png"), pixels(tmp_path / "one.png"))
    model = BlockwiseModel.from_pretrained(digits / "model")
    images = to_uint8(model.decode(torch.tensor([3, 0, 1, 3, 0, 1, 3]), guidance=2.0, seed=5))
    files = sorted((tmp_path / "each").iterdir())
    assert [file.name for file in files] == [f"{k:06}-class-{c}.png" for k, c in enumerate([3, 0, 1, 3, 0, 1, 3])]
    for file, image in zip(files, images, strict=True):
        assert torch.equal(read_picture(file), image)
    # A row of the grid has the classes in their order, each image enlarged 7 times with 2 pixels between them.
    assert pixels(tmp_path / "all.png").shape == (3 * 58 - 2, 3 * 58 - 2)
    assert torch.equal(read_picture(tmp_path / "all.png")[0, 58:114:7, 0:56:7], images[3, 0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--classes", "10"], "classes='10': expected numbers in 0..9"),
        (["--classes", "7-3"], "classes='7-3'"),
        (["--classes", "seven"], "classes='seven'"),
        (["--num", "0"], "num='0'"),
        (["--num-sampling-steps", "1"], "num_sampling_steps=1: expected at least one step for each of the 2 blocks"),
        (["--sampler", "ddim"], "sampler='ddim'"),
        (["--guidance", "much"], "guidance='much'"),
        (["--guidance", "-1"], "guidance='-1'"),
        (["--guidance", "1,2,3"], "guidance=[1.0, 2.0, 3.0]: expected one number, or 2"),
        (["--grid", "/nowhere/x.png"], "grid='/nowhere/x.png'"),
    ],
)
def test_a_bad_request_is_one_line(digits, capsys, flags, message):
    assert message in refused(capsys, ["sample", str(digits), *flags])


def test_what_a_run_does_not_have_is_refused(digits, tmp_path, capsys):
    vit = ["train", "vit-digits", "--updates", "2", "--hidden-size", "8", "--num-heads", "2", "--patch-size", "4"]
    assert main([*vit, "--run", str(tmp_path / "vit")]) == 0
    assert "of the family vit" in refused(capsys, ["sample", str(tmp_path / "vit")])
    assert "samples='5': expected no such flag" in refused(capsys, ["eval", str(tmp_path / "vit"), "--samples", "5"])
    assert "chains='5': expected no such flag" in refused(capsys, ["eval", str(digits), "--chains", "5"])
    assert main(["eval", str(digits), "--samples", "20", "--split", "validation"]) == 2
    assert "samples=20: expected at least 128" in capsys.readouterr().err.splitlines()[-1]
    assert "expected a classifier" in refused(capsys, ["predict", str(digits), "x.png"])
    assert "expected a classifier" in refused(capsys, ["predict", str(digits / "model"), "x.png"])
    assert "flip=True" in refused(capsys, ["train", "dit-latent", "--data-dir", "x", "--flip", "true"])
    assert "method='shallow-ensemble'" in refused(capsys, ["train", "dit-digits", "--method", "shallow-ensemble"])
    assert "z_dropout" in refused(capsys, ["train", "dit-digits", "--z-dropout", "0.5"])
    half = ["train", "dit-digits", "--run", str(tmp_path / "half"), "--block", "0", *TINY]
    assert main(half) == 0
    assert "resident='one'" in refused(capsys, ["sample", str(tmp_path / "half"), "--resident", "one"])
    assert "block-1" in refused(capsys, ["sample", str(tmp_path / "half")])


def test_the_plan_of_a_trained_run_can_change_and_its_training_cannot(digits, tmp_path, capsys):
    run = tmp_path / "copy"
    shutil.copytree(digits, run)
    again = [*TINY, "--num-sampling-steps", "7", "--sampler", "euler", "--guidance", "2", "--allotment", "even"]
    assert main(["train", "dit-digits", "--run", str(run), *again]) == 0
    before, after = (BlockwiseModel.from_pretrained(path / "model") for path in (digits, run))
    assert (before.config.num_sampling_steps, after.config.num_sampling_steps) == (4, 7)
    assert after.plan.blocks() == (0, 0, 0, 0, 1, 1, 1)
    assert all(torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True))
    assert "gamma=0.1" in refused(capsys, ["train", "dit-digits", "--run", str(run), *again, "--gamma", "0.1"])
    drawn = [*TINY, "--plan-draws", "0.5", "--run", str(tmp_path / "drawn")]
    assert main(["train", "dit-digits", *drawn]) == 0
    assert "num_sampling_steps=7" in refused(capsys, ["train", "dit-digits", *drawn, "--num-sampling-steps", "7"])
    assert main(["train", "dit-digits", *drawn, "--sampler", "euler"]) == 0


def test_other_data_in_the_same_run_are_refused(digits, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    facts = json.loads((copy / "data.json").read_text())
    (copy / "data.json").write_text(json.dumps({**facts, "mean": [0.5]}))
    assert "data='mean'" in refused(capsys, ["train", "dit-digits", "--run", str(copy), *TINY])


@pytest.fixture
def pictures(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(12):
            image = Image.fromarray(rng.integers(0, 256, (20, 28, 3), dtype=np.uint8))
            image.save(tmp_path / "pictures" / name / f"{k}.png")
    return tmp_path / "pictures"


def test_a_users_folder(pictures, tmp_path, capsys):
    run = str(tmp_path / "run")
    train = ["train", "dit-folder", "--data-dir", str(pictures), "--image-size", "16", "--flip", "true", *TINY]
    assert main([*train, "--run", run]) == 0
    assert json.loads((tmp_path / "run/data.json").read_text())["classes"] == ["cat", "dog"]
    assert main(["sample", run, "--classes", "dog", "--num", "4", "--grid", str(tmp_path / "dogs.png")]) == 0
    assert pixels(tmp_path / "dogs.png").shape == (2 * 66 - 2, 2 * 66 - 2, 3)
    assert "cow" in refused(capsys, ["sample", run, "--classes", "cow"])
    bad = ["train", "dit-folder", "--data-dir", str(pictures), "--image-size", "18", *TINY]
    assert "patch_size=4" in refused(capsys, [*bad, "--run", str(tmp_path / "bad")])
    assert not (tmp_path / "bad").exists()


def test_latents_from_pixels_to_samples(pictures, tmp_path, capsys):
    diffusers = pytest.importorskip("diffusers")
    levels = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae = diffusers.AutoencoderKL(block_out_channels=(4, 4), norm_num_groups=2, latent_channels=3, **levels)
    vae.save_pretrained(tmp_path / "vae")
    encode = ["encode", str(pictures), "--vae", str(tmp_path / "vae"), "--out", str(tmp_path / "latents")]
    assert main([*encode, "--image-size", "16"]) == 0
    shown = capsys.readouterr().out
    assert "train: 20 latents of 3 x 8 x 8, 2 classes" in shown
    assert "test: 2 latents" in shown
    run = str(tmp_path / "run")
    train = ["train", "dit-latent", "--data-dir", str(tmp_path / "latents"), "--image-size", "8", "--num-channels", "3"]
    assert main([*train, *TINY, "--run", run]) == 0
    facts, data = json.loads((tmp_path / "run/data.json").read_text()), load_split(load_config(Path(run)), "train")
    assert facts["std"] == pytest.approx(data.rows(torch.arange(20)).double().std((0, 2, 3), correction=0).tolist())
    assert "vae=None" in refused(capsys, ["sample", run])
    grid = ["--num", "4", "--grid", str(tmp_path / "grid.png")]
    assert main(["sample", run, *grid, "--vae", str(tmp_path / "vae"), "--resident", "one"]) == 0
    assert pixels(tmp_path / "grid.png").shape == (2 * 66 - 2, 2 * 66 - 2, 3)
    evaluate = ["eval", run, "--vae", str(tmp_path / "vae")]
    assert "features=None: expected inception for latents" in refused(capsys, evaluate)
    few = ["--features", "none", "--samples", "4", "--sampling-seeds", "1"]
    assert main([*evaluate, *few]) == 0
    result = json.loads((tmp_path / "run/eval-test.json").read_text())
    assert "fid" not in result
    assert result["denoising_error"] > 0
    assert pixels(tmp_path / "run/eval-test.png").shape == (2 * 66 - 2, 2 * 66 - 2, 3)
    assert "expected a FID" in refused(capsys, ["report", run])


def test_the_papers_recipe_starts_on_the_files_of_cifar_10(tmp_path):
    folder, rng = tmp_path / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir()
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
        records = rng.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(20) % 10
        (folder / name).write_bytes(records.tobytes())
    small = ["--updates", "2", "--batch-size", "4", "--num-layers", "3", "--hidden-size", "12", "--patch-size", "8"]
    command = ["train", "dit-s2-cifar10", "--data-dir", str(tmp_path), "--run", str(tmp_path / "run"), *small]
    assert main(command) == 0
    assert (tmp_path / "run/model/block-2").is_dir()


@pytest.mark.parametrize(
    ("recipe", "layers", "width", "heads", "rate", "channels"),
    [("dit-s2-cifar10", 12, 384, 6, 1e-4, 3), ("dit-l2-imagenet", 24, 1024, 16, 5e-5, 4)],
)
def test_the_papers_hyperparameters(recipe, layers, width, heads, rate, channels):
    config = resolve(recipe)
    assert (config.num_layers, config.hidden_size, config.num_heads) == (layers, width, heads)
    assert (config.lr, config.batch_size, config.epochs, config.num_blocks) == (rate, 512, 100, 3)
    assert (config.label_dropout, config.guidance, config.sampler) == (0.1, 2.0, "euler")
    assert (config.num_sampling_steps, config.patch_size, config.num_channels) == (50, 2, channels)
    assert (config.p_mean, config.p_std, config.sigma_data, config.gamma) == (-1.2, 1.2, 0.5, 0.05)


def test_every_dit_recipe_builds_and_takes_an_update():
    for name in RECIPES:
        if not name.startswith("dit-"):
            continue
        small = {"hidden_size": 16, "num_heads": 2, "num_layers": 3, "batch_size": 2, "num_classes": 5}
        config = resolve(name, flags={**small, "patch_size": 4})
        facts = DataFacts(tuple("abcde"), (0.0,) * config.num_channels, (1.0,) * config.num_channels, 4)
        units, side = build_units(config, facts), config.image_size
        data = TensorBatches(torch.arange(4), torch.randn(4, config.num_channels, side, side))
        training = config.training().model_copy(update={"updates": 1, "epochs": None})
        Trainer(units, data, training, progress=False, measure_memory=False).train()
