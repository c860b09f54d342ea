"""The labelled image sets that the recipes use: read from disk (or the hub), checked, split; pickles are never read.

==============  ========  =====================================  =================================================
dataset         pixels    test                                   validation (per class, chosen by `seed`)
==============  ========  =====================================  =================================================
digits          8x8 grey  fold `fold` of 5 stratified folds      15% of the rest (1,797 images in all, with sklearn)
fashion-mnist   28 grey   t10k-* IDX files                       1/12 of the train-* IDX files (5,000 of 60,000)
mnist           28 grey   the same, with the digits as classes   the same
cifar-100       32 RGB    test.bin (the "binary version")        10% of train.bin
tiny-imagenet   64 RGB    the official val/                      10% of train/
==============  ========  =====================================  =================================================

The three splits are disjoint; train and validation together are the official training set. They depend on the data and
the seed alone.
"""

import gzip
import math
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold

from diffusionblocks.data.images import ImageSet, check_labels, decode_images, split_rows
from diffusionblocks.errors import InputError

Split = Literal["train", "validation", "test"]
NUM_FOLDS = 5
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load_images(dataset: str, split: Split, data_dir: str | None = None, fold: int = 0, seed: int = 0) -> ImageSet:
    """One split of a data set (see the table above), decoded into memory.

    Args:
        dataset: a name from the table.
        split: "train", "validation" or "test".
        data_dir: the folder with the files (for cifar-100 and tiny-imagenet also its parent); or "hub:NAME", NAME
            being a data set on the hub or a local folder, as `datasets.load_dataset` takes it. There the test split is
            "test", or else "validation" or "valid", and validation is taken from "train". None for digits.
        fold: 0..4 for digits, 0 for the others.
        seed: 0..2**32-1; chooses the folds of digits and the validation images.

    Raises:
        InputError: an unknown name; a folder or file that is missing, damaged, truncated or of another format; images
            of another size; labels out of range (by row); a hub that cannot be reached.
    """
    size, channels, fraction, files = _facts(dataset)
    if split not in ("train", "validation", "test"):
        raise InputError("split", split, "train, validation or test", "choose one of them")
    if not 0 <= seed < 2**32:
        raise InputError("seed", seed, "0..2**32-1", "choose another seed")
    last_fold = NUM_FOLDS - 1 if dataset == "digits" else 0
    if not 0 <= fold <= last_fold:
        raise InputError("fold", fold, f"0..{last_fold} for {dataset}", "only digits has folds")
    if dataset == "digits":
        if data_dir is not None:
            raise InputError("data_dir", data_dir, files, "leave data_dir out")
        return _load_digits(split, fold, fraction, seed)
    if not data_dir:
        raise InputError("data_dir", data_dir, f"a folder with {files}, or hub:NAME", "set data_dir")
    if data_dir.startswith("hub:"):
        return _load_hub(data_dir, split, size, channels, fraction, seed)
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise InputError("data_dir", data_dir, f"a folder with {files}", "there is no such folder")
    match dataset:
        case "cifar-100":
            return _load_cifar100(split, folder, fraction, seed)
        case "tiny-imagenet":
            return _load_tiny_imagenet(split, folder, fraction, seed)
        case _:
            return _load_idx(dataset, split, folder, fraction, seed)


def _facts(dataset: str) -> tuple[int, int, float, str]:
    """(height = width, channels, fraction of the training images for validation, the files looked for)."""
    match dataset:
        case "digits":
            return 8, 1, 0.15, "none: digits comes with scikit-learn"
        case "fashion-mnist" | "mnist":
            return 28, 1, 1 / 12, "{train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz]"
        case "cifar-100":
            return 32, 3, 0.1, "cifar-100-binary/{train.bin,test.bin,fine_label_names.txt}"
        case "tiny-imagenet":
            return 64, 3, 0.1, "tiny-imagenet-200/{wnids.txt,train/,val/}"
    raise InputError("dataset", dataset, "digits, fashion-mnist, mnist, cifar-100 or tiny-imagenet", "choose one")


def _load_digits(split: Split, fold: int, fraction: float, seed: int) -> ImageSet:
    data: Any = load_digits()
    images = np.rint(data.images * 255 / 16).astype(np.uint8)[:, None]
    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=seed).split(images, data.target)
    rest, test = list(folds)[fold]
    rows = test if split == "test" else rest[split_rows(data.target[rest], split, fraction, seed)]
    labels = torch.from_numpy(data.target.astype(np.int64))
    return ImageSet(torch.from_numpy(images), labels, tuple("0123456789")).subset(rows)


def _load_idx(dataset: str, split: Split, folder: Path, fraction: float, seed: int) -> ImageSet:
    prefix = "t10k" if split == "test" else "train"
    images_file, labels_file = (_find_idx(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1).astype(np.int64)
    if len(images) != len(labels):
        raise InputError(str(labels_file), f"{len(labels)} labels", f"{len(images)}, one per image", "fetch both again")
    if images.shape[1:] != (28, 28):
        raise InputError(str(images_file), images.shape[1:], f"28x28 pixels for {dataset}", "use the original files")
    classes = tuple(FASHION_CLASSES if dataset == "fashion-mnist" else "0123456789")
    check_labels(torch.from_numpy(labels), len(classes), str(labels_file))
    rows = split_rows(labels, split, fraction, seed)
    return ImageSet(torch.from_numpy(images[rows][:, None]), torch.from_numpy(labels[rows]), classes)


def _find_idx(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError("data_dir", str(folder), f"a folder with {name} or {name}.gz", "put the file there")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """An IDX file of bytes (yann.lecun.com/exdb/mnist), gzip if it ends in .gz.

    Args:
        path: the file.
        ndim: number of dimensions, 3 for images and 1 for labels.

    Returns:
        uint8 with `ndim` dimensions.

    Raises:
        InputError: names the file: it cannot be read, is no IDX file of bytes with `ndim` dimensions, is empty, or
            holds fewer or more bytes than its header promises.
    """
    advice = "fetch the file again"
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
            header, broken = _read(stream, 4 + 4 * ndim)
            magic = bytes([0, 0, 8, ndim])
            if len(header) < 4 + 4 * ndim or header[:4] != magic:
                expected = f"an IDX header of {4 + 4 * ndim} bytes that starts {magic.hex(' ')} (bytes, {ndim}-D)"
                raise InputError(str(path), header[:4].hex(" "), expected, broken or advice)
            shape = tuple(int(n) for n in np.frombuffer(header, ">u4", offset=4))
            # One byte more than promised finds a longer file, and makes gzip compare its checksum.
            body, broken = _read(stream, math.prod(shape) + 1)
    except OSError as error:
        raise InputError(str(path), str(error), "a readable file", "check its permissions") from error
    if len(body) != math.prod(shape) or not body or broken:
        found = f"{'more than ' * (len(body) > math.prod(shape))}{min(len(body), math.prod(shape))} bytes"
        expected = f"{math.prod(shape)} bytes of data (more than 0), as its header promises"
        raise InputError(str(path), found, expected, f"{advice} ({broken})" if broken else advice)
    return np.frombuffer(body, np.uint8).reshape(shape)


def _read(stream: gzip.GzipFile | BufferedReader, count: int) -> tuple[bytearray, str]:
    """Up to `count` bytes, and the reason if a damaged gzip stream ended them early."""
    data = bytearray()
    try:
        # read1, since read loses what came before the damage.
        while len(data) < count and (piece := stream.read1(min(count - len(data), 1 << 20))):
            data += piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return data, f"gzip: {error}"
    return data, ""


def _find_folder(folder: Path, name: str, files: tuple[str, ...], todo: str) -> Path:
    for candidate in (folder, folder / name):
        if all((candidate / file).exists() for file in files):
            return candidate
    looked_for = ", ".join(files)
    raise InputError("data_dir", str(folder), f"a folder with {looked_for}, or with {name}/ that has them", todo)


def _load_cifar100(split: Split, folder: Path, fraction: float, seed: int) -> ImageSet:
    name = "test.bin" if split == "test" else "train.bin"
    pickled = any((place / "meta").exists() for place in (folder, folder / "cifar-100-python"))
    todo = "here is only the Python version; pickles are never read, unpack " if pickled else "unpack "
    root = _find_folder(
        folder, "cifar-100-binary", (name, "fine_label_names.txt"), f"{todo}cifar-100-binary.tar.gz (binary version)"
    )
    classes = tuple(_lines(root / "fine_label_names.txt"))
    if len(classes) != 100:
        raise InputError(str(root / "fine_label_names.txt"), f"{len(classes)} names", "100", "fetch the file again")
    size = (root / name).stat().st_size
    if size == 0 or size % 3074:
        raise InputError(str(root / name), f"{size} bytes", "whole records of 3074 bytes", "fetch the file again")
    records = np.fromfile(root / name, np.uint8).reshape(-1, 3074)
    labels = records[:, 1].astype(np.int64)
    check_labels(torch.from_numpy(labels), len(classes), str(root / name))
    rows = split_rows(labels, split, fraction, seed)
    images = torch.from_numpy(records[rows, 2:].reshape(-1, 3, 32, 32))
    return ImageSet(images, torch.from_numpy(labels[rows]), classes)


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file that are not blank, stripped."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"byte {error.start}", "UTF-8 text", "fetch the file again") from error
    except OSError as error:
        raise InputError("data_dir", str(path.parent), f"a folder with {path.name}", str(error.strerror)) from error
    return [line.strip() for line in lines if line.strip()]


def _load_tiny_imagenet(split: Split, folder: Path, fraction: float, seed: int) -> ImageSet:
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


def _load_hub(data_dir: str, split: Split, size: int, channels: int, fraction: float, seed: int) -> ImageSet:
    parts = _open_hub(data_dir)
    wanted = ("test", "validation", "valid") if split == "test" else ("train",)
    part = next((parts[name] for name in wanted if name in parts), None)
    if part is None:
        raise InputError("data_dir", data_dir, f"a split named {' or '.join(wanted)}", f"it has {', '.join(parts)}")
    image_column, label_column = _hub_columns(data_dir, part.features)
    classes = tuple(part.features[label_column].names)
    labels = torch.tensor([-1 if label is None else label for label in part[label_column]], dtype=torch.int64)
    check_labels(labels, len(classes), f"{data_dir} {label_column}")
    rows = split_rows(labels.numpy(), split, fraction, seed)
    pictures = part.select_columns([image_column]).select(rows)
    images = decode_images(
        len(rows), lambda i: pictures[i][image_column], lambda i: f"{data_dir} row {rows[i]}", size, channels
    )
    return ImageSet(images, labels[rows], classes)


def _open_hub(data_dir: str) -> Any:
    """All splits, a mapping from name to `datasets.Dataset`."""
    try:
        import datasets
    except ImportError as error:
        todo = "pip install 'diffusionblocks[images]'"
        raise InputError("data_dir", data_dir, "the package `datasets` for hub:NAME", todo) from error
    try:
        return datasets.load_dataset(data_dir.removeprefix("hub:"))
    except Exception as error:
        # The hub, HTTP, file system and parsers each raise their own; none of them is a fault of the library.
        reason = f"{type(error).__name__}: {error}"
        raise InputError("data_dir", data_dir, "a data set that `datasets` can load", reason[:300]) from error


def _hub_columns(data_dir: str, features: Any) -> tuple[str, str]:
    """The one image column, and the class column: fine_label, else label, else the only one."""
    from datasets import ClassLabel
    from datasets import Image as ImageFeature

    images = [name for name, feature in features.items() if isinstance(feature, ImageFeature)]
    if len(images) != 1:
        raise InputError("data_dir", data_dir, "exactly one column of images", f"its columns: {', '.join(features)}")
    labels = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    preferred = [name for name in ("fine_label", "label") if name in labels] or labels
    if not preferred or (preferred is labels and len(labels) > 1):
        expected = "a ClassLabel column fine_label or label, or only one"
        raise InputError("data_dir", data_dir, expected, f"its columns: {', '.join(features)}")
    return images[0], preferred[0]
