"""The labelled image sets that the recipes use: read from disk (or the hub), checked, split; pickles are never read.

==============  ========  =====================================  =================================================
dataset         pixels    test                                   validation (per class, chosen by `seed`)
==============  ========  =====================================  =================================================
digits          8x8 grey  fold `fold` of 5 stratified folds      15% of the rest (1,797 images in all, with sklearn)
fashion-mnist   28 grey   t10k-* IDX files                       1/12 of the train-* IDX files (5,000 of 60,000)
mnist           28 grey   the same, with the digits as classes   the same
cifar-10        32 RGB    test_batch.bin (the "binary version")  10% of data_batch_1..5.bin
cifar-100       32 RGB    test.bin (the "binary version")        10% of train.bin
tiny-imagenet   64 RGB    the official val/                      10% of train/
folder          as asked  test/, or 10% of the images            validation/ or val/, or 10% of the images
==============  ========  =====================================  =================================================

The three splits are disjoint; train and validation together are the official training set. They depend on the data and
the seed alone. `folder` is any images of yours, see `diffusionblocks.data.folder`.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold

from diffusionblocks.data.archives import load_cifar, load_tiny_imagenet
from diffusionblocks.data.folder import open_folder
from diffusionblocks.data.hub import load_hub
from diffusionblocks.data.idx import load_idx
from diffusionblocks.data.images import ImageSet, split_rows
from diffusionblocks.errors import InputError

Split = Literal["train", "validation", "test"]
NUM_FOLDS = 5
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load_images(
    dataset: str,
    split: Split,
    data_dir: str | None = None,
    fold: int = 0,
    seed: int = 0,
    *,
    image_size: int | None = None,
    num_channels: int | None = None,
) -> ImageSet:
    """One split of a data set (see the table above), decoded into memory.

    Args:
        dataset: a name from the table.
        split: "train", "validation" or "test".
        data_dir: the folder with the files (for the CIFARs and tiny-imagenet also its parent); or "hub:NAME", NAME
            being a data set on the hub or a local folder, as `datasets.load_dataset` takes it. There the test split is
            "test", or else "validation" or "valid", and validation is taken from "train" (but see `open_folder` for
            the data set folder). None for digits.
        fold: 0..4 for digits, 0 for the others.
        seed: 0..2**32-1; chooses the folds of digits, the validation images and the splits of a folder.
        image_size: height = width, pixels. Needed for folder; the others have their own, which is checked if given.
        num_channels: 1 (grey) or 3 (RGB). Needed for folder; the others have their own, which is checked if given.

    Raises:
        InputError: an unknown name; a folder or file that is missing, damaged, truncated or of another format; images
            of another size; labels out of range (by row); a hub that cannot be reached; a size or number of channels
            that is missing or is not that of the data.
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
    elif not data_dir:
        raise InputError("data_dir", data_dir, f"a folder with {files}, or hub:NAME", "set data_dir")
    if dataset == "folder":
        for name, given in (("image_size", image_size), ("num_channels", num_channels)):
            if given is None:
                raise InputError(name, None, "a number, since a folder's images may be of any kind", f"set {name}")
        return open_folder(str(data_dir), split, image_size or 0, num_channels or 0, seed).load()
    for name, given, found in (("image_size", image_size, size), ("num_channels", num_channels, channels)):
        if given not in (None, found):
            raise InputError(name, given, f"{found}, as in the {dataset} data", f"set {name}, or use dataset=folder")
    if data_dir is None:
        return _load_digits(split, fold, fraction, seed)
    if data_dir.startswith("hub:"):
        return load_hub(data_dir, split, size, channels, fraction, seed)
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise InputError("data_dir", data_dir, f"a folder with {files}", "there is no such folder")
    match dataset:
        case "cifar-10" | "cifar-100":
            return load_cifar(dataset, folder, split, fraction, seed)
        case "tiny-imagenet":
            return load_tiny_imagenet(folder, split, fraction, seed)
        case _:
            classes = tuple(FASHION_CLASSES if dataset == "fashion-mnist" else "0123456789")
            return load_idx(folder, split, classes, fraction, seed)


def _facts(dataset: str) -> tuple[int, int, float, str]:
    """(height = width, channels, fraction of the training images for validation, the files looked for)."""
    match dataset:
        case "digits":
            return 8, 1, 0.15, "none: digits comes with scikit-learn"
        case "fashion-mnist" | "mnist":
            return 28, 1, 1 / 12, "{train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz]"
        case "cifar-10":
            return 32, 3, 0.1, "cifar-10-batches-bin/{data_batch_1..5.bin,test_batch.bin,batches.meta.txt}"
        case "cifar-100":
            return 32, 3, 0.1, "cifar-100-binary/{train.bin,test.bin,fine_label_names.txt}"
        case "tiny-imagenet":
            return 64, 3, 0.1, "tiny-imagenet-200/{wnids.txt,train/,val/}"
        case "folder":
            return 0, 0, 0.1, "CLASS/IMAGE files, or train/CLASS/IMAGE"
    expected = "digits, fashion-mnist, mnist, cifar-10, cifar-100, tiny-imagenet or folder"
    raise InputError("dataset", dataset, expected, "choose one")


def _load_digits(split: Split, fold: int, fraction: float, seed: int) -> ImageSet:
    data: Any = load_digits()
    images = np.rint(data.images * 255 / 16).astype(np.uint8)[:, None]
    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=seed).split(images, data.target)
    rest, test = list(folds)[fold]
    rows = test if split == "test" else rest[split_rows(data.target[rest], split, fraction, seed)]
    labels = torch.from_numpy(data.target.astype(np.int64))
    return ImageSet(torch.from_numpy(images), labels, tuple("0123456789")).subset(rows)
