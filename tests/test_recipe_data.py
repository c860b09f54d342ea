"""Every recipe that needs files starts on files in the standard format: train, evaluate, refuse what does not fit."""

import gzip
import json
import struct

import numpy as np
import pytest
from PIL import Image

from diffusionblocks.cli import main
from diffusionblocks.data.sources import FASHION_CLASSES

SMALL = ["--hidden-size", "16", "--num-heads", "2", "--batch-size", "8", "--updates", "2", "--num-layers", "3"]


def write_fashion(folder):
    rng = np.random.default_rng(0)
    for prefix, per_class in (("train", 24), ("t10k", 3)):
        labels = np.repeat(np.arange(10, dtype=np.uint8), per_class)
        images = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        for name, array in ((f"{prefix}-images-idx3-ubyte.gz", images), (f"{prefix}-labels-idx1-ubyte.gz", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / name).write_bytes(gzip.compress(header + array.tobytes()))
    return 30


def write_cifar(folder):
    (folder / "fine_label_names.txt").write_text("".join(f"class_{k}\n" for k in range(100)))
    for name, per_class in (("train.bin", 10), ("test.bin", 1)):
        records = np.random.default_rng(1).integers(0, 256, (100 * per_class, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(100 * per_class) % 100
        (folder / name).write_bytes(records.tobytes())
    return 100


def write_tiny_imagenet(folder):
    wnids = [f"n{k:08d}" for k in range(200)]
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (folder / "val/images").mkdir(parents=True)
    lines = []
    for k, wnid in enumerate(wnids):
        image = Image.new("RGB", (64, 64), (k, 255 - k, 128))
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for row in range(10):
            image.save(folder / "train" / wnid / "images" / f"{wnid}_{row}.JPEG")
        image.save(folder / "val/images" / f"val_{k}.JPEG")
        lines.append(f"val_{k}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    return 200


@pytest.mark.parametrize(
    ("recipe", "write"),
    [("vit-fashion", write_fashion), ("vit-cifar100", write_cifar), ("vit-tiny-imagenet", write_tiny_imagenet)],
)
def test_a_recipe_trains_scores_every_image_of_the_test_files_and_names_classes(tmp_path, capsys, recipe, write):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    count = write(data)
    assert main(["train", recipe, "--data-dir", str(data), "--run", str(run), *SMALL]) == 0
    assert main(["eval", str(run)]) == 0
    result = json.loads((run / "eval-test.json").read_text())
    assert result["images"] == count
    capsys.readouterr()
    if recipe == "vit-fashion":
        Image.new("L", (28, 28), 90).save(tmp_path / "x.png")
        for folder in (run, run / "model"):
            assert main(["predict", str(folder), str(tmp_path / "x.png"), "--top", "10"]) == 0
            shown = capsys.readouterr().out
            assert all(name in shown for name in FASHION_CLASSES)
        moved = tmp_path / "moved"
        data.rename(moved)
        assert main(["eval", str(run)]) == 2
        assert main(["eval", str(run), "--data-dir", str(moved)]) == 0


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("vit-cifar100", {"num_layers": 12, "hidden_size": 128, "num_heads": 4, "patch_size": 4, "num_blocks": 3}),
        ("vit-cifar100", {"lr": 5e-4, "lr_final": 5e-5, "epochs": 500, "batch_size": 128, "dropout": 0.1}),
        ("vit-cifar100", {"num_sampling_steps": 4, "gamma": 0.05, "p_mean": -1.2, "conditioning": "adaln"}),
        ("vit-tiny-imagenet", {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_blocks": 2}),
        ("vit-tiny-imagenet", {"lr": 1e-4, "epochs": 100, "batch_size": 256, "flip": True, "randaugment": True}),
    ],
)
def test_published_recipes_have_the_papers_hyperparameters(recipe, expected):
    from diffusionblocks.recipes import resolve

    config = resolve(recipe).model_dump()
    assert {name: config[name] for name in expected} == expected
    assert round(500 * resolve("vit-cifar100").warmup) == 10
