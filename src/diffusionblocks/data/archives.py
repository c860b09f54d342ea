"""CIFAR-10, CIFAR-100 and Tiny ImageNet as their archives unpack; the Python (pickle) versions are refused."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from diffusionblocks.data.images import ImageSet, check_labels, decode_images, split_rows
from diffusionblocks.errors import InputError


def _find_folder(folder: Path, name: str, files: tuple[str, ...], todo: str) -> Path:
    for candidate in (folder, folder / name):
        if all((candidate / file).exists() for file in files):
            return candidate
    looked_for = ", ".join(files)
    raise InputError("data_dir", str(folder), f"a folder with {looked_for}, or with {name}/ that has them", todo)


def load_cifar(dataset: str, folder: Path, split: str, fraction: float, seed: int) -> ImageSet:
    """One split of CIFAR-10 or CIFAR-100 (fine labels) from the binary version: RGB, 32x32.

    A record is one byte of label (CIFAR-100: two, of which the second is the fine label) and 3072 bytes of pixels,
    channel by channel, row by row (https://www.cs.toronto.edu/~kriz/cifar.html).

    Args:
        dataset: "cifar-10" or "cifar-100".
        folder: the unpacked folder, or its parent.
        split: "test" reads the test file; "train" and "validation" are parts of the training files, in their order.
        fraction: of each class, that goes to validation.
        seed: chooses them.

    Raises:
        InputError: a file that is missing, empty or not of whole records; the Python version; labels out of range (by
            file and row); another number of class names.
    """
    if dataset == "cifar-10":
        marker, names_file, label_bytes, num_classes = "batches.meta", "batches.meta.txt", 1, 10
        files = [f"data_batch_{k}.bin" for k in range(1, 6)]
        python, binary = "cifar-10-batches-py", "cifar-10-batches-bin"
    else:
        marker, names_file, label_bytes, num_classes = "meta", "fine_label_names.txt", 2, 100
        files = ["train.bin"]
        python, binary = "cifar-100-python", "cifar-100-binary"
    if split == "test":
        files = ["test_batch.bin" if dataset == "cifar-10" else "test.bin"]
    pickled = any((place / marker).exists() for place in (folder, folder / python))
    todo = "here is only the Python version; pickles are never read, unpack " if pickled else "unpack "
    todo += f"{dataset}-binary.tar.gz (binary version)"
    root = _find_folder(folder, binary, (*files, names_file), todo)
    classes = tuple(_lines(root / names_file))
    if len(classes) != num_classes:
        found = f"{len(classes)} names"
        raise InputError(str(root / names_file), found, str(num_classes), "fetch the file again")
    parts = [_cifar_records(root / name, label_bytes, num_classes) for name in files]
    labels, pixels = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    rows = split_rows(labels, split, fraction, seed)
    images = torch.from_numpy(pixels[rows].reshape(-1, 3, 32, 32))
    return ImageSet(images, torch.from_numpy(labels[rows]), classes)


def _cifar_records(path: Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, int64 (N,), and pixels, uint8 (N, 3072), of one file; the label is the last byte before the pixels."""
    record, size = label_bytes + 3072, path.stat().st_size
    if size == 0 or size % record:
        raise InputError(str(path), f"{size} bytes", f"whole records of {record} bytes", "fetch the file again")
    records = np.fromfile(path, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    check_labels(torch.from_numpy(labels), num_classes, str(path))
    return labels, records[:, label_bytes:]


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file that are not blank, stripped."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"byte {error.start}", "UTF-8 text", "fetch the file again") from error
    except OSError as error:
        raise InputError("data_dir", str(path.parent), f"a folder with {path.name}", str(error.strerror)) from error
    return [line.strip() for line in lines if line.strip()]


def load_tiny_imagenet(folder: Path, split: str, fraction: float, seed: int) -> ImageSet:
    """One split of Tiny ImageNet: RGB, 64x64.

    Args:
        folder: tiny-imagenet-200, or its parent.
        split: "test" reads the official val/; "train" and "validation" are parts of train/.
        fraction: of each class, that goes to validation.
        seed: chooses them.

    Raises:
        InputError: a file or folder that is missing or damaged, an image of another size, an unknown class.
    """
    part = "val" if split == "test" else "train"
    root = _find_folder(folder, "tiny-imagenet-200", ("wnids.txt", part), "unpack tiny-imagenet-200.zip")
    wnids = [_plain_name(line, root / "wnids.txt") for line in _lines(root / "wnids.txt")]
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    files, labels = [], []
    if split == "test":
        annotations = root / "val" / "val_annotations.txt"
        for line in _lines(annotations):
            file, _, rest = line.partition("\t")
            if (wnid := rest.split("\t")[0]) not in label_of:
                raise InputError(str(annotations), line, "file name, tab, id of wnids.txt", "unpack the archive again")
            files.append(root / "val" / "images" / _plain_name(file, annotations))
            labels.append(label_of[wnid])
    else:
        for wnid, label in label_of.items():
            source = root / "train" / wnid / "images"
            if not source.is_dir():
                raise InputError("data_dir", str(folder), f"a folder with {source}", "unpack the archive again")
            files += (found := sorted(source.glob("*.JPEG")))
            labels += [label] * len(found)
    rows = split_rows(np.array(labels), split, fraction, seed)
    images = decode_images(len(rows), lambda i: Image.open(files[rows[i]]), lambda i: str(files[rows[i]]), 64, 3)
    lines = _lines(root / "words.txt") if (root / "words.txt").exists() else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return ImageSet(images, torch.tensor(labels)[rows], tuple(words.get(wnid, wnid) for wnid in wnids))


def _plain_name(name: str, source: Path) -> str:
    """Names from a file stay inside their folder."""
    if name in ("", ".", "..") or any(part in name for part in "/\\\0"):
        raise InputError(str(source), name, "plain file names inside the folder", "fetch the file again")
    return name
