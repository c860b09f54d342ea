"""Every data set is read from files made here: right pixels and labels, disjoint fixed splits, and plain refusals."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from source_checks import SPLITS, pairs_of, refused, rows_of

from diffusionblocks.data.sources import load_images

# ---------------------------------------------------------------- digits


def test_digits_splits_partition_the_data():
    parts = {split: load_images("digits", split, None, fold=1, seed=7) for split in SPLITS}
    folds = [load_images("digits", "test", None, fold=fold, seed=7) for fold in range(5)]
    data: Any = load_digits()
    everything = sorted((data.images * 255 / 16).round().astype(np.uint8)[row].tobytes() for row in range(1797))
    for pieces in (parts.values(), folds):
        assert sorted(row for part in pieces for row in rows_of(part.images)) == everything
    for part in (*folds, *parts.values()):
        counts = torch.bincount(part.labels, minlength=10).float()
        assert bool((counts / len(part) - 0.1).abs().max() < 0.015)
        assert (part.num_channels, part.image_size, part.num_classes) == (1, 8, 10)
    assert len(parts["validation"]) == pytest.approx(0.15 * (1797 - len(parts["test"])), abs=5)


def test_digits_values_and_determinism():
    first = load_images("digits", "train", None, seed=3)
    again = load_images("digits", "train", None, seed=3)
    other = load_images("digits", "train", None, seed=4)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert rows_of(first.images) != rows_of(other.images)
    tests = [rows_of(load_images("digits", "test", None, seed=seed).images) for seed in (3, 4)]
    assert tests[0] != tests[1]
    assert set(first.images.unique().tolist()) == {round(x * 255 / 16) for x in range(17)}


def test_arguments_are_checked():
    refused("dataset='imagenet'", "imagenet", "train")
    refused("split='dev'", "digits", "dev")
    refused("fold=5", "digits", "train", fold=5)
    refused("fold=1", "cifar-100", "train", ".", fold=1)
    refused("seed=-1", "digits", "train", seed=-1)
    refused("data_dir='somewhere'", "digits", "train", "somewhere")


@pytest.mark.parametrize(
    ("dataset", "looked_for"),
    [
        ("fashion-mnist", "train-images-idx3-ubyte"),
        ("cifar-100", "fine_label_names.txt"),
        ("tiny-imagenet", "wnids.txt"),
    ],
)
def test_missing_data_names_the_files(tmp_path, dataset, looked_for):
    assert "train" in refused("data_dir=None", dataset, "train", None)
    assert "no such folder" in refused("data_dir=", dataset, "train", str(tmp_path / "absent"))
    assert str(tmp_path) in refused(looked_for, dataset, "train", str(tmp_path))


# ---------------------------------------------------------------- IDX files


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, prefix: str, per_class: int, suffix: str = "") -> tuple[np.ndarray, np.ndarray]:
    labels = np.random.default_rng(len(prefix)).permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
    images = np.random.default_rng(1).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
        data = idx(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    return images, labels


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_splits(tmp_path, suffix):
    images, labels = write_idx(tmp_path, "train", 24, suffix)
    test_images, test_labels = write_idx(tmp_path, "t10k", 2, suffix)
    parts = {split: load_images("fashion-mnist", split, str(tmp_path), seed=5) for split in SPLITS}
    assert np.array_equal(parts["test"].images[:, 0].numpy(), test_images)
    assert parts["test"].labels.tolist() == test_labels.tolist()
    assert torch.bincount(parts["validation"].labels).tolist() == [2] * 10
    label_of = dict(zip(rows_of(torch.from_numpy(images)), labels.tolist(), strict=True))
    found = [pair for split in SPLITS[:2] for pair in pairs_of(parts[split])]
    assert len(found) == 240
    assert dict(found) == label_of
    other = load_images("fashion-mnist", "validation", str(tmp_path), seed=6)
    assert rows_of(other.images) != rows_of(parts["validation"].images)
    assert parts["train"].classes[9] == "Ankle boot"
    assert load_images("mnist", "test", str(tmp_path)).classes == tuple("0123456789")


def test_idx_damage_is_named(tmp_path):
    write_idx(tmp_path, "t10k", 2)
    path = tmp_path / "t10k-images-idx3-ubyte"
    good = path.read_bytes()
    for damaged, fragment in [
        (good[:-5], f"'{20 * 784 - 5} bytes': expected {20 * 784} bytes"),
        (good + b"x", f"'more than {20 * 784} bytes': expected {20 * 784} bytes"),
        (good[:10], "header of 16 bytes"),
        (b"", "header of 16 bytes"),
        (b"\0\0\x0d\x03" + good[4:], "'00 00 0d 03'"),
        (b"\0\0\x08\x01" + good[4:], "'00 00 08 01'"),
        (b"\x1f\x8b" + good[2:], "header"),
        (idx(np.zeros((0, 28, 28), dtype=np.uint8)), "0 bytes"),
        (idx(np.zeros((20, 14, 56), dtype=np.uint8)), "(14, 56)"),
        (idx(np.zeros((19, 28, 28), dtype=np.uint8)), "20 labels"),
    ]:
        path.write_bytes(damaged)
        line = refused(fragment, "fashion-mnist", "test", str(tmp_path))
        assert "t10k-" in line


def test_gzip_damage_is_named(tmp_path):
    write_idx(tmp_path, "t10k", 2, ".gz")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    good = path.read_bytes()
    middle = len(good) // 2
    flipped = good[:-8] + bytes([good[-8] ^ 1]) + good[-7:]
    for damaged, fragment in [
        (good[:middle], "expected 15680 bytes"),
        (good[:-4], "gzip:"),
        (flipped, "CRC"),
        (b"not gzip at all", "gzip:"),
        (good[:middle] + b"\xff" * 200 + good[middle + 200 :], "gzip:"),
    ]:
        path.write_bytes(damaged)
        assert path.name in refused(fragment, "fashion-mnist", "test", str(tmp_path))
    path.write_bytes(good[:middle])
    found = int(refused("bytes", "fashion-mnist", "test", str(tmp_path)).split("='")[1].split()[0])
    assert 5000 < found < 10000


def test_idx_labels_out_of_range_are_named_by_row(tmp_path):
    _, labels = write_idx(tmp_path, "train", 24)
    labels[[17, 30]] = 10, 255
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    for split in ("train", "validation"):
        line = refused("train-labels-idx1-ubyte[row 17]=10", "fashion-mnist", split, str(tmp_path))
        assert "2 of 240" in line
