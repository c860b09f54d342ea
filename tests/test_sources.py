"""Every data set is read from files made here: right pixels and labels, disjoint fixed splits, and plain refusals."""

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from diffusionblocks.data.images import ImageSet
from diffusionblocks.data.sources import load_images
from diffusionblocks.errors import InputError

SPLITS = ("train", "validation", "test")


def refused(fragment: str, *arguments, **keywords) -> str:
    """The one line of the refusal, which must contain `fragment`."""
    with pytest.raises(InputError) as caught:
        load_images(*arguments, **keywords)
    line = str(caught.value)
    assert fragment in line
    assert "\n" not in line
    return line


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def pairs_of(part: ImageSet) -> list[tuple[bytes, int]]:
    return list(zip(rows_of(part.images), part.labels.tolist(), strict=True))


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


# ---------------------------------------------------------------- CIFAR-100


def write_cifar(folder: Path, name: str, per_class: int) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / "fine_label_names.txt").write_text("".join(f"class_{k}\n" for k in range(100)) + "\n")
    records = np.random.default_rng(2).integers(0, 256, (100 * per_class, 3074), dtype=np.uint8)
    records[:, 0] = 19
    records[:, 1] = np.arange(100 * per_class) % 100
    (folder / name).write_bytes(records.tobytes())
    return records


def test_cifar_splits(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    records = write_cifar(folder, "train.bin", 10)
    test = write_cifar(folder, "test.bin", 1)
    for place in (tmp_path, folder):
        found = load_images("cifar-100", "test", str(place))
        assert found.images[3, 2, 4, 5] == test[3, 2 + 2 * 1024 + 4 * 32 + 5]
        assert found.labels.tolist() == list(range(100))
        assert found.classes[42] == "class_42"
    train, validation = (load_images("cifar-100", split, str(tmp_path)) for split in SPLITS[:2])
    assert torch.bincount(validation.labels).tolist() == [1] * 100
    wanted = {record[2:].tobytes(): int(record[1]) for record in records}
    assert len(wanted) == 1000 == len(train) + len(validation)
    pairs = [pair for part in (train, validation) for pair in pairs_of(part)]
    assert dict(pairs) == wanted


def test_cifar_refusals(tmp_path):
    pickled = tmp_path / "cifar-100-python"
    pickled.mkdir()
    for name in ("train", "test", "meta"):
        (pickled / name).write_bytes(b"\x80\x02}q\x00.")
    for place in (tmp_path, pickled):
        assert "binary version" in refused("pickles are never read", "cifar-100", "train", str(place))
    folder = tmp_path / "cifar-100-binary"
    records = write_cifar(folder, "train.bin", 1)
    refused("test.bin", "cifar-100", "test", str(tmp_path))
    (folder / "train.bin").write_bytes(records.tobytes()[:-1])
    refused(f"train.bin='{100 * 3074 - 1} bytes'", "cifar-100", "train", str(tmp_path))
    (folder / "train.bin").write_bytes(b"")
    refused("train.bin='0 bytes'", "cifar-100", "train", str(tmp_path))
    records[7, 1] = 100
    (folder / "train.bin").write_bytes(records.tobytes())
    refused("train.bin[row 7]=100", "cifar-100", "train", str(tmp_path))
    (folder / "fine_label_names.txt").write_text("apple\n")
    refused("'1 names'", "cifar-100", "train", str(tmp_path))
    (folder / "fine_label_names.txt").write_bytes(b"apple\n\xff")
    refused("'byte 6'", "cifar-100", "train", str(tmp_path))


# ---------------------------------------------------------------- CIFAR-10

CIFAR10_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")


def write_cifar10(folder: Path, per_class: int = 4) -> dict[str, bytes]:
    """Files written byte by byte: a label, then a red, a green and a blue plane, row by row."""
    folder.mkdir(exist_ok=True)
    (folder / "batches.meta.txt").write_text("".join(f"kind {k}\n" for k in range(10)) + "\n")
    written = {}
    for number, name in enumerate(CIFAR10_FILES):
        records = b""
        for row in range(10 * per_class):
            start = number * 40 + row
            planes = [[(start + 50 * channel + 7 * place) % 256 for place in range(1024)] for channel in range(3)]
            records += bytes([row % 10, *planes[0], *planes[1], *planes[2]])
        (folder / name).write_bytes(records)
        written[name] = records
    return written


def test_cifar10_splits(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    written = write_cifar10(folder)
    for place in (tmp_path, folder):
        test = load_images("cifar-10", "test", str(place), image_size=32, num_channels=3)
        assert test.images[13, 2, 4, 5] == written["test_batch.bin"][13 * 3073 + 1 + 2 * 1024 + 4 * 32 + 5]
        assert test.labels.tolist() == list(range(10)) * 4
        assert test.classes[9] == "kind 9"
    train, validation = (load_images("cifar-10", split, str(tmp_path), seed=4) for split in SPLITS[:2])
    assert torch.bincount(validation.labels).tolist() == [2] * 10
    everything = b"".join(written[name] for name in CIFAR10_FILES[:5])
    records = [everything[start : start + 3073] for start in range(0, len(everything), 3073)]
    pairs = [pair for part in (train, validation) for pair in pairs_of(part)]
    assert sorted(pairs) == sorted((record[1:], record[0]) for record in records)
    # Rows keep the order of the files.
    order = {record[1:]: row for row, record in enumerate(records)}
    rows = [order[row] for row in rows_of(train.images)]
    assert rows == sorted(rows)
    other = load_images("cifar-10", "validation", str(tmp_path), seed=5)
    assert rows_of(other.images) != rows_of(validation.images)


def test_cifar10_refusals(tmp_path):
    pickled = tmp_path / "cifar-10-batches-py"
    pickled.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (pickled / name).write_bytes(b"\x80\x02}q\x00.")
    for place in (tmp_path, pickled):
        line = refused("pickles are never read", "cifar-10", "train", str(place))
        assert "cifar-10-binary.tar.gz (binary version)" in line
    folder = tmp_path / "cifar-10-batches-bin"
    written = write_cifar10(folder, per_class=1)
    third = folder / "data_batch_3.bin"
    third.write_bytes(written[third.name][:-1])
    refused(f"data_batch_3.bin='{10 * 3073 - 1} bytes'", "cifar-10", "train", str(tmp_path))
    third.write_bytes(b"\x0a" + written[third.name][1:])
    refused("data_batch_3.bin[row 0]=10", "cifar-10", "validation", str(tmp_path))
    third.unlink()
    refused("data_batch_3.bin", "cifar-10", "train", str(tmp_path))
    assert len(load_images("cifar-10", "test", str(tmp_path))) == 10
    (folder / "batches.meta.txt").write_text("cat\n")
    refused("'1 names'", "cifar-10", "test", str(tmp_path))


def test_a_size_that_is_not_the_datas_is_refused(tmp_path):
    write_cifar10(tmp_path)
    refused("image_size=64: expected 32", "cifar-10", "test", str(tmp_path), image_size=64)
    refused("num_channels=3: expected 1", "digits", "test", num_channels=3)


# ---------------------------------------------------------------- Tiny ImageNet

WNIDS = ("n02", "n01")


def picture(value: int, size: int = 64, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (size, size), (value,) * 3 if mode == "RGB" else value)


@pytest.fixture
def tiny(tmp_path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn99\tnothing\n")
    for label, wnid in enumerate(WNIDS):
        (root / "train" / wnid / "images").mkdir(parents=True)
        for row in range(10):
            image = picture(label * 100 + row * 10, mode="L" if row == 3 else "RGB")
            image.save(root / "train" / wnid / "images" / f"{wnid}_{row}.JPEG")
    lines = []
    for row, wnid in enumerate(("n01", "n02", "n01")):
        picture(200 + row * 10).save(root / "val" / "images" / f"val_{row}.JPEG")
        lines.append(f"val_{row}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def test_tiny_imagenet_splits(tiny):
    for place in (tiny, tiny.parent):
        test = load_images("tiny-imagenet", "test", str(place))
        assert test.labels.tolist() == [1, 0, 1]
        assert test.images[:, 0, 0, 0].tolist() == [200, 210, 220]
        assert test.classes == ("n02", "goldfish, Carassius auratus")
    train, validation = (load_images("tiny-imagenet", split, str(tiny)) for split in SPLITS[:2])
    assert validation.labels.tolist() == [0, 1]
    assert train.images.shape == (18, 3, 64, 64)
    values = torch.cat([train.images, validation.images])[:, 1, 5, 5].tolist()
    assert sorted(values) == sorted(label * 100 + row * 10 for label in range(2) for row in range(10))
    assert (train.images[:, 0, 0, 0] // 100).tolist() == train.labels.tolist()


def test_tiny_imagenet_refusals(tiny):
    annotations = tiny / "val" / "val_annotations.txt"
    good = annotations.read_text()
    for bad, fragment in [
        ("val_0.JPEG\tn77\n", "val_annotations.txt"),
        ("val_0.JPEG\n", "val_annotations.txt"),
        ("../../secret.JPEG\tn01\n", "plain file names"),
        ("..\tn01\n", "plain file names"),
        ("absent.JPEG\tn01\n", "absent.JPEG"),
        ("", "test split"),
    ]:
        annotations.write_text(bad)
        refused(fragment, "tiny-imagenet", "test", str(tiny))
    annotations.unlink()
    refused("val_annotations.txt", "tiny-imagenet", "test", str(tiny))
    annotations.write_text(good)
    (tiny / "val" / "images" / "val_1.JPEG").write_bytes(b"no image")
    refused("val_1.JPEG", "tiny-imagenet", "test", str(tiny))
    picture(1, size=32).save(tiny / "val" / "images" / "val_1.JPEG")
    refused("64x64", "tiny-imagenet", "test", str(tiny))
    (tiny / "wnids.txt").write_text("n02\n../n01\n")
    refused("plain file names", "tiny-imagenet", "train", str(tiny))
    (tiny / "wnids.txt").write_text("n02\nn03\n")
    refused("n03", "tiny-imagenet", "train", str(tiny))


# ---------------------------------------------------------------- hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes splits as parquet files into a folder that `datasets.load_dataset` reads, and returns its name."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(columns: dict | None = None, names: tuple[str, ...] = ("train", "test"), size: int = 32) -> str:
        folder = tmp_path / f"set{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name in names:
            count = 40 if name == "train" else 4
            rows = {
                "img": [picture(row, size, "L" if row == 1 else "RGB") for row in range(count)],
                "coarse_label": [0] * count,
                "fine_label": [row % 2 for row in range(count)],
            }
            kinds = {
                "img": datasets.Image(),
                "coarse_label": datasets.ClassLabel(names=["all"]),
                "fine_label": datasets.ClassLabel(names=["even", "odd"]),
            }
            for column, (kind, values) in (columns or {}).items():
                rows[column], kinds[column] = values[:count], kind
            kinds = {column: kind for column, kind in kinds.items() if kind is not None}
            data = datasets.Dataset.from_dict({k: rows[k] for k in kinds}, features=datasets.Features(kinds))
            data.to_parquet(str(folder / f"{name}-00000-of-00001.parquet"))
        return f"hub:{folder}"

    return write


def test_hub_splits(hub):
    name = hub()
    parts = {split: load_images("cifar-100", split, name, seed=2) for split in SPLITS}
    assert {split: len(part) for split, part in parts.items()} == {"train": 36, "validation": 4, "test": 4}
    assert parts["test"].images[:, :, 31, 0].tolist() == [[row] * 3 for row in range(4)]
    assert parts["test"].classes == ("even", "odd")
    assert parts["validation"].labels.tolist().count(0) == 2
    values = [v for split in SPLITS[:2] for v in parts[split].images[:, 0, 0, 0].tolist()]
    assert sorted(values) == list(range(40))
    for part in parts.values():
        assert (part.images[:, 0, 0, 0] % 2).tolist() == part.labels.tolist()


@pytest.mark.parametrize("name", ["validation", "valid"])
def test_hub_validation_serves_as_test(hub, monkeypatch, name):
    import datasets

    data_dir = hub(names=("train", "validation"), size=64)
    parts = datasets.load_dataset(data_dir.removeprefix("hub:"))
    # Parquet files named valid-* become "validation", so the other spelling is put in here.
    renamed = {"train": parts["train"], name: parts["validation"]}
    monkeypatch.setattr(datasets, "load_dataset", lambda folder: renamed)
    assert len(load_images("tiny-imagenet", "test", data_dir)) == 4
    assert len(load_images("tiny-imagenet", "train", data_dir)) == 36


def test_hub_test_split_comes_before_validation(hub, monkeypatch):
    import datasets

    data_dir = hub()
    parts = datasets.load_dataset(data_dir.removeprefix("hub:"))
    both = {"validation": parts["train"], "train": parts["train"], "test": parts["test"]}
    monkeypatch.setattr(datasets, "load_dataset", lambda folder: both)
    assert len(load_images("cifar-100", "test", data_dir)) == 4
    assert len(load_images("cifar-100", "validation", data_dir)) == 4


def test_hub_refusals(hub):
    import datasets

    label = datasets.ClassLabel(names=["even", "odd"])
    refused("28x28 pixels", "fashion-mnist", "test", hub())
    refused("test or validation or valid", "cifar-100", "test", hub(names=("train",)))
    refused("named train", "cifar-100", "train", hub(names=("test",)))
    second = {"mask": (datasets.Image(), [picture(1, 32)] * 40)}
    refused("exactly one column of images", "cifar-100", "test", hub(second))
    refused("ClassLabel", "cifar-100", "test", hub({"fine_label": (None, []), "other": (label, [0] * 40)}))
    refused("ClassLabel", "cifar-100", "test", hub({"fine_label": (None, []), "coarse_label": (None, [])}))
    unlabelled = {"fine_label": (label, [0, 1, -1, 0] * 10)}
    refused("fine_label[row 2]=-1", "cifar-100", "test", hub(unlabelled))
    empty = {"fine_label": (label, [0, None, 1, 0] * 10)}
    refused("fine_label[row 1]=-1", "cifar-100", "test", hub(empty))
    missing = {"img": (datasets.Image(), [picture(1, 32), None] * 20)}
    refused("row 1", "cifar-100", "test", hub(missing))


def test_hub_prefers_label_and_takes_an_only_column(hub):
    import datasets

    label = datasets.ClassLabel(names=["odd", "even"])
    flipped = {"fine_label": (None, []), "label": (label, [1, 0] * 20)}
    assert load_images("cifar-100", "test", hub(flipped)).labels.tolist() == [1, 0, 1, 0]
    only = {"fine_label": (None, []), "coarse_label": (None, []), "kind": (label, [1, 0] * 20)}
    assert load_images("cifar-100", "test", hub(only)).labels.tolist() == [1, 0, 1, 0]


def test_hub_failures_are_one_line(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(name, **options):
        assert name == "uoft-cs/cifar100"
        assert not options
        raise ConnectionError("no route\nto the hub " + "x" * 1000)

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    line = refused("ConnectionError: no route to the hub", "cifar-100", "train", "hub:uoft-cs/cifar100")
    assert len(line) < 500
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install" in refused("the package `datasets`", "cifar-100", "train", "hub:uoft-cs/cifar100")
