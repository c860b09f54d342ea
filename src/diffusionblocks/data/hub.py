"""Data sets through `datasets`: loading; of image data sets, which splits and which columns."""

from typing import Any

import torch

from diffusionblocks.data.images import ImageSet, check_labels, decode_images, split_rows
from diffusionblocks.errors import InputError

SPLIT_OF = {"train": "train", "validation": "validation", "val": "validation", "valid": "validation", "test": "test"}
"""Names of splits, on the hub or of folders, and the split that each is."""


def load_hub(data_dir: str, split: str, size: int, channels: int, fraction: float, seed: int) -> ImageSet:
    """One split of images that all have one size, decoded into memory.

    Args:
        data_dir: "hub:NAME".
        split: the test split is "test", or else "validation" or "valid"; "train" and "validation" are parts of "train".
        size: height = width that each image must have, pixels.
        channels: 1 (grey) or 3 (RGB).
        fraction: of each class of "train", that goes to validation.
        seed: chooses them.

    Raises:
        InputError: `datasets` is missing or cannot load it; no such split; columns that leave a choice; a label that is
            missing or out of range (by row); an image that is damaged or of another size (by row).
    """
    parts = open_hub(data_dir)
    wanted = ("test", "validation", "valid") if split == "test" else ("train",)
    part = next((parts[name] for name in wanted if name in parts), None)
    if part is None:
        raise InputError("data_dir", data_dir, f"a split named {' or '.join(wanted)}", f"it has {', '.join(parts)}")
    image_column, label_column = columns(data_dir, part.features)
    classes = tuple(part.features[label_column].names)
    labels = read_labels(data_dir, part, label_column)
    rows = split_rows(labels.numpy(), split, fraction, seed)
    pictures = part.select_columns([image_column]).select(rows)
    images = decode_images(
        len(rows), lambda i: pictures[i][image_column], lambda i: f"{data_dir} row {rows[i]}", size, channels
    )
    return ImageSet(images, labels[rows], classes)


def open_hub(data_dir: str) -> Any:
    """All splits, a mapping from name to `datasets.Dataset`.

    Raises:
        InputError: `datasets` is not installed, or cannot load "hub:NAME", with its reason.
    """
    return load_with_datasets("data_dir", data_dir, "images", data_dir.removeprefix("hub:"))


def load_with_datasets(setting: str, value: str, extra: str, name: str, **options: Any) -> Any:
    """`datasets.load_dataset(name, **options)`, with its faults as those of a setting.

    Args:
        setting: the setting that the error names.
        value: its value, as the user gave it.
        extra: the extra of this library that brings `datasets`.
        name: as `datasets.load_dataset` takes it.
        options: as it takes them.

    Raises:
        InputError: `datasets` is not installed, or cannot load it, with its reason.
    """
    try:
        import datasets
    except ImportError as error:
        todo = f"pip install 'diffusionblocks[{extra}]'"
        raise InputError(setting, value, "the package `datasets` for such data", todo) from error
    try:
        return datasets.load_dataset(name, **options)
    except Exception as error:
        # The hub, HTTP, file system and parsers each raise their own; none of them is a fault of the library.
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        reason = f"{type(error).__name__}: {error}{cause}"
        raise InputError(setting, value, "a data set that `datasets` can load", reason[:300]) from error


def read_labels(data_dir: str, part: Any, column: str) -> torch.Tensor:
    """A ClassLabel column, int64 (N,); a row without a label, or out of range, is refused by its number."""
    labels = torch.tensor([-1 if label is None else label for label in part[column]], dtype=torch.int64)
    check_labels(labels, len(part.features[column].names), f"{data_dir} {column}")
    return labels


def columns(data_dir: str, features: Any) -> tuple[str, str]:
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
