"""CIFAR-10, CIFAR-100 and Tiny ImageNet from files made here: pixels, labels and splits, and plain refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from source_checks import SPLITS, pairs_of, picture, refused, rows_of

from diffusionblocks.data.sources import load_images

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
